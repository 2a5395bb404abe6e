//go:build !race

// The explorer has one goroutine: the race detector would find nothing in it, and make it ten times slower. So it is left
// out where that is on, and make test runs it by itself.

package keeper

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// exact are terms for clocks that are exact: the last moment at which a holder is valid is the one before its session
// may end. A request is due whenever none is under way, so that it is sent at every possible moment.
func exact(ttl time.Duration) Schedule {
	return Schedule{Valid: ttl, Every: 0, Attempt: 1, Retry: 0, Overdue: max(1, ttl/2)}
}

// withMargin are terms for clocks that lose up to one tick in a TTL.
func withMargin(ttl time.Duration) Schedule { return exact(ttl - 1) }

// mostStates is far above what any walk here needs; beyond it something is wrong with the model.
const maxStates = 4_000_000

// walk explores m completely and fails if anything is wrong.
func requireNoViolation(t *testing.T, m *model) {
	t.Helper()
	began := time.Now()
	x, err := explore(m, maxStates)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d states, %d steps, %v", len(x.nodes), x.events, time.Since(began).Round(time.Millisecond))
	if x.violation != "" {
		t.Fatalf("in %d steps:\n%s", x.steps(), x.trace())
	}
}

// find explores m and fails unless what it finds wrong contains want. It prints the shortest way there.
func requireViolation(t *testing.T, m *model, want string) {
	t.Helper()
	x, err := explore(m, maxStates)
	switch {
	case err != nil:
		t.Fatal(err)
	case x.violation == "":
		t.Fatalf("the planted mistake was not found in all %d states: the explorer is blind", len(x.nodes))
	case !strings.Contains(x.violation, want):
		t.Fatalf("found %q, want %q:\n%s", x.violation, want, x.trace())
	}
	t.Logf("found after %d states, in %d steps:\n%s", len(x.nodes), x.steps(), x.trace())
}

// mustHaveSeen fails if a model explored nothing of interest.
func requireSituations(t *testing.T, m *model, wanted ...situation) {
	t.Helper()
	if missing := m.missing(wanted...); len(missing) > 0 {
		t.Errorf("it never happened that\n\t%s", strings.Join(missing, "\n\t"))
	}
}

// The promise: whatever is late, lost, doubled, reported as failed or paused, and for however long, at most one
// conflicting hold is valid, a hold ends before anybody else can be let in, and what has ended does not come back.
// Promise: P1
func TestExplore_atMostOneHolds(t *testing.T) {
	always := []situation{
		clientHeld, handedOver, admittedAfterDeadline, admittedBehindPausedHolder, recoveredFromAtRisk, replyAfterDeadline,
		lateRenewalExtended, failedButCarriedOut, admissionReceivedAfterLoss,
	}
	t.Run("two clients", func(t *testing.T) {
		m := newModel(2, 4, exact(4))
		requireNoViolation(t, m)
		requireSituations(t, m, append(always, admittedAtHoldersDeadline)...)
	})
	t.Run("two clients, the clock of one loses as much as the margin allows", func(t *testing.T) {
		m := newModel(2, 4, withMargin(4))
		m.lag = 4
		requireNoViolation(t, m)
		requireSituations(t, m, append(always, admittedAtHoldersDeadline)...)
	})
	t.Run("two clients that begin again while their lost sessions linger in the store", func(t *testing.T) {
		m := newModel(2, 3, exact(3))
		m.oldSessions = true
		requireNoViolation(t, m)
		requireSituations(t, m, append(always, queuedBehindOwnOldEntry)...)
	})
	t.Run("three clients", func(t *testing.T) {
		m := newModel(3, 2, exact(2))
		requireNoViolation(t, m)
		requireSituations(t, m, append(always, admittedAtHoldersDeadline)...)
	})
}

// What the explorer takes for one state must have one future. It is shown on long random walks: of each state on the
// way, the states that can follow are those that can follow the first state that had the same key.
func TestExplore_equalKeysHaveEqualFutures(t *testing.T) {
	m := newModel(2, 3, withMargin(3))
	m.lag, m.revokes, m.evictions, m.writes, m.oldSessions = 3, true, true, true, true
	m.check = (*model).checkBroken
	all := m.events()
	after := func(w *modelState) []key {
		own := m.key(w)
		var keys []key
		var next modelState
		for _, e := range all {
			if m.possible(w, e) {
				m.step(w, e, &next)
				if k := m.key(&next); k != own {
					keys = append(keys, k)
				}
			}
		}
		slices.SortFunc(keys, func(a, b key) int { return slices.Compare(a[:], b[:]) })
		return slices.Compact(keys)
	}

	type firstState struct {
		state modelState
		after []key
	}
	known := make(map[key]firstState)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	again := 0
	for range 200 {
		w := m.initial()
		for range 500 {
			k := m.key(&w)
			if first, ok := known[k]; !ok {
				known[k] = firstState{w, after(&w)}
			} else if first.state != w {
				again++
				if got := after(&w); !slices.Equal(got, first.after) {
					t.Fatalf("seed %d: two states of one key can go on differently, in %d and %d ways:\n%+v\n%+v",
						seed, len(first.after), len(got), first.state, w)
				}
			}
			var next modelState
			for {
				if e := all[r.IntN(len(all))]; m.possible(&w, e) {
					m.step(&w, e, &next)
					w = next
					break
				}
			}
		}
	}
	t.Logf("%d different states had one of %d keys", again, len(known))
	if again < 1000 {
		t.Error("hardly any state was met again: this test has tested nothing")
	}
}

// The mistakes below are planted around the shipping lease. The explorer has to find each of them.

// Promise: P1
func TestExplore_findsDeadlineFromReply(t *testing.T) {
	fromReply := func(l *Lease, _, now Instant) { l.RequestConfirmed(now, now) }
	for clients := 2; clients <= maxClients; clients++ {
		m := newModel(clients, 2, exact(2))
		m.onConfirmed = fromReply
		m.check = (*model).checkOverlap
		requireViolation(t, m, "both hold")
	}
}

func TestExplore_findsFirstDeadlineFromReply(t *testing.T) {
	m := newModel(2, 3, exact(3))
	m.onOpened = func(schedule Schedule, _, now Instant) Lease { return NewLease(schedule, now, now) }
	m.check = (*model).checkOverlap
	requireViolation(t, m, "both hold")
}

func TestExplore_findsUnansweredRequestsThatCount(t *testing.T) {
	m := newModel(2, 3, exact(3))
	m.onFailed = func(l *Lease, sent, now Instant) { l.RequestConfirmed(sent, now) }
	m.check = (*model).checkOverlap
	requireViolation(t, m, "both hold")
}

// Promise: P1
func TestExplore_findsRepliesThatReviveSessions(t *testing.T) {
	raise := func(l *Lease, sent, now Instant) {
		l.RequestConfirmed(sent, now)
		if l.state == Lost && l.cause == Deadline {
			l.state, l.confirmed = Held, max(l.confirmed, sent)
		}
	}
	m := newModel(2, 3, exact(3))
	m.onConfirmed = raise
	requireViolation(t, m, "had ended and is valid again")

	m = newModel(2, 3, exact(3))
	m.onConfirmed = raise
	m.check = (*model).checkOverlap
	requireViolation(t, m, "both hold")
}

// The margin is as small as it can be: a clock that loses one tick more in a TTL than it covers breaks the promise,
// and so does a clock that it would cover if there were one.
// Promise: P1
func TestExplore_findsClocksBeyondTheMargin(t *testing.T) {
	m := newModel(2, 3, withMargin(3))
	m.lag = 2
	m.check = (*model).checkOverlap
	requireViolation(t, m, "both hold")

	m = newModel(2, 3, exact(3))
	m.lag = 3
	m.check = (*model).checkOverlap
	requireViolation(t, m, "both hold")
}

// A deadline is not enough where the store ends sessions that it has just confirmed, or where entries are removed by
// hand: two clients hold, until the news arrives.
func TestExplore_findsOverlapsOfBrokenStore(t *testing.T) {
	m := newModel(2, 3, exact(3))
	m.revokes = true
	m.check = (*model).checkOverlap
	requireViolation(t, m, "both hold")

	m = newModel(2, 3, exact(3))
	m.evictions = true
	m.check = (*model).checkOverlap
	requireViolation(t, m, "both hold")
}

// What remains then: the hold that was admitted later has the larger token, a resource that looks at tokens accepts
// no write of the other after one of it, and the overlap ends when the news of the loss arrives.
// Promise: P2
func TestExplore_tokensFenceWhatDeadlinesCannot(t *testing.T) {
	m := newModel(2, 1, exact(1)) // time matters little here, and the rest multiplies
	m.revokes, m.evictions, m.writes = true, true, true
	m.check = (*model).checkBroken
	requireNoViolation(t, m)
	requireSituations(t, m, clientHeld, overlapped, staleWriteRefused, expiryReported, handedOver, admittedAfterDeadline)
}

// Even if everybody keeps every promise, a write can be on its way for longer than its hold is valid.
// Promise: P2
func TestExplore_findsStaleWritesWithoutGuard(t *testing.T) {
	m := newModel(2, 3, exact(3))
	m.writes = true
	m.unguarded = true
	requireViolation(t, m, "accepted after one of a hold that was admitted later")

	m = newModel(2, 2, exact(2))
	m.writes = true
	requireNoViolation(t, m)
	requireSituations(t, m, staleWriteRefused)
}
