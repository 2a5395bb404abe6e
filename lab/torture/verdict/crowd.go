package verdict

import (
	"cmp"
	"slices"

	"github.com/stilelock/stile/lab/torture/history"
)

// A call in a crowd names its client. It arrives in the line later than it was made: while calls of the
// same client are ahead of it in their process, it has no entry in the store. It also loses its
// position: when its client opens another session, and when its entry is deleted with the whole line.
// Then it joins the line again, at its end. So whether it was overtaken is decided by its last arrival.

// setArrivals sets when the calls arrived. For calls without a client that is when they were made.
// The calls are in the order in which they were made.
func (j *judge) setArrivals() {
	latest := map[[2]string]int64{} // by lock and client, when the last of the calls so far was over
	for _, w := range j.index.waits {
		w.Arrived = w.Call
		if w.Client == "" {
			continue
		}
		queue := [2]string{w.Lock, w.Client}
		w.Arrived = max(w.Call, latest[queue])
		latest[queue] = max(latest[queue], j.overAt(w))
		until := w.returnOr(j.End)
		opened := j.index.opened[w.Client]
		if next, _ := slices.BinarySearch(opened, until); next > 0 {
			w.Arrived = max(w.Arrived, opened[next-1])
		}
		for _, s := range j.Strikes {
			if s.tookLine(w.Lock) && w.Call < s.To && s.From < until {
				w.Arrived = max(w.Arrived, s.To)
			}
		}
	}
}

// overAt returns when a call, with the hold that it got, was out of the way of the next call of its client.
func (j *judge) overAt(w *Wait) int64 {
	h := j.index.byGrant[w.Grant]
	if h == nil {
		return w.returnOr(j.End)
	}
	return max(h.End, h.Release, h.Released)
}

// tookLine reports whether a strike may have deleted the entries of waiters of a lock.
func (s *Strike) tookLine(lock string) bool {
	return s.Name == history.Evict && (s.Lock == lock || s.Lock == "") && (len(s.Took) > 1 || s.Err != "")
}

// crowdOf returns how many calls that name their clients waited for one lock at the same time, at most.
// The calls are in the order in which they were made.
func crowdOf(waits []*Wait, end int64) int {
	type change struct {
		at int64
		by int
	}
	var changes []change
	for _, w := range waits {
		if w.Client != "" {
			changes = append(changes, change{w.Call, 1}, change{w.returnOr(end), -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), a.by-b.by) })
	n, most := 0, 0
	for _, c := range changes {
		n += c.by
		most = max(most, n)
	}
	return most
}

// The sizes of a crowd that prove something.
const (
	longLine    = 400 // entries
	crowdBehind = 300 // callers that wait behind a holder
	crowdBeside = 50  // callers that wait before, and after, one in the middle of the line
)

// longLines counts the readings of a line that found it long.
func (r *reacher) longLines() (n int) {
	for _, l := range r.index.lines {
		if l.Length >= longLine {
			n++
		}
	}
	return n
}

// gaveUpInMiddle counts the calls that gave up with many others ahead and behind.
func (r *reacher) gaveUpInMiddle() (n int) {
	for _, w := range r.index.waits {
		if w.Client == "" || !w.GaveUp || w.Arrived >= w.Return {
			continue
		}
		ahead, behind := 0, 0
		for _, other := range r.index.waits {
			switch {
			case other.Lock != w.Lock || other.Call >= w.Return || other.returnOr(r.index.end) <= w.Return:
			case other.Arrived < w.Arrived:
				ahead++
			case other.Arrived > w.Arrived:
				behind++
			}
		}
		if ahead >= crowdBeside && behind >= crowdBeside {
			n++
		}
	}
	return n
}

// metCrowd reports whether a strike stopped or killed a holder with a crowd behind it.
func (r *reacher) metCrowd(s Strike) bool {
	if s.Name != "holder-pause" && s.Name != "holder-kill" || !r.victimHeld(s) {
		return false
	}
	n := 0
	for _, w := range r.index.waits {
		if w.Client != "" && w.Call < s.From && s.From < w.returnOr(r.index.end) {
			n++
		}
	}
	return n >= crowdBehind
}

// sawHandOver reports whether a lock passed from one worker to another while a fault was active.
func (r *reacher) sawHandOver(s Strike) bool {
	for _, all := range r.byLock {
		first, _ := slices.BinarySearchFunc(all, s.From, func(h *Hold, at int64) int { return cmp.Compare(h.Return, at) })
		for i := max(1, first); i < len(all) && all[i].Return < s.To; i++ {
			if all[i].Worker != all[i-1].Worker {
				return true
			}
		}
	}
	return false
}

// servedAtEnd counts the calls that waited when the workers were asked to end, and got the lock after
// that. It is zero if one of those that waited neither got the lock nor gave up.
func (r *reacher) servedAtEnd() (n int) {
	if r.index.stopping == 0 {
		return 0
	}
	for _, w := range r.index.waits {
		switch {
		case w.Call >= r.index.stopping || w.Return != 0 && w.Return <= r.index.stopping || w.Exit != 0 && w.Exit <= r.index.stopping:
		case w.Granted:
			n++
		case !w.GaveUp:
			return 0
		}
	}
	return n
}
