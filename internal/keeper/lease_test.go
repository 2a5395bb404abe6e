package keeper

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stilelock/stile/store"
)

// schedule30 is the schedule for a TTL of 30 s: a confirmation is valid for 27 s, renewals are sent
// every 9 s and overdue after 13.5 s, and a failed request is retried after 0.9 s.
var schedule30 = ScheduleFor(store.Terms{TTL: 30 * time.Second})

// at returns the instant that many seconds after the start.
func at(seconds float64) Instant { return Instant(seconds * float64(time.Second)) }

func TestScheduleFor(t *testing.T) {
	tests := []struct {
		granted store.Terms
		want    Schedule
	}{
		{
			store.Terms{TTL: 30 * time.Second},
			Schedule{
				Validity: 27 * time.Second, Interval: 9 * time.Second, AttemptTimeout: 5400 * time.Millisecond,
				RetryInterval: 900 * time.Millisecond, OverdueAfter: 13500 * time.Millisecond,
			},
		},
		{
			store.Terms{TTL: 30 * time.Second, Slack: 10 * time.Second}, // ZooKeeper
			Schedule{
				Validity: 17 * time.Second, Interval: 17 * time.Second / 3, AttemptTimeout: 3400 * time.Millisecond,
				RetryInterval: 17 * time.Second / 30, OverdueAfter: 8500 * time.Millisecond,
			},
		},
	}
	own := store.Terms{TTL: 30 * time.Second, Slack: 10 * time.Second, Attempt: 9 * time.Second}
	if got, want := ScheduleFor(own), ScheduleFor(tests[1].granted); got.AttemptTimeout != own.Attempt || got.Validity != want.Validity ||
		got.Interval != want.Interval || got.RetryInterval != want.RetryInterval {
		t.Errorf("schedule for %+v: got %+v, want its Attempt and otherwise %+v", own, got, want)
	}
	for _, tt := range tests {
		got := ScheduleFor(tt.granted)
		if got != tt.want {
			t.Errorf("schedule for %+v: got\n\t%+v, want\n\t%+v", tt.granted, got, tt.want)
		}
		if two := got.Interval + 2*(got.AttemptTimeout+got.RetryInterval); two >= got.Validity {
			t.Errorf("schedule for %+v: two failed requests take until %v, want less than %v", tt.granted, two, got.Validity)
		}
	}
}

// Each scenario lists events at given seconds, and the state and deadline of the lease after them.
func TestLease(t *testing.T) {
	const never = -1 // no deadline, because the lease is lost
	type step struct {
		at       float64
		what     string
		do       func(l *Lease, now Instant)
		state    State
		deadline float64
	}
	send := func(l *Lease, now Instant) { l.RequestSent(now) }
	advance := func(l *Lease, now Instant) { l.Advance(now) }
	fail := func(l *Lease, now Instant) { l.RequestFailed(now) }
	confirm := func(sent float64) func(*Lease, Instant) {
		return func(l *Lease, now Instant) { l.RequestConfirmed(at(sent), now) }
	}
	end := func(r Reason) func(*Lease, Instant) {
		return func(l *Lease, now Instant) { l.End(r, now) }
	}
	scenarios := []struct {
		name         string
		sent, opened float64
		steps        []step
		reason       Reason // zero if not lost
	}{
		{"the first deadline counts from the request", 0, 5, []step{
			{5, "advances", advance, Held, 27},
		}, 0},
		{"a session that takes until the deadline to open is lost", 0, 27, []step{
			{27, "advances", advance, Lost, never},
		}, Deadline},
		{"a session that takes until overdue to open is at risk", 0, 14, []step{
			{14, "advances", advance, AtRisk, 27},
		}, 0},
		{"the deadline counts from sending the last confirmed renewal", 0, 0, []step{
			{9, "sends a request", send, Held, 27},
			{13, "is confirmed", confirm(9), Held, 36},
			{18, "sends a request", send, Held, 36},
			{18.2, "is confirmed", confirm(18), Held, 45},
		}, 0},
		{"a late reply to an early request does not move the deadline back", 0, 0, []step{
			{9, "sends a request", send, Held, 27},
			{14, "times out", fail, AtRisk, 27},
			{15, "sends a request", send, AtRisk, 27},
			{16, "is confirmed", confirm(15), Held, 42},
			{17, "is confirmed late", confirm(9), Held, 42},
		}, 0},
		{"a late reply to an old request leaves the lease at risk", 0, 0, []step{
			{9, "sends a request", send, Held, 27},
			{25, "is confirmed, but is overdue counted from 9, too", confirm(9), AtRisk, 36},
		}, 0},
		{"a failed request changes nothing before the deadline", 0, 0, []step{
			{9, "sends a request", send, Held, 27},
			{10, "fails", fail, Held, 27},
			{10.9, "sends a request", send, Held, 27},
			{11, "fails", fail, Held, 27},
			{26.9, "advances", advance, AtRisk, 27},
		}, 0},
		{"at risk when overdue, held when confirmed", 0, 0, []step{
			{13.4, "advances", advance, Held, 27},
			{13.5, "advances", advance, AtRisk, 27},
			{20, "sends a request", send, AtRisk, 27},
			{21, "is confirmed", confirm(20), Held, 47},
			{33.4, "advances", advance, Held, 47},
			{33.5, "advances", advance, AtRisk, 47},
		}, 0},
		{"lost exactly at the deadline", 0, 0, []step{
			{26.999, "advances", advance, AtRisk, 27},
			{27, "advances", advance, Lost, never},
		}, Deadline},
		{"a reply after the deadline does not undo the loss", 0, 0, []step{
			{20, "sends a request", send, AtRisk, 27},
			{28, "is confirmed", confirm(20), Lost, never},
			{29, "advances", advance, Lost, never},
		}, Deadline},
		{"a reply at the deadline does not prevent the loss", 0, 0, []step{
			{20, "sends a request", send, AtRisk, 27},
			{27, "is confirmed", confirm(20), Lost, never},
		}, Deadline},
		{"a reply after the store's report does not undo the loss", 0, 0, []step{
			{9, "sends a request", send, Held, 27},
			{10, "is ended", end(Expired), Lost, never},
			{11, "is confirmed", confirm(9), Lost, never},
		}, Expired},
		{"a request that fails after the deadline changes nothing", 0, 0, []step{
			{20, "sends a request", send, AtRisk, 27},
			{28, "fails", fail, Lost, never},
		}, Deadline},
		{"the first reason stays", 0, 0, []step{
			{9, "is ended", end(Expired), Lost, never},
			{10, "is closed", end(Closed), Lost, never},
			{40, "advances", advance, Lost, never},
		}, Expired},
		{"a passed deadline is the reason, whatever is reported later", 0, 0, []step{
			{28, "is ended", end(Expired), Lost, never},
		}, Deadline},
		{"evicted", 0, 0, []step{{1, "is ended", end(Evicted), Lost, never}}, Evicted},
		{"closed", 0, 0, []step{{1, "is closed", end(Closed), Lost, never}}, Closed},
	}
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			l := NewLease(schedule30, at(sc.sent), at(sc.opened))
			for _, s := range sc.steps {
				now := at(s.at)
				s.do(&l, now)
				if l.State() != s.state {
					t.Errorf("at %v (%s): got state %v, want %v", s.at, s.what, l.State(), s.state)
				}
				if got, want := l.ValidAt(now), s.state != Lost; got != want {
					t.Errorf("at %v (%s): got valid %v, want %v", s.at, s.what, got, want)
				}
				if s.deadline != never && l.Deadline() != at(s.deadline) {
					t.Errorf("at %v (%s): got deadline %v, want %vs", s.at, s.what, time.Duration(l.Deadline()), s.deadline)
				}
			}
			if l.Reason() != sc.reason {
				t.Errorf("reason: got %q, want %q", l.Reason(), sc.reason)
			}
		})
	}
}

// ValidAt is false after the deadline even if the lease was not advanced.
func TestLease_notValidAfterDeadline(t *testing.T) {
	l := NewLease(schedule30, at(0), at(0))
	if !l.ValidAt(at(26.999)) || l.ValidAt(at(27)) {
		t.Errorf("got valid %v just before the deadline and %v at it, want true and false", l.ValidAt(at(26.999)), l.ValidAt(at(27)))
	}
}

func TestLease_Due(t *testing.T) {
	due := func(l Lease, seconds float64, want bool) {
		t.Helper()
		if got := l.Due(at(seconds)); got != want {
			t.Errorf("Due at %v: got %v, want %v", seconds, got, want)
		}
	}
	l := NewLease(schedule30, at(0), at(1))
	due(l, 8.9, false)
	due(l, 9, true)
	l.RequestSent(at(9))
	due(l, 20, false) // one request at a time
	l.RequestFailed(at(14.4))
	due(l, 15.2, false)
	due(l, 15.3, true)
	l.RequestSent(at(15.3))
	l.RequestConfirmed(at(15.3), at(16))
	due(l, 24.2, false)
	due(l, 24.3, true)
	l.End(Closed, at(24.3))
	due(l, 24.3, false)
}

// runRandomEvents records random events in a lease, at random increasing times, and calls check
// after each. The durations are so small that events often coincide.
func runRandomEvents(r *rand.Rand, schedule Schedule, from Instant, check func(l Lease, now Instant)) {
	now := from
	l := NewLease(schedule, now, now.Add(time.Duration(r.IntN(3))))
	sent := now
	for range 40 {
		now = now.Add(time.Duration(r.IntN(4)))
		if r.IntN(2) == 0 {
			now = max(now, l.Wake()) // as Session.run does
		}
		switch r.IntN(8) {
		case 0, 1, 2:
			if l.Advance(now); l.Due(now) {
				l.RequestSent(now)
				sent = now
			}
		case 3, 4:
			if l.inFlight {
				l.RequestConfirmed(sent, now)
			}
		case 5:
			if l.inFlight {
				l.RequestFailed(now)
			}
		case 6:
			l.Advance(now)
		case 7:
			if r.IntN(10) == 0 {
				l.End(Expired, now)
			}
		}
		check(l, now)
	}
}

func randomSchedule(r *rand.Rand) Schedule {
	d := func() time.Duration { return time.Duration(1 + r.IntN(6)) }
	valid := 2 + d()
	return Schedule{Validity: valid, Interval: d(), AttemptTimeout: d(), RetryInterval: d(), OverdueAfter: min(d(), valid)}
}

// Session.run sleeps until Wake. Before that time nothing changes and no request is due; at that
// time something does.
func TestLease_Wake(t *testing.T) {
	seed := rand.Uint64()
	for i := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, i))
		runRandomEvents(r, randomSchedule(r), 0, func(l Lease, now Instant) {
			l.Advance(now)
			if l.State() == Lost || l.Due(now) {
				return // nothing to wait for
			}
			wake := l.Wake()
			if wake <= now {
				t.Fatalf("seed %d, %d: at %d nothing is due, but Wake is %d, want a later time\n%+v",
					seed, i, now, wake, l)
			}
			for instant := now; instant < wake; instant++ {
				later := l
				later.Advance(instant)
				if later != l || later.Due(instant) || !later.ValidAt(instant) {
					t.Fatalf("seed %d, %d: at %d the lease changes or a request is due, but Wake is %d\n%+v",
						seed, i, instant, wake, l)
				}
			}
			later := l
			if later.Advance(wake); later == l && !later.Due(wake) {
				t.Fatalf("seed %d, %d: Wake is %d, but nothing changes or is due then\n%+v", seed, i, wake, l)
			}
		})
	}
}

// A lease depends only on time differences, not on absolute times. The explorer relies on this.
func TestLease_sameAtAllTimes(t *testing.T) {
	const shift = 1_000_003
	seed := rand.Uint64()
	for i := range uint64(5_000) {
		schedule := randomSchedule(rand.New(rand.NewPCG(seed, i)))
		var early []Lease
		runRandomEvents(rand.New(rand.NewPCG(seed, i)), schedule, 0, func(l Lease, _ Instant) { early = append(early, l) })
		at := 0
		runRandomEvents(rand.New(rand.NewPCG(seed, i)), schedule, shift, func(l Lease, _ Instant) {
			want := early[at]
			want.confirmed += shift
			want.next += shift
			if l != want {
				t.Fatalf("seed %d, %d: after %d steps: got\n%+v, want\n%+v", seed, i, at, l, want)
			}
			at++
		})
	}
}

// Validity ends only once, and the reason does not change.
func TestLease_endsOnce(t *testing.T) {
	seed := rand.Uint64()
	lost := 0
	for i := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, i))
		valid, reason := true, Reason(0)
		runRandomEvents(r, randomSchedule(r), 0, func(l Lease, now Instant) {
			if !valid && l.ValidAt(now) {
				t.Fatalf("seed %d, %d: valid again at %d\n%+v", seed, i, now, l)
			}
			if reason != 0 && l.Reason() != reason {
				t.Fatalf("seed %d, %d: the reason changed from %q to %q", seed, i, reason, l.Reason())
			}
			if (l.State() == Lost) != (l.Reason() != 0) {
				t.Fatalf("seed %d, %d: got the state %v with the reason %d", seed, i, l.State(), l.Reason())
			}
			valid, reason = valid && l.ValidAt(now), l.Reason()
			if !valid {
				lost++
			}
		})
	}
	if lost == 0 {
		t.Error("no lease was lost in any run")
	}
}

func TestState_String(t *testing.T) {
	for s, want := range map[State]string{Held: "held", AtRisk: "at risk", Lost: "lost"} {
		if got := s.String(); got != want {
			t.Errorf("String of %d: got %q, want %q", s, got, want)
		}
	}
}

func TestLostError(t *testing.T) {
	refused := errors.New("etcd 10.0.0.1: connection refused")
	tests := []struct {
		err  *LostError
		want string
	}{
		{
			&LostError{Reason: Deadline, Err: refused},
			"lock lost: its session was not confirmed in time: etcd 10.0.0.1: connection refused",
		},
		{&LostError{Reason: Deadline}, "lock lost: its session was not confirmed in time"},
		{
			&LostError{Reason: Expired, Err: store.ErrSessionLost},
			"lock lost: its session has ended in the store: session lost",
		},
		{
			&LostError{Reason: Evicted, Err: store.ErrGone},
			"lock lost: its entry was removed from the store: entry gone",
		},
		{&LostError{Reason: Closed}, "lock lost: the client was closed"},
		{&LostError{}, "lock lost: unknown reason"},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("Error: got %q, want %q", got, tt.want)
		}
		if !errors.Is(tt.err, ErrLost) {
			t.Errorf("%q does not match ErrLost", tt.err)
		}
		if tt.err.Err != nil && !errors.Is(tt.err, tt.err.Err) {
			t.Errorf("%q does not match its Err", tt.err)
		}
	}
}
