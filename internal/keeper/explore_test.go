//go:build !race

// The explorer has one goroutine, so the race detector would find nothing in it and would make it
// ten times slower. It is therefore left out of race builds, and make test runs it separately.

package keeper

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// exact returns a schedule for exact clocks: a hold is valid until the last tick before its session
// may end. A request is due whenever none is in flight, so that the exploration includes every time
// of sending.
func exact(ttl time.Duration) Schedule {
	return Schedule{Validity: ttl, Interval: 0, AttemptTimeout: 1, RetryInterval: 0, OverdueAfter: max(1, ttl/2)}
}

// withMargin returns a schedule for clocks that lose at most one tick in a TTL.
func withMargin(ttl time.Duration) Schedule { return exact(ttl - 1) }

// maxStates is far more than any exploration here needs; exceeding it means a defect in the model.
const maxStates = 4_000_000

// requireNoViolation explores m completely and fails if a state violates the promises.
func requireNoViolation(t *testing.T, m *model) {
	t.Helper()
	began := time.Now()
	x, err := explore(m, maxStates)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d states, %d steps, %v", len(x.nodes), x.events, time.Since(began).Round(time.Millisecond))
	if x.violation != "" {
		t.Fatalf("violation after %d steps:\n%s", x.steps(), x.trace())
	}
}

// requireViolation explores m and fails unless it finds a violation that contains want. It logs the
// shortest path to it.
func requireViolation(t *testing.T, m *model, want string) {
	t.Helper()
	x, err := explore(m, maxStates)
	switch {
	case err != nil:
		t.Fatal(err)
	case x.violation == "":
		t.Fatalf("no violation in all %d states, want one because of the mistake in the model", len(x.nodes))
	case !strings.Contains(x.violation, want):
		t.Fatalf("violation: got %q, want %q:\n%s", x.violation, want, x.trace())
	}
	t.Logf("found after %d states, at a distance of %d steps:\n%s", len(x.nodes), x.steps(), x.trace())
}

// requireSituations fails if one of the situations did not occur in the exploration of m.
func requireSituations(t *testing.T, m *model, wanted ...situation) {
	t.Helper()
	if missing := m.missing(wanted...); len(missing) > 0 {
		t.Errorf("situations that did not occur:\n\t%s", strings.Join(missing, "\n\t"))
	}
}

// Messages can be late, lost, duplicated or wrongly reported as failed, and clients can be paused,
// for any time. At most one conflicting hold is valid, a hold ends before another entry can be
// admitted, and an ended hold does not become valid again.
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
	t.Run("two clients, one clock slow within the margin", func(t *testing.T) {
		m := newModel(2, 4, withMargin(4))
		m.lag = 4
		requireNoViolation(t, m)
		requireSituations(t, m, append(always, admittedAtHoldersDeadline)...)
	})
	t.Run("two clients, lost sessions still in the store", func(t *testing.T) {
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

// States with equal keys must have equal futures, because the explorer visits only one of them.
// Random walks check that the successors of each state have the same keys as the successors of the
// first state with its key.
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
	compared := 0
	for range 200 {
		w := m.initial()
		for range 500 {
			k := m.key(&w)
			if first, ok := known[k]; !ok {
				known[k] = firstState{w, after(&w)}
			} else if first.state != w {
				compared++
				if got := after(&w); !slices.Equal(got, first.after) {
					t.Fatalf("seed %d: two states with equal keys have different successors, %d and %d:\n%+v\n%+v",
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
	t.Logf("%d states had a known key, of %d keys", compared, len(known))
	if compared < 1000 {
		t.Error("fewer than 1000 states had a known key, so the test compared too little")
	}
}

// The tests below use the lease wrongly, or break an assumption. The explorer must find each
// violation.

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
	revive := func(l *Lease, sent, now Instant) {
		l.RequestConfirmed(sent, now)
		if l.state == Lost && l.cause == Deadline {
			l.state, l.confirmed = Held, max(l.confirmed, sent)
		}
	}
	m := newModel(2, 3, exact(3))
	m.onConfirmed = revive
	requireViolation(t, m, "had ended and is valid again")

	m = newModel(2, 3, exact(3))
	m.onConfirmed = revive
	m.check = (*model).checkOverlap
	requireViolation(t, m, "both hold")
}

// The margin is necessary and as small as possible: a clock that loses one tick more than the
// margin allows breaks the promise, and so does a clock within the margin if the schedule has none.
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

// Deadlines are not enough if the store ends sessions too early or an administrator removes
// entries: two clients hold until the notification arrives.
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

// Even then the hold that was admitted later has the larger token, a resource that checks tokens
// accepts no write of the earlier hold after one of the later, and the overlap ends when the
// notification of the loss arrives.
// Promise: P2
func TestExplore_tokensFenceWhatDeadlinesCannot(t *testing.T) {
	m := newModel(2, 1, exact(1)) // a small TTL, because the other options multiply the states
	m.revokes, m.evictions, m.writes = true, true, true
	m.check = (*model).checkBroken
	requireNoViolation(t, m)
	requireSituations(t, m, clientHeld, overlapped, staleWriteRefused, expiryReported, handedOver, admittedAfterDeadline)
}

// Even if the store and the clocks keep all promises, a write can be in flight for longer than its
// hold is valid.
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
