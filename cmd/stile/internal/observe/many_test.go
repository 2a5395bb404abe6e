package observe

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
)

func holding(name, session string, token uint64) stile.Line {
	return stile.Line{Name: name, Holders: []stile.Entry{{Session: session, Token: token}}, Waiters: []stile.Entry{}}
}

// Every session's lease is read, however many there are.
func TestObserver_leasesOfManySessions(t *testing.T) {
	o := NewWithPrefix(nil, "")
	begin := time.Now()
	var lines []stile.Line
	for i := range 2000 {
		lines = append(lines, holding(fmt.Sprint("l", i), fmt.Sprint("s", i), uint64(i+1)))
	}
	o.apply(stile.Change{Lines: lines, All: true, Exact: true, At: begin}, begin)
	o.status.Read = true
	read := make(map[string]bool)
	for at := begin; at.Before(begin.Add(3 * time.Minute)); at = at.Add(sampleInterval) {
		for _, name := range o.samples(at, sampleBudget) {
			read[name] = true
			l := o.lines[name].line
			l = clone(l)
			l.Holders[0].Remaining = time.Hour // long leases: each is read once
			o.leases.confirm(l, at)
		}
	}
	if len(read) != len(lines) {
		t.Errorf("%d of %d leases were read in three minutes", len(read), len(lines))
	}
}

// A change that is applied late does not charge again what Blame has charged since.
func TestBlame_lateChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, begin := New(nil), time.Now()
		line := holding("a", "ann", 1)
		line.Waiters = []stile.Entry{{Session: "bob", Token: 2}}
		apply := func(at time.Time) {
			o.apply(stile.Change{Lines: []stile.Line{line}, Exact: true, At: at}, at)
		}
		apply(begin)
		time.Sleep(10 * time.Second)
		o.Blame()
		line.Limit = 1
		apply(begin.Add(5 * time.Second))
		time.Sleep(time.Second)
		if _, blame := o.Blame(); len(blame) != 1 || blame[0].Waited > 11*time.Second {
			t.Errorf("got %+v, want at most the 11s that bob has waited", blame)
		}
	})
}

// A reader that has missed events is told so.
func TestObserver_updatesOfBusyLock(t *testing.T) {
	o := NewWithPrefix(nil, "")
	now := time.Now()
	o.apply(stile.Change{All: true, Exact: true, At: now}, now)
	o.status.Read = true
	const n = 400
	for i := range n / 2 {
		o.apply(stile.Change{Lines: []stile.Line{holding("a", "s", uint64(i+1))}, Exact: true, At: now}, now)
		o.apply(stile.Change{Lines: []stile.Line{NoEntries("a")}, Exact: true, At: now}, now)
	}
	updates, last, known := o.Updates(0)
	got := 0
	for _, u := range updates {
		got += len(u.Events)
	}
	if known && got != n {
		t.Errorf("the updates up to %d are said to be known, but have %d of %d events", last, got, n)
	}
}

// After a reading has failed, others follow until one succeeds: a store that does not change shows nothing otherwise.
func TestObserver_failedReadingOfQuietStore(t *testing.T) {
	o := NewWithPrefix(nil, "")
	at := time.Now()
	o.apply(stile.Change{Lines: []stile.Line{holding("a", "s", 1)}, All: true, Exact: true, At: at}, at)
	o.noteWatched(at, nil)
	read := func(at time.Time, err error) {
		if err == nil {
			l := clone(o.lines["a"].line)
			l.Holders[0].Remaining = time.Hour
			o.leases.confirm(l, at)
		}
		o.noteSampled(at, err)
	}
	if names := o.samples(at, sampleBudget); len(names) != 1 {
		t.Fatalf("got %q", names)
	}
	read(at, nil)
	at = at.Add(10 * time.Second)
	o.looked["a"] = at.Add(time.Second) // somebody looks for a second
	if names := o.samples(at, sampleBudget); len(names) != 1 {
		t.Fatalf("got %q", names)
	}
	read(at, errors.New("timeout"))
	for end := at.Add(10 * time.Minute); at.Before(end); at = at.Add(sampleInterval) {
		if at.Before(end.Add(-10*time.Minute + 2*time.Second)) {
			continue // the look is over
		}
		for range o.samples(at, sampleBudget) {
			read(at, nil)
		}
	}
	if err := o.Status().Err; err != nil {
		t.Errorf("ten minutes later the store is still said to be unreadable: %v", err)
	}
}
