package zkstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/delivery"
)

// Each check is a transaction at the leader, and each waiter of a line makes them.
func TestBlockerCheckPause_fewChecksInLongLine(t *testing.T) {
	if got, want := blockerCheckPause(blockerCheckInterval, 1), blockerCheckInterval*9/8; got != want {
		t.Errorf("the first waiter checks every %v, want %v", got, want)
	}
	perSecond := 0.0
	for ahead := range 1000 {
		perSecond += float64(time.Second) / float64(blockerCheckPause(blockerCheckInterval, ahead+1))
	}
	if perSecond > 3 {
		t.Errorf("a thousand waiters make %.1f checks a second, want at most 3", perSecond)
	}
}

// A waiter that is far back need not know soon that an event was missed, so a long line costs little while
// nothing happens.
func TestRecheckPause_fewInLongLine(t *testing.T) {
	if got := recheckPause(recheckInterval, 1); got != recheckInterval {
		t.Errorf("the first waiter rechecks every %v, want %v", got, recheckInterval)
	}
	perSecond := 0.0
	for ahead := range 1000 {
		perSecond += float64(time.Second) / float64(recheckPause(recheckInterval, ahead+1))
	}
	if perSecond > 30 {
		t.Errorf("a thousand waiters make %.1f rechecks a second, want at most 30", perSecond)
	}
}

// With a short TTL the checks are more frequent.
func TestBlockerCheckInterval_shortTTL(t *testing.T) {
	se := newWaiting(blockerCheckInterval, time.Now())
	for ttl, want := range map[time.Duration]time.Duration{
		2 * time.Second: 4 * time.Second, blockerCheckInterval: blockerCheckInterval, time.Hour: blockerCheckInterval,
	} {
		if se.ttl = ttl; se.blockerCheckInterval() != want {
			t.Errorf("TTL %v: got %v, want %v", ttl, se.blockerCheckInterval(), want)
		}
	}
}

// newWaiting returns a session that waits in lines behind the given numbers of entries, since now.
func newWaiting(interval time.Duration, now time.Time, ahead ...int) *session {
	se := newSession(newGroup(&Store{blockerCheckInterval: interval}, store.SessionOptions{}))
	se.ttl = interval
	for i, n := range ahead {
		w := &lineWatch{session: se, name: fmt.Sprint(i), dir: fmt.Sprintf("/%d", i), mine: make(map[*entry]struct{}), blockersChecked: now}
		e := &entry{session: se, line: w, state: inLine, req: store.Request{Mode: line.Exclusive}, delivery: delivery.New(func(store.Standing) {})}
		for j := range n {
			e.ahead = append(e.ahead, listedEntry{name: fmt.Sprint(j)})
		}
		w.mine[e] = struct{}{}
		se.lines[w.dir] = w
	}
	return se
}

// A session that waits in many lines asks for all of them together, although they began to wait at
// different times.
func TestTakeBlockers_manyLinesTogether(t *testing.T) {
	const interval = time.Minute
	start := time.Now()
	se := newWaiting(interval, start, slices.Repeat([]int{1}, 100)...)
	se.lines["/1"].blockersChecked = start.Add(interval / 4)
	se.lines["/2"].blockersChecked = start.Add(interval)
	first := se.lines["/0"]
	if first.blockerCheckDue(start.Add(interval)) {
		t.Error("a check is due too early")
	}
	at := start.Add(interval * 9 / 8)
	if !first.blockerCheckDue(at) {
		t.Error("no check is due")
	}
	got := se.takeBlockers(at)
	if len(got) != 99 || slices.Contains(got, blocker{"2", "/2/0"}) || !slices.Contains(got, blocker{"1", "/1/0"}) {
		t.Errorf("got the blockers of %d lines, want those of all but the last that began to wait", len(got))
	}
	if again := se.takeBlockers(at); len(again) > 0 {
		t.Errorf("got %d blockers again at once, want none", len(again))
	}
	if first.blockerCheckDue(at.Add(interval)) {
		t.Error("the next check is due too early")
	}
}

// A line without waiters is never due, and the time of the next waiter begins when it waits.
func TestBlockerCheckDue_countsWaitingOnly(t *testing.T) {
	const interval = time.Minute
	start := time.Now()
	se := newWaiting(interval, start, 0)
	w := se.lines["/0"]
	later := start.Add(time.Hour)
	if w.blockerCheckDue(later) {
		t.Error("a check is due, although nothing waits")
	}
	for e := range w.mine {
		e.ahead = []listedEntry{{name: "0"}}
	}
	if w.blockerCheckDue(later.Add(interval)) {
		t.Error("a check is due too early")
	}
	if !w.blockerCheckDue(later.Add(interval * 9 / 8)) {
		t.Error("no check is due")
	}
}

// A session does not leave servers more often than it checks, whichever lines the checks are for.
func TestCheckBlockers_leavesServersRarely(t *testing.T) {
	se := newWaiting(time.Hour, time.Now(), 1)
	se.serverLeft = time.Now()
	se.checkBlockers([]blocker{{"0", "/0/0"}}) // without a client a request would panic
}

// Any of the holders may free a slot, so all of them are checked, and no waiter.
func TestDecisive_slots(t *testing.T) {
	const slots = 5
	e := &entry{req: store.Request{Mode: line.Slot(slots)}}
	for i := range 20 {
		e.ahead = append(e.ahead, listedEntry{node{mode: line.Slot(slots), sequence: int64(i)}, ""})
	}
	got := e.decisive()
	slices.SortFunc(got, listedEntry.compare)
	if !slices.Equal(got, e.ahead[:slots]) {
		t.Errorf("got %v, want the first %d", got, slots)
	}
	e.req.Mode = line.Slot(1000)
	e.ahead = slices.Repeat(e.ahead, 60)
	if got := e.decisive(); len(got) != maxChecksPerTransaction {
		t.Errorf("got %d entries, want %d", len(got), maxChecksPerTransaction)
	}
}
