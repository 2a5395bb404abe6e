package keeper

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stilelock/stile/store"
)

// In the tests below a TTL of 30 s is granted. A confirmation is then good for 27 s, renewed every 9 s, overdue after
// 13.5 s; a failed request is made again after 0.9 s.
var schedule30 = ScheduleFor(store.Terms{TTL: 30 * time.Second})

// at is the instant that many seconds after the beginning.
func at(seconds float64) Instant { return Instant(seconds * float64(time.Second)) }

func TestScheduleFor(t *testing.T) {
	tests := []struct {
		granted store.Terms
		want    Schedule
	}{
		{
			store.Terms{TTL: 30 * time.Second},
			Schedule{
				Valid: 27 * time.Second, Every: 9 * time.Second, Attempt: 5400 * time.Millisecond,
				Retry: 900 * time.Millisecond, Overdue: 13500 * time.Millisecond,
			},
		},
		{
			store.Terms{TTL: 30 * time.Second, Slack: 10 * time.Second}, // ZooKeeper
			Schedule{
				Valid: 17 * time.Second, Every: 17 * time.Second / 3, Attempt: 3400 * time.Millisecond,
				Retry: 17 * time.Second / 30, Overdue: 8500 * time.Millisecond,
			},
		},
	}
	own := store.Terms{TTL: 30 * time.Second, Slack: 10 * time.Second, Attempt: 9 * time.Second}
	if got, want := ScheduleFor(own), ScheduleFor(tests[1].granted); got.Attempt != own.Attempt || got.Valid != want.Valid ||
		got.Every != want.Every || got.Retry != want.Retry {
		t.Errorf("%+v give %+v, want but for the attempts %+v", own, got, want)
	}
	for _, tt := range tests {
		got := ScheduleFor(tt.granted)
		if got != tt.want {
			t.Errorf("%+v give\n\t%+v, want\n\t%+v", tt.granted, got, tt.want)
		}
		if two := got.Every + 2*(got.Attempt+got.Retry); two >= got.Valid {
			t.Errorf("%+v: after two failed requests, at %v, all is lost at %v", tt.granted, two, got.Valid)
		}
	}
}

// Each scenario is a life of a lease: what it is told at which second, and how it stands then.
func TestLease(t *testing.T) {
	const never = -1 // no deadline: it is lost
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
		reason       Reason // 0 if it is not lost
	}{
		{"the deadline counts from before the session was asked for", 0, 5, []step{
			{5, "looks", advance, Held, 27},
		}, 0},
		{"a session that took too long to open is lost from the beginning", 0, 27, []step{
			{27, "looks", advance, Lost, never},
		}, Deadline},
		{"a session that took long to open is at risk from the beginning", 0, 14, []step{
			{14, "looks", advance, AtRisk, 27},
		}, 0},
		{"the deadline moves on with each renewal, and counts from its sending", 0, 0, []step{
			{9, "asks", send, Held, 27},
			{13, "is answered", confirm(9), Held, 36},
			{18, "asks", send, Held, 36},
			{18.2, "is answered", confirm(18), Held, 45},
		}, 0},
		{"a late reply to an early request does not move the deadline back", 0, 0, []step{
			{9, "asks", send, Held, 27},
			{14, "gives up", fail, AtRisk, 27},
			{15, "asks", send, AtRisk, 27},
			{16, "is answered", confirm(15), Held, 42},
			{17, "is answered late", confirm(9), Held, 42},
		}, 0},
		{"a late reply that helps less than none would be needed to recover", 0, 0, []step{
			{9, "asks", send, Held, 27},
			{25, "is answered, but it is at risk counted from 9 too", confirm(9), AtRisk, 36},
		}, 0},
		{"a failed request loses nothing", 0, 0, []step{
			{9, "asks", send, Held, 27},
			{10, "fails", fail, Held, 27},
			{10.9, "asks", send, Held, 27},
			{11, "fails", fail, Held, 27},
			{26.9, "looks", advance, AtRisk, 27},
		}, 0},
		{"at risk when overdue, and held again when confirmed", 0, 0, []step{
			{13.4, "looks", advance, Held, 27},
			{13.5, "looks", advance, AtRisk, 27},
			{20, "asks", send, AtRisk, 27},
			{21, "is answered", confirm(20), Held, 47},
			{33.4, "looks", advance, Held, 47},
			{33.5, "looks", advance, AtRisk, 47},
		}, 0},
		{"lost at the deadline, not a moment later", 0, 0, []step{
			{26.999, "looks", advance, AtRisk, 27},
			{27, "looks", advance, Lost, never},
		}, Deadline},
		{"a reply after the deadline does not bring it back", 0, 0, []step{
			{20, "asks", send, AtRisk, 27},
			{28, "is answered", confirm(20), Lost, never},
			{29, "looks", advance, Lost, never},
		}, Deadline},
		{"nor does a reply at the deadline", 0, 0, []step{
			{20, "asks", send, AtRisk, 27},
			{27, "is answered", confirm(20), Lost, never},
		}, Deadline},
		{"nor does a reply after the store said that it has ended", 0, 0, []step{
			{9, "asks", send, Held, 27},
			{10, "is told", end(Expired), Lost, never},
			{11, "is answered", confirm(9), Lost, never},
		}, Expired},
		{"a request that fails after the deadline changes nothing", 0, 0, []step{
			{20, "asks", send, AtRisk, 27},
			{28, "fails", fail, Lost, never},
		}, Deadline},
		{"it is lost once: the first reason stands", 0, 0, []step{
			{9, "is told", end(Expired), Lost, never},
			{10, "is closed", end(Closed), Lost, never},
			{40, "looks", advance, Lost, never},
		}, Expired},
		{"a deadline that has passed is the reason, whatever is told afterwards", 0, 0, []step{
			{28, "is told", end(Expired), Lost, never},
		}, Deadline},
		{"its entry can be taken from it", 0, 0, []step{{1, "is told", end(Evicted), Lost, never}}, Evicted},
		{"it can be closed", 0, 0, []step{{1, "is closed", end(Closed), Lost, never}}, Closed},
	}
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			l := NewLease(schedule30, at(sc.sent), at(sc.opened))
			for _, s := range sc.steps {
				now := at(s.at)
				s.do(&l, now)
				if l.State() != s.state {
					t.Errorf("at %v it %s, and is %v, want %v", s.at, s.what, l.State(), s.state)
				}
				if got, want := l.ValidAt(now), s.state != Lost; got != want {
					t.Errorf("at %v it %s, and is valid: %v, want %v", s.at, s.what, got, want)
				}
				if s.deadline != never && l.Deadline() != at(s.deadline) {
					t.Errorf("at %v it %s, and its deadline is %v, want %v s", s.at, s.what, time.Duration(l.Deadline()), s.deadline)
				}
			}
			if l.Reason() != sc.reason {
				t.Errorf("it was lost because %v, want %v", l.Reason(), sc.reason)
			}
		})
	}
}

// Time alone ends validity: nobody needs to have told the lease what time it is.
func TestLease_notValidAfterDeadline(t *testing.T) {
	l := NewLease(schedule30, at(0), at(0))
	if !l.ValidAt(at(26.999)) || l.ValidAt(at(27)) {
		t.Errorf("valid just before the deadline: %v, at it: %v", l.ValidAt(at(26.999)), l.ValidAt(at(27)))
	}
}

func TestLease_Due(t *testing.T) {
	due := func(l Lease, seconds float64, want bool) {
		t.Helper()
		if got := l.Due(at(seconds)); got != want {
			t.Errorf("at %v a request is due: %v, want %v", seconds, got, want)
		}
	}
	l := NewLease(schedule30, at(0), at(1))
	due(l, 8.9, false)
	due(l, 9, true)
	l.RequestSent(at(9))
	due(l, 20, false) // one at a time
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

// randomLife tells a lease random things at random times, in the order of time, and lets check look after each. The
// durations are so small that things coincide all the time.
func runRandomEvents(r *rand.Rand, schedule Schedule, from Instant, check func(l Lease, now Instant)) {
	now := from
	l := NewLease(schedule, now, now.Add(time.Duration(r.IntN(3))))
	sent := now
	for range 40 {
		now = now.Add(time.Duration(r.IntN(4)))
		if r.IntN(2) == 0 {
			now = max(now, l.Wake()) // what the runner does
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
	return Schedule{Valid: valid, Every: d(), Attempt: d(), Retry: d(), Overdue: min(d(), valid)}
}

// The runner sleeps until Wake. It must neither sleep past anything, nor wake up for nothing: until then time changes
// nothing, and then it does.
func TestLease_Wake(t *testing.T) {
	seed := rand.Uint64()
	for i := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, i))
		runRandomEvents(r, randomSchedule(r), 0, func(l Lease, now Instant) {
			l.Advance(now)
			if l.State() == Lost || l.Due(now) {
				return // there is something to do now
			}
			wake := l.Wake()
			if wake <= now {
				t.Fatalf("seed %d, %d: at %d there is nothing to do, but Wake is %d: the runner would not sleep\n%+v",
					seed, i, now, wake, l)
			}
			for instant := now; instant < wake; instant++ {
				later := l
				later.Advance(instant)
				if later != l || later.Due(instant) || !later.ValidAt(instant) {
					t.Fatalf("seed %d, %d: at %d something happens, but Wake is %d: the runner would sleep past it\n%+v",
						seed, i, instant, wake, l)
				}
			}
			later := l
			if later.Advance(wake); later == l && !later.Due(wake) {
				t.Fatalf("seed %d, %d: Wake is %d, but nothing happens then\n%+v", seed, i, wake, l)
			}
		})
	}
}

// A lease knows no other time than how long ago things were. The explorer relies on it.
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
				t.Fatalf("seed %d, %d: after %d steps\n%+v, want\n%+v", seed, i, at, l, want)
			}
			at++
		})
	}
}

// Validity ends once, and reasons do not change.
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
				t.Fatalf("seed %d, %d: lost because %v, and then because %v", seed, i, reason, l.Reason())
			}
			if (l.State() == Lost) != (l.Reason() != 0) {
				t.Fatalf("seed %d, %d: %v for the reason %d", seed, i, l.State(), l.Reason())
			}
			valid, reason = valid && l.ValidAt(now), l.Reason()
			if !valid {
				lost++
			}
		})
	}
	if lost == 0 {
		t.Error("no lease was ever lost: this test has tested nothing")
	}
}

func TestState_String(t *testing.T) {
	for s, want := range map[State]string{Held: "held", AtRisk: "at risk", Lost: "lost"} {
		if got := s.String(); got != want {
			t.Errorf("%d is %q, want %q", s, got, want)
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
			"lock lost: its entry was taken out of the store: entry gone",
		},
		{&LostError{Reason: Closed}, "lock lost: the client was closed"},
		{&LostError{}, "lock lost: unknown reason"},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
		if !errors.Is(tt.err, ErrLost) {
			t.Errorf("%q does not match ErrLost", tt.err)
		}
		if tt.err.Err != nil && !errors.Is(tt.err, tt.err.Err) {
			t.Errorf("%q does not match what was heard", tt.err)
		}
	}
}
