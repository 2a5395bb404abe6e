package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// subscriber receives from one channel, and subscribes again whenever the subscription ends.
type subscriber struct {
	active atomic.Bool // the subscription is confirmed and not lost

	cancel context.CancelFunc
	work   sync.WaitGroup
	once   sync.Once
	ready  chan struct{} // closed when the subscription is first confirmed, or is refused
	err    error         // the refusal; set before ready is closed
}

// subscribe starts a subscriber. It calls received with each message, and confirmed each time the
// server has confirmed the subscription. Both block the connection.
func (s *Store) subscribe(channel string, confirmed func(), received func(string)) *subscriber {
	ctx, cancel := context.WithCancel(context.Background())
	sub := &subscriber{cancel: cancel, ready: make(chan struct{})}
	sub.work.Go(func() { s.listen(ctx, sub, channel, confirmed, received) })
	return sub
}

// await waits until the subscription is first confirmed, and returns the error if it is not.
func (sub *subscriber) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, attempts.MaxDuration, errNoSuccess)
	defer cancel()
	select {
	case <-sub.ready:
		return sub.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop ends the subscription, and returns when no more callbacks run.
func (sub *subscriber) stop() {
	sub.cancel()
	sub.work.Wait()
}

func (s *Store) listen(ctx context.Context, sub *subscriber, channel string, confirmed func(), received func(string)) {
	_ = attempts.KeepUp(ctx, firstPause, func() error {
		err := s.server.listen(ctx, channel, func() {
			sub.active.Store(true)
			sub.once.Do(func() { close(sub.ready) })
			confirmed()
		}, received)
		sub.active.Store(false)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if refused(err) {
			sub.once.Do(func() {
				sub.err = fmt.Errorf("subscribe to channel %q: %w", channel, err)
				close(sub.ready)
				s.logger.LogAttrs(ctx, slog.LevelWarn, "SUBSCRIBE refused; trying again, and polling until then",
					slog.String("channel", channel), slog.Any("error", err))
			})
			return nil
		}
		if err == nil {
			err = errUnsubscribed
		}
		s.logger.LogAttrs(ctx, slog.LevelWarn, "subscription lost; subscribing again",
			slog.String("channel", channel), slog.Any("error", err))
		return nil
	})
}

// errUnsubscribed is logged if the server ended a subscription but not the connection, as a cluster does when
// the slot moves.
var errUnsubscribed = errors.New("the server ended it")

// received handles a message that the script has published.
func (s *Store) received(message string) {
	words := strings.Fields(message)
	if len(words) < 2 || s.dropMessages {
		return
	}
	s.mu.Lock()
	e := s.entries[words[1]]
	s.mu.Unlock()
	switch {
	case e == nil: // it was unregistered
	case words[0] == "in" && len(words) == 3:
		e.update(parseStanding(words[0], words[2], e))
	case words[0] == "gone" && len(words) == 3:
		e.update(store.Standing{State: store.Gone, Cause: e.goneErr(words[2])})
	case words[0] == "contended":
		e.callContended()
	}
}

// parseStanding returns the standing that the script gives as a word and a number.
func parseStanding(word, number string, e *entry) store.Standing {
	n, err := strconv.ParseUint(number, 10, 64)
	switch {
	case word != "in" && word != "wait":
		return store.Standing{State: store.Gone, Cause: e.goneErr("")}
	case err != nil || n == 0 || n > store.MaxOrder:
		return store.Standing{State: store.Gone, Cause: fmt.Errorf("%w: unexpected number %q in the server's reply", store.ErrGone, number)}
	case word == "in":
		return store.Standing{State: store.Admitted, Order: n}
	default:
		return store.Standing{State: store.Waiting, Ahead: int(n)}
	}
}

// goneErr returns the error for an entry that is not in its line, given the script's reason.
func (e *entry) goneErr(why string) error {
	what := map[string]string{
		"expired":   "its lease ended before it was renewed",
		"taken":     fmt.Sprintf("another client deleted or replaced the key %q", e.line.lock),
		"broken":    "another client removed it, as stile break does",
		"forgotten": "the server has lost its admission",
	}[why]
	if what == "" {
		what = "it is no longer in the line"
	}
	return fmt.Errorf("%w: %s", store.ErrGone, what)
}

var errVoid = errors.New("it was removed before the request to add it was carried out")
