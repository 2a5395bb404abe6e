package verdict

import (
	"cmp"
	"slices"

	"github.com/stilelock/stile/lab/torture/history"
)

// A Hold is one hold of a lock, put together from the events of its holder. Times are those of
// package history; zero means that the event did not happen.
type Hold struct {
	Lock   string `json:"lock"`
	Grant  string `json:"grant"`
	Worker string `json:"worker"`
	Token  uint64 `json:"token,omitempty"`
	// Mode is how the lock was held, and Set the call for several locks that it was acquired by.
	// Number and NumberToken are those of [history.Acquire].
	Mode        history.Mode `json:"mode,omitempty"`
	Set         string       `json:"set,omitempty"`
	Number      int          `json:"number,omitempty"`
	NumberToken uint64       `json:"-"`
	// Yielded is the hold that was yielded for this one.
	Yielded string `json:"yielded,omitempty"`
	// Downgrade and Downgraded are the times of the call and the return of the downgrade.
	// Downgraded is zero unless it succeeded.
	Downgrade  int64 `json:"downgrade,omitempty"`
	Downgraded int64 `json:"downgraded,omitempty"`

	// Call and Return are the times of the call that acquired the lock.
	Call   int64 `json:"call"`
	Return int64 `json:"return"`
	// Until is the last validity that the interface reported, LostAt the time of the notification
	// of the loss, and Exit the end of the holder's process.
	Until  int64  `json:"until,omitempty"`
	LostAt int64  `json:"told,omitempty"`
	Why    string `json:"why,omitempty"`
	Exit   int64  `json:"exit,omitempty"`
	// Release and Released are the times of the call and the return of the release, and Outcome is
	// its outcome.
	Release  int64           `json:"release,omitempty"`
	Released int64           `json:"released,omitempty"`
	Outcome  history.Outcome `json:"outcome,omitempty"`

	// Of the entry of the hold, which may have had holds before (see [history.Offers]): from is when the first of
	// them was granted, and entryLostAt when the holder of one of them was notified of its loss; zero if none was.
	from, entryLostAt int64
	// grantedUntil is the validity that the interface reported when the lock was granted.
	grantedUntil int64
	// unproven says that the release was no request to the store.
	unproven bool

	// End is the time until which the holder may have believed that it held the lock, by all that
	// the lock's interface reports: the earliest of Release, LostAt, Until and Exit; without any of
	// them, the end of the history.
	End int64 `json:"end"`
}

// exclusiveEnd is the time until which the holder may have believed that it held the lock alone. A
// holder that downgrades does so no more, whatever the outcome.
func (h *Hold) exclusiveEnd() int64 {
	switch {
	case h.Mode != history.Exclusive:
		return h.Return
	case h.Downgrade != 0:
		return min(h.End, h.Downgrade)
	default:
		return h.End
	}
}

// A Wait is a call for a lock: one that waited or, in [index.tries], one that only tried.
type Wait struct {
	Lock, Grant, Worker string
	Mode                history.Mode
	Set, Client         string
	Call, Return        int64 // Return is zero if the call never returned
	Arrived             int64 // when it last joined the line at its end: see setArrivals
	Exit                int64 // when the worker's process ended
	Granted, GaveUp     bool
}

// index has the holds, calls and exits of a history.
type index struct {
	holds   []*Hold
	waits   []*Wait
	tries   []*Wait
	byGrant map[string]*Hold
	// observed are the observations of elections.
	observed []history.Event
	// once are the calls of `stile once`.
	once []history.Event
	// opened are the times at which each client opened its sessions.
	opened map[string][]int64
	// lines are the readings of the lengths of lines.
	lines []*history.Line
	// stopping is when the workers were asked to end; zero if they were not.
	stopping int64
	exits    map[string]history.Event
	end      int64
}

// newIndex reads a history. The holds are in the order of their returns, the calls that waited in
// the order of their starts.
func newIndex(h *history.History) *index {
	l := &index{byGrant: map[string]*Hold{}, exits: map[string]history.Event{}, opened: map[string][]int64{}}
	waits := map[string]*Wait{}
	for _, e := range h.Events {
		l.end = max(l.end, e.At)
		switch {
		case e.Exited != nil:
			l.exits[e.Worker] = e
		case e.Asked != nil:
			w := &Wait{Lock: e.Asked.Lock, Grant: e.Asked.Grant, Worker: e.Worker, Mode: e.Asked.Mode, Set: e.Asked.Set, Client: e.Asked.Client, Call: e.At}
			waits[w.Grant] = w
			l.waits = append(l.waits, w)
		case e.Acquire != nil:
			w := waits[e.Acquire.Grant]
			if w == nil {
				w = &Wait{
					Lock: e.Acquire.Lock, Grant: e.Acquire.Grant, Worker: e.Worker, Mode: e.Acquire.Mode, Set: e.Acquire.Set, Call: e.Acquire.Call,
				}
				l.tries = append(l.tries, w)
			}
			l.addAcquire(e.Worker, e.Acquire, w)
		case e.Extend != nil:
			if hold := l.byGrant[e.Extend.Grant]; hold != nil {
				hold.Until = max(hold.Until, e.Extend.Until)
			}
		case e.Observed != nil:
			l.observed = append(l.observed, e)
		case e.Opened != nil:
			l.opened[e.Opened.Client] = append(l.opened[e.Opened.Client], e.At)
		case e.Line != nil:
			l.lines = append(l.lines, e.Line)
		case e.Stopping != nil:
			l.stopping = e.At
		case e.Once != nil:
			l.once = append(l.once, e)
		case e.Downgrade != nil:
			if hold := l.byGrant[e.Downgrade.Grant]; hold != nil {
				hold.addDowngrade(e.Downgrade)
			}
		case e.End != nil:
			if hold := l.byGrant[e.End.Grant]; hold != nil {
				hold.addEnd(e.End)
			}
		}
	}
	for _, w := range l.waits {
		w.Exit = l.exits[w.Worker].At
	}
	for _, hold := range l.holds {
		hold.Exit = l.exits[hold.Worker].At
		hold.End = l.end
		for _, end := range []int64{hold.Release, hold.LostAt, hold.Until, hold.Exit} {
			if end != 0 {
				hold.End = min(hold.End, end)
			}
		}
	}
	for _, times := range l.opened {
		slices.Sort(times)
	}
	slices.SortStableFunc(l.once, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(l.observed, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(l.holds, func(a, b *Hold) int { return cmp.Compare(a.Return, b.Return) })
	l.setEntries(h.Run.Offers)
	return l
}

// setEntries finds the holds that had the same entry in the store, one after another, and sets what that means
// for each of them. Only the release of the last one was a request to the store, and none if the client may
// have kept the entry.
func (l *index) setEntries(offers history.Offers) {
	type entry struct {
		lock, worker string
		order        uint64
	}
	byEntry := map[entry][]*Hold{}
	for _, h := range l.holds {
		h.from = h.Return
		if h.Mode == history.Exclusive && h.Token != 0 && offers.TurnBits > 0 {
			of := entry{h.Lock, h.Worker, orderOf(h.Token, offers)}
			byEntry[of] = append(byEntry[of], h)
		}
	}
	for _, all := range byEntry {
		slices.SortStableFunc(all, func(a, b *Hold) int { return cmp.Compare(a.Token, b.Token) })
		last := all[len(all)-1]
		for i, h := range all {
			h.unproven = offers.Keeps || last.Outcome != history.OK
			for _, before := range all[:i] {
				h.from, h.entryLostAt = min(h.from, before.Return), earlier(h.entryLostAt, before.LostAt)
			}
		}
	}
}

// orderOf returns the part of a token that all holds of one entry have in common.
func orderOf(token uint64, offers history.Offers) uint64 { return token >> offers.TurnBits }

func (l *index) addAcquire(worker string, a *history.Acquire, w *Wait) {
	w.Return, w.Granted, w.GaveUp = a.Return, a.Outcome == history.OK, a.GaveUp
	if a.Outcome != history.OK {
		return
	}
	hold := &Hold{
		Lock: a.Lock, Grant: a.Grant, Worker: worker, Token: a.Token,
		Mode: a.Mode, Set: a.Set, Number: a.Number, NumberToken: a.NumberToken, Yielded: a.Yielded,
		Call: a.Call, Return: a.Return, Until: a.Until, grantedUntil: a.Until,
	}
	l.holds = append(l.holds, hold)
	l.byGrant[a.Grant] = hold
}

// addEnd adds an end to the hold. Of several ends the earliest times and the last outcome count: a
// holder that was killed during its release had given up the hold before, whatever the event of its
// death says.
func (h *Hold) addEnd(e *history.End) {
	h.LostAt, h.Release = earlier(h.LostAt, e.LostAt), earlier(h.Release, e.Call)
	if e.Why != "" {
		h.Why = e.Why
	}
	if e.Outcome != "" {
		h.Released, h.Outcome = e.Return, e.Outcome
	}
	h.Until = max(h.Until, e.Until)
}

// addDowngrade adds a downgrade. The earliest call counts, as with addEnd.
func (h *Hold) addDowngrade(d *history.Downgrade) {
	h.Downgrade = earlier(h.Downgrade, d.Call)
	if d.Outcome == history.OK {
		h.Downgraded = d.Return
	}
}

// earlier returns the earlier of two times. Zero means that there is no such time.
func earlier(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// byLock groups items by the lock they are about, and keeps their order.
func byLock[T any](all []T, lock func(T) string) map[string][]T {
	groups := map[string][]T{}
	for _, one := range all {
		groups[lock(one)] = append(groups[lock(one)], one)
	}
	return groups
}
