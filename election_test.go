package stile_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/memstore"
)

// campaign is wait with Campaign.
func campaign(ctx context.Context, t *testing.T, c *stile.Client, value string) *waiter {
	t.Helper()
	return waitWith(t, func() (*stile.Hold, error) {
		l, err := c.Election("a").Campaign(ctx, value)
		if err != nil {
			return nil, err
		}
		return l.Hold, nil
	})
}

func expectLeader(t *testing.T, c *stile.Client, value string, h *stile.Hold) {
	t.Helper()
	l, err := c.Election("a").Leader(t.Context())
	switch {
	case err != nil:
		t.Fatal(err)
	case l == nil:
		t.Fatalf("Leader: got nobody, want %q", value)
	case l.Value != value || l.Token != h.Token():
		t.Errorf("Leader: got %q with token %d, want %q with %d", l.Value, l.Token, value, h.Token())
	}
}

// A candidate that joins does not block; it leads in its turn.
func TestElection_join(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		first := campaign(t.Context(), t, ann, "ann").expectHoldNow()
		c, err := bob.Election("a").Join(t.Context(), "bob")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if c.Ahead() != 1 || closed(c.Ready()) {
			t.Errorf("behind the leader: got %d ahead, ready %v, want 1, false", c.Ahead(), closed(c.Ready()))
		}
		release(t, first)
		lead, err := c.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		expectLeader(t, ann, "bob", lead.Hold)
		if err := lead.Proclaim(t.Context(), "another"); err != nil {
			t.Fatal(err)
		}
		expectLeader(t, ann, "another", lead.Hold)
		release(t, lead.Hold)
		_, err = bob.Election("a").Join(t.Context(), strings.Repeat("x", stile.MaxOwnerBytes+1))
		if err == nil || !strings.Contains(err.Error(), "maximum") {
			t.Errorf("Join with too large a value: got error %v, want one with the maximum", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		holder := campaign(t.Context(), t, ann, "ann").expectHoldNow()
		c, err = bob.Election("a").Join(t.Context(), "bob")
		if err != nil {
			t.Fatal(err)
		}
		if lead, err := c.Wait(ctx); lead != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("Wait with a context that has ended: got %v, %v, want context.Canceled", lead, err)
		}
		if err := c.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		release(t, holder)
		w.expectLine("a")
	})
}

// Promise: P1, P3
func TestElection_inOrderOfArrival(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		if l, err := cid.Election("a").Leader(t.Context()); l != nil || err != nil {
			t.Errorf("Leader before the election: got %+v, %v, want nobody", l, err)
		}
		first := campaign(t.Context(), t, ann, "ann:80").expectHoldNow()
		second, third := campaign(t.Context(), t, bob, "bob:80"), campaign(t.Context(), t, cid, "")
		expectLeader(t, cid, "ann:80", first)
		release(t, first)
		h := second.expectHoldNow()
		expectLeader(t, ann, "bob:80", h)
		release(t, h)
		h = third.expectHoldNow()
		expectLeader(t, ann, "", h)
		release(t, h)
		if l, err := ann.Election("a").Leader(t.Context()); l != nil || err != nil {
			t.Errorf("Leader after the election: got %+v, %v, want nobody", l, err)
		}
	})
}

// A candidate whose session is lost while it waits goes on waiting, in a new session. It never leads
// by a session that has ended (tiflow 5753), and is not forgotten (charts 326).
// Promise: P1, P7
// Bug: CURATOR-653, charts #326
func TestElection_candidateSurvivesLostSession(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		leader := campaign(t.Context(), t, ann, "ann").expectHoldNow()
		candidate := campaign(t.Context(), t, bob, "bob")
		w.cut(w.session("bob"))
		time.Sleep(2 * ttl)
		candidate.expectWaiting()
		w.heal()
		eventuallyLine(t, w, "ann", "bob")
		release(t, leader)
		h := candidate.expectHold()
		expectLeader(t, ann, "bob", h)
		release(t, h)
	})
}

func eventuallyLine(t *testing.T, w *testEnv, want ...string) {
	t.Helper()
	for range 100 {
		if strings.Join(w.line("a"), " ") == strings.Join(want, " ") {
			return
		}
		time.Sleep(ttl / 10)
	}
	t.Fatalf("the line is %q, want %q", w.line("a"), want)
}

// An error of Campaign leaves no candidate (etcd #21128).
// Promise: P5
// Bug: etcd #21128, CURATOR-462
func TestElection_campaignGivenUp(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		leader := campaign(t.Context(), t, w.client("ann"), "ann").expectHoldNow()
		ctx, cancel := context.WithCancel(t.Context())
		candidate := campaign(ctx, t, w.client("bob"), "bob")
		cancel()
		candidate.expectFailure(context.Canceled)
		synctest.Wait()
		w.expectLine("a", "ann")
		release(t, leader)
	})
}

func TestElection_proclaim(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		lead, err := ann.Election("a").Campaign(t.Context(), "starting")
		if err != nil {
			t.Fatal(err)
		}
		if err := lead.Proclaim(t.Context(), "ready"); err != nil {
			t.Fatal(err)
		}
		if lead.Value() != "ready" {
			t.Errorf("Value: got %q, want ready", lead.Value())
		}
		expectLeader(t, bob, "ready", lead.Hold)
		time.Sleep(time.Minute) // when the lock was obtained is published in the background
		expectLeader(t, bob, "ready", lead.Hold)
		if err := lead.Proclaim(t.Context(), strings.Repeat("x", stile.MaxOwnerBytes)); err == nil || !strings.Contains(err.Error(), "owner") {
			t.Errorf("Proclaim of too much: got %v, want an error about the owner", err)
		}
		expectLeader(t, bob, "ready", lead.Hold)
		if err := lead.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		expectError(t, lead.Proclaim(t.Context(), "again"), stile.ErrReleased)
	})
}

// A leader that has lost cannot change what others read, even if it does not know about the loss.
// Promise: P6
func TestElection_proclaimAfterLoss(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		lead, err := ann.Election("a").Campaign(t.Context(), "ann")
		if err != nil {
			t.Fatal(err)
		}
		next := campaign(t.Context(), t, bob, "bob")
		w.faults(memstore.Fault{Delay: time.Hour}, on(memstore.Notify), w.session("ann"))
		w.evict("a", "ann")
		h := next.expectHoldNow()
		expectError(t, lead.Proclaim(t.Context(), "still ann"), stile.ErrLost)
		expectLost(t, lead.Hold, stile.LostEvicted)
		expectLeader(t, ann, "bob", h)
		w.heal()
		release(t, h)
	})
}

// Promise: P5
func TestElection_proclaimInOutage(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		lead, err := w.client("ann").Election("a").Campaign(t.Context(), "ann")
		if err != nil {
			t.Fatal(err)
		}
		w.faults(memstore.Fault{Drop: true}, on(memstore.SetOwner), w.session("ann"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		done := make(chan error)
		go func() { done <- lead.Proclaim(ctx, "second") }()
		time.Sleep(time.Millisecond)
		other, cancelOther := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancelOther()
		before := time.Now()
		expectError(t, lead.Proclaim(other, "third"), context.DeadlineExceeded)
		if d := time.Since(before); d > 2*time.Millisecond {
			t.Errorf("Proclaim waited for another one for %v, beyond its context", d)
		}
		expectError(t, <-done, context.DeadlineExceeded)
		w.heal()
		if err := lead.Proclaim(t.Context(), "fourth"); err != nil {
			t.Fatal(err)
		}
		expectLeader(t, w.client("bob"), "fourth", lead.Hold)
		if err := lead.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// A value that was published while a slow publication waits for its turn is not replaced by an older
// one.
func TestElection_proclaimDuringPublication(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		lead, err := w.client("ann").Election("a").Campaign(t.Context(), "first")
		if err != nil {
			t.Fatal(err)
		}
		w.faults(memstore.Fault{Delay: 2 * time.Second}, on(memstore.SetOwner), w.session("ann"))
		if err := lead.Proclaim(t.Context(), "second"); err != nil {
			t.Fatal(err)
		}
		w.heal()
		time.Sleep(time.Minute)
		expectLeader(t, w.client("bob"), "second", lead.Hold)
		if err := lead.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// The largest value that Campaign accepts can be proclaimed again, and a larger one is an error of
// both.
func TestElection_largestValue(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		e := w.client("ann").Election("a")
		size := stile.MaxOwnerBytes
		lead, err := e.Campaign(t.Context(), strings.Repeat("x", size))
		for ; err != nil; lead, err = e.Campaign(t.Context(), strings.Repeat("x", size)) {
			if size--; size < stile.MaxOwnerBytes/2 || !strings.Contains(err.Error(), "the owner") {
				t.Fatalf("Campaign with %d bytes: %v", size, err)
			}
		}
		if err := lead.Proclaim(t.Context(), strings.Repeat("y", size)); err != nil {
			t.Errorf("Proclaim of %d bytes: %v", size, err)
		}
		if err := lead.Proclaim(t.Context(), strings.Repeat("y", size+1)); err == nil {
			t.Errorf("Proclaim of %d bytes succeeded", size+1)
		}
		if err := lead.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// Readers and holders of slots are no leaders.
// Bug: etcd #18163
func TestElection_onlyWritersLead(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		for _, h := range []*stile.Hold{waitRead(t, c, "a").expectHoldNow(), nil} {
			if h == nil {
				h = waitSlot(t, c, "a", 2).expectHoldNow()
			}
			if l, err := c.Election("a").Leader(t.Context()); l != nil || err != nil {
				t.Errorf("Leader beside a hold of mode %v: got %+v, %v, want nobody", h.Mode(), l, err)
			}
			release(t, h)
		}
	})
}

// observed collects what Observe yields: values, "nobody" and "error".
type observed struct{ record[string] }

func observe(ctx context.Context, c *stile.Client) *observed {
	o := &observed{}
	go func() {
		for l, err := range c.Election("a").Observe(ctx) {
			switch {
			case err != nil:
				o.add("error")
			case l == nil:
				o.add("nobody")
			default:
				o.add(l.Value)
			}
		}
	}()
	return o
}

func (o *observed) expect(t *testing.T, want ...string) {
	t.Helper()
	time.Sleep(time.Second)
	if got := o.all(); strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("observed: got %q, want %q", got, want)
	}
}

// Observe says that nobody leads (etcd's cannot), and names only who was first in line (etcd #18163).
// Bug: etcd #18163, Observe in etcd
func TestElection_observe(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		o := observe(ctx, w.client("cid"))
		o.expect(t, "nobody")
		lead, err := ann.Election("a").Campaign(t.Context(), "ann")
		if err != nil {
			t.Fatal(err)
		}
		o.expect(t, "nobody", "ann")
		next := campaign(t.Context(), t, bob, "bob") // a new candidate is no news
		o.expect(t, "nobody", "ann")
		if err := lead.Proclaim(t.Context(), "ann again"); err != nil {
			t.Fatal(err)
		}
		o.expect(t, "nobody", "ann", "ann again")
		if err := lead.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		o.expect(t, "nobody", "ann", "ann again", "bob")
		same := campaign(t.Context(), t, ann, "bob")
		release(t, next.expectHoldNow())
		o.expect(t, "nobody", "ann", "ann again", "bob", "bob") // another leader with the same value
		release(t, same.expectHoldNow())
		o.expect(t, "nobody", "ann", "ann again", "bob", "bob", "nobody")
		stop()
	})
}

// Each of several observers, of several clients, learns of each change.
// Bug: redisson #5349, Observe in etcd
func TestElection_everyObserverIsNotified(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ctx, stop := context.WithCancel(t.Context())
		var observers []*observed
		for range 3 {
			c := w.client("observer")
			observers = append(observers, observe(ctx, c), observe(ctx, c))
		}
		time.Sleep(time.Second)
		lead, err := w.client("ann").Election("a").Campaign(t.Context(), "ann")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		release(t, lead.Hold)
		for _, o := range observers {
			o.expect(t, "nobody", "ann", "nobody")
		}
		stop()
	})
}

// After an outage Observe yields the leader again, even if it is the same.
func TestElection_observeDuringOutage(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		lead := campaign(t.Context(), t, w.client("ann"), "ann").expectHoldNow()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		o := observe(ctx, w.client("bob"))
		o.expect(t, "ann")
		w.faults(memstore.Fault{Err: errors.New("unreachable")}, on(memstore.Read))
		time.Sleep(time.Minute)
		w.heal()
		time.Sleep(time.Minute)
		got := slices.Compact(o.all())
		if !slices.Equal(got, []string{"ann", "error", "ann"}) {
			t.Errorf("observed: got %q, want ann, errors and ann", got)
		}
		stop()
		release(t, lead)
	})
}

func TestElection_badName(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		e := w.client("ann").Election("")
		_, err := e.Campaign(t.Context(), "")
		expectError(t, err, stile.ErrBadName)
		_, err = e.Leader(t.Context())
		expectError(t, err, stile.ErrBadName)
		for _, err := range e.Observe(t.Context()) {
			expectError(t, err, stile.ErrBadName)
		}
		err = e.Run(t.Context(), "", func(context.Context, *stile.Leadership) error { return nil })
		expectError(t, err, stile.ErrBadName)
	})
}

// Run returns what f returns, and has resigned by then.
func TestElectionRun_fReturns(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		failure := errors.New("failure")
		for _, want := range []error{nil, failure} {
			err := ann.Election("a").Run(t.Context(), "ann", func(ctx context.Context, l *stile.Leadership) error {
				if ctx.Err() != nil || !l.Valid() || l.Value() != "ann" {
					t.Errorf("f runs with %v, valid %v, value %q", ctx.Err(), l.Valid(), l.Value())
				}
				return want
			})
			if !errors.Is(err, want) {
				t.Errorf("Run: got %v, want %v", err, want)
			}
			w.expectLine("a")
		}
	})
}

// The work of a leader ends with its leadership, not with the process (kyverno 14984). Run campaigns
// again, but not before f has returned: two calls of f never overlap.
// Promise: P1, P6
// Bug: charts #326, kyverno #14984
func TestElectionRun_campaignsAgainAfterLoss(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var running, runs atomic.Int32
		interrupted := errors.New("interrupted")
		done := make(chan error, 1)
		go func() {
			done <- ann.Election("a").Run(ctx, "ann", func(ctx context.Context, _ *stile.Leadership) error {
				if running.Add(1) > 1 {
					t.Error("two calls of f overlap")
				}
				defer running.Add(-1)
				runs.Add(1)
				<-ctx.Done()
				time.Sleep(time.Minute) // f is slow to return
				return interrupted
			})
		}()
		synctest.Wait()
		w.evict("a", "ann")
		h := campaign(t.Context(), t, bob, "bob").expectHoldNow()
		time.Sleep(30 * time.Second)
		w.expectLine("a", "bob") // f has not returned
		time.Sleep(time.Minute)
		w.expectLine("a", "bob", "ann")
		release(t, h)
		synctest.Wait()
		if runs.Load() != 2 || running.Load() != 1 {
			t.Errorf("f: got %d calls, %d running, want 2 and 1", runs.Load(), running.Load())
		}
		select {
		case err := <-done:
			t.Fatalf("Run: got %v after a loss, want it to go on", err)
		default:
		}
		stop()
		expectError(t, <-done, interrupted)
	})
}

// The loss is found only by Proclaim or by the release, because the notification is late. It is a loss
// nevertheless.
// Promise: P7
// Bug: CURATOR-518
func TestElectionRun_lossFoundLate(t *testing.T) {
	for what, f := range map[string]func(context.Context, *stile.Leadership) error{
		"by Proclaim": func(ctx context.Context, l *stile.Leadership) error { return l.Proclaim(ctx, "another") },
		"by Run":      func(context.Context, *stile.Leadership) error { return nil },
	} {
		t.Run(what, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann := w.client("ann")
				runs := 0
				err := ann.Election("a").Run(t.Context(), "ann", func(ctx context.Context, l *stile.Leadership) error {
					if runs++; runs > 1 {
						w.heal()
						return nil
					}
					w.faults(memstore.Fault{Delay: time.Hour}, on(memstore.Notify), w.session("ann"))
					w.evict("a", "ann")
					return f(ctx, l)
				})
				if err != nil || runs != 2 {
					t.Errorf("Run: got %v after %d calls of f, want nil after 2", err, runs)
				}
			})
		})
	}
}

// After it has led, Run waits until a name that is in use for another kind of lock is free again.
func TestElectionRun_otherKindAfterLoss(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		runs := 0
		done := make(chan error, 1)
		go func() {
			done <- ann.Election("a").Run(t.Context(), "ann", func(ctx context.Context, _ *stile.Leadership) error {
				if runs++; runs == 1 {
					<-ctx.Done()
				}
				return nil
			})
		}()
		synctest.Wait()
		w.evict("a", "ann")
		slot := waitSlot(t, bob, "a", 2).expectHoldNow()
		time.Sleep(time.Minute)
		release(t, slot)
		time.Sleep(10 * time.Second)
		select {
		case err := <-done:
			if err != nil || runs != 2 {
				t.Errorf("Run: got %v after %d calls of f, want nil after 2", err, runs)
			}
		default:
			t.Fatal("Run has not led again")
		}
	})
}

// Run goes on campaigning while the store is unreachable.
// Promise: P7
// Bug: charts #326, CURATOR-518
func TestElectionRun_outage(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		w.faults(memstore.Fault{Err: errors.New("unreachable")}, on(memstore.Open))
		done := make(chan error, 1)
		go func() {
			done <- w.client("ann").Election("a").Run(t.Context(), "", func(context.Context, *stile.Leadership) error { return nil })
		}()
		time.Sleep(time.Hour)
		select {
		case err := <-done:
			t.Fatalf("Run: got %v, want it to go on", err)
		default:
		}
		w.heal()
		time.Sleep(10 * time.Second)
		if err := <-done; err != nil {
			t.Errorf("Run: got %v", err)
		}
	})
}

// Bug: CURATOR-518
func TestElectionRun_contextEnds(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		leader := campaign(t.Context(), t, w.client("bob"), "bob").expectHoldNow()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := w.client("ann").Election("a").Run(ctx, "ann", func(context.Context, *stile.Leadership) error {
			t.Error("f was called")
			return nil
		})
		expectError(t, err, context.DeadlineExceeded)
		release(t, leader)
		w.expectLine("a")
	})
}

// Bug: CURATOR-518
func TestElectionRun_errorsThatRepetitionDoesNotHelp(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		f := func(context.Context, *stile.Leadership) error { return nil }
		e := ann.Election("a")
		if err := e.Run(t.Context(), strings.Repeat("x", stile.MaxOwnerBytes), f); err == nil || !strings.Contains(err.Error(), "owner") {
			t.Errorf("Run with too large a value: got %v, want an error about the owner", err)
		}
		slot := waitSlot(t, ann, "a", 2).expectHoldNow()
		expectError(t, e.Run(t.Context(), "", f), stile.ErrKind)
		expectError(t, ann.Election("b").Run(t.Context(), "", func(ctx context.Context, _ *stile.Leadership) error {
			return ann.Election("b").Run(ctx, "", f)
		}), stile.ErrReentrant)
		release(t, slot)
		if err := ann.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		expectError(t, e.Run(t.Context(), "", f), stile.ErrClosed)
	})
}
