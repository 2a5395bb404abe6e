package stile

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// An Election chooses one leader among candidates. It is a mutex whose holder, the leader, publishes a
// value that everyone can read, for example its address. Candidates become leader in order of
// arrival, except on Redlock.
//
// A Mutex and an Election of the same name exclude each other, and both exclude etcd's own
// concurrency.Election of that name. The latter cannot read Stile's values, and Stile sees its leader as
// one without a value.
//
// An Election has no state, and making one costs nothing. It is safe for concurrent use.
type Election struct{ locker locker }

// Election returns the election called name. If the name is invalid, every method that campaigns or
// reads returns an error matching [ErrBadName].
func (c *Client) Election(name string) *Election {
	return &Election{locker{client: c, name: name, mode: line.Exclusive, ownEntry: true}}
}

// With returns the same election with additional options, like [Mutex.With].
func (e *Election) With(opts LockOptions) *Election { return &Election{e.locker.with(opts)} }

// Name returns the election's name.
func (e *Election) Name() string { return e.locker.name }

// Campaign waits in line until the caller is the leader. It behaves like [Mutex.Lock]. If the session
// is lost while it waits, it rejoins the line, at the end. When the session is lost later, the leadership
// ends, and the caller must campaign again, as [Election.Run] does.
//
// The value is part of the candidate's entry from the start. So others may see it as the leader's value
// shortly before Campaign returns. With [Options.LockDelay] they may see it earlier, by up to the delay.
// The value is part of the owner: if that becomes larger than [MaxOwnerBytes], Campaign returns an error.
func (e *Election) Campaign(ctx context.Context, value string) (*Leadership, error) {
	hold, err := e.candidate(value).lock(ctx, false)
	if err != nil {
		return nil, err
	}
	return &Leadership{hold}, nil
}

// Join campaigns without blocking, like [Mutex.Join].
func (e *Election) Join(ctx context.Context, value string) (*Candidate, error) {
	p, err := e.candidate(value).join(ctx)
	if err != nil {
		return nil, err
	}
	return &Candidate{p}, nil
}

// A Candidate is a [Place] in an election.
type Candidate struct{ *Place }

// Wait returns the leadership once the candidate leads, and behaves like [Place.Wait].
func (c *Candidate) Wait(ctx context.Context) (*Leadership, error) {
	hold, err := c.Place.Wait(ctx)
	if err != nil {
		return nil, err
	}
	return &Leadership{hold}, nil
}

func (e *Election) candidate(value string) locker {
	l := e.locker
	l.value = value
	return l
}

// A Leadership is the hold of an election's leader. It ends when it is resigned, yielded or lost. It is safe
// for concurrent use.
type Leadership struct{ *Hold }

// Value returns the value of the last successful Proclaim, or that of Campaign.
func (l *Leadership) Value() string { return l.Owner().Value }

// Proclaim publishes another value. It never restores a leadership that has ended, and never changes
// that of another leader.
//
// If the leadership is lost, the error is a [*LostError]; after [Leadership.Resign] it matches
// [ErrReleased]. If the store cannot change the value it matches [ErrUnsupported]. A value that
// is too large is an error and changes nothing. After any other error others may see either value.
// Concurrent calls run one after the other.
func (l *Leadership) Proclaim(ctx context.Context, value string) error {
	return l.replaceOwner(ctx, func(o *Owner) { o.Value = value })
}

// Yield hands the leadership over to the next candidate, and campaigns again with the same value. It
// behaves like [Hold.Yield].
func (l *Leadership) Yield(ctx context.Context) (*Leadership, error) {
	hold, err := l.Hold.Yield(ctx)
	if err != nil {
		return nil, err
	}
	return &Leadership{hold}, nil
}

// Resign ends the leadership, so that the next candidate becomes leader. It is [Hold.Release].
func (l *Leadership) Resign(ctx context.Context) error { return l.Release(ctx) }

// A Leader is an election's leader, as others see it.
type Leader struct {
	// Value is what the leader has published.
	Value string
	// Token is the fencing token of the leader's hold, or zero if the store does not know one, as for
	// some foreign leaders. A later leader has a larger one.
	Token uint64
	// Owner describes the leader.
	Owner Owner
	// Foreign is true if a client other than Stile leads; then Value and Owner are empty.
	Foreign bool
	// Session is the ID of the leader's session in the store.
	Session string
}

// Leader returns the current leader, or nil if there is none. A reader of an [RWMutex] and a holder of
// a [Semaphore] of the same name are not leaders. With [Options.LockDelay] the leader may be a candidate
// whose Campaign has not returned yet. After [Hold.ReleaseAfter] the former leader is returned until that
// time has passed.
//
// When Leader returns, another one may lead already: to act only under a certain leader, let the resource
// check the token.
func (e *Election) Leader(ctx context.Context) (*Leader, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	l, err := e.locker.client.Line(ctx, e.locker.name)
	if err != nil {
		return nil, err
	}
	return leaderOf(l), nil
}

func (e *Election) check() error {
	if err := store.CheckName(e.locker.name); err != nil {
		return fmt.Errorf("stile: %w", err)
	}
	return nil
}

func leaderOf(l Line) *Leader {
	if len(l.Holders) == 0 || l.Holders[0].Mode != line.Exclusive {
		return nil
	}
	h := l.Holders[0]
	return &Leader{Value: h.Owner.Value, Token: h.Token, Owner: h.Owner, Foreign: h.Foreign, Session: h.Session}
}

// Observe yields the leader, at once and again each time that there is another leader or another
// value, until ctx ends or the loop is left. It yields nil if there is no leader. It skips what begins
// and ends between two readings of the line: there are at most ten a second, and none while the loop's
// body runs or the store is unreachable. It never skips the last leader or value.
//
// Together with an error it yields nil, although there may be a leader. If a reading failed, Observe
// continues, and yields the leader again after the next reading. Any other error is the last that it
// yields, as with [Client.WatchLines].
func (e *Election) Observe(ctx context.Context) iter.Seq2[*Leader, error] {
	return func(yield func(*Leader, error) bool) {
		if err := e.check(); err != nil {
			yield(nil, err)
			return
		}
		var last *Leader
		first := true
		for l, err := range e.locker.client.WatchLine(ctx, e.locker.name) {
			if err != nil {
				if !yield(nil, err) {
					return
				}
				first = true // the loop must learn who leads now
				continue
			}
			now := leaderOf(l)
			if !first && sameLeader(last, now) {
				continue
			}
			first, last = false, now
			if !yield(now, nil) {
				return
			}
		}
	}
}

func sameLeader(a, b *Leader) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Token == b.Token && a.Session == b.Session && a.Value == b.Value
}

const (
	// firstCampaignPause and maxCampaignPause bound the pause of [Election.Run] before it campaigns
	// again. The pause doubles.
	firstCampaignPause = 100 * time.Millisecond
	maxCampaignPause   = 5 * time.Second
)

// Run campaigns, and calls f when the caller leads. f's context ends with ctx and with the leadership; f
// must then return.
//
// If f returns while the caller leads, Run resigns, and returns f's error joined with that of the
// resignation. If f has resigned itself, Run returns f's error.
//
// If the leadership is lost, Run waits until f has returned, logs f's error, and campaigns again. So
// one call of Run never runs f twice at the same time, but another candidate may lead before f has
// returned. Run also campaigns again if Campaign fails because of the store. Before each further
// campaign it pauses, for up to five seconds.
//
// If ctx ends while f does not run, the error matches ctx.Err(). Run returns an error instead
// of campaigning again if another campaign would fail in the same way: the value is too large, or the error
// matches [ErrClosed], [ErrBadName], [ErrReentrant] or [ErrUnsupported]. An error that matches [ErrKind] also
// ends Run, unless the caller has led in this call of Run; then Run campaigns again.
func (e *Election) Run(ctx context.Context, value string, f func(ctx context.Context, l *Leadership) error) error {
	c := e.locker.client
	if err := checkOwner(e.candidate(value).owner()); err != nil {
		return lockError(e.locker.name, err)
	}
	pause, led := firstCampaignPause, false
	for {
		lead, err := e.Campaign(ctx, value)
		switch {
		case err == nil:
			pause, led = firstCampaignPause, true
			var lost bool
			if lost, err = runWith(ctx, lead.Hold, func(ctx context.Context) error { return f(ctx, lead) }); !lost {
				return err
			}
		case ctx.Err() != nil, permanent(err), !led && errors.Is(err, ErrKind):
			return err
		}
		c.log(slog.LevelWarn, "the leadership was lost, or a campaign failed; campaigning again", slog.String("lock", e.locker.name), slog.Any("error", err))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return lockError(e.locker.name, ctx.Err())
		}
		pause = min(2*pause, maxCampaignPause)
	}
}

// permanent reports whether another attempt to take a lock would fail with the same error.
func permanent(err error) bool {
	for _, target := range []error{ErrClosed, ErrBadName, ErrUnsupported, ErrReentrant} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
