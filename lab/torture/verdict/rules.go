package verdict

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
)

// The rules, by the names under which their violations are reported.
const (
	// RuleOverlap: two holders believed at the same time that they held, each by all that its lock's interface had told it.
	RuleOverlap = "overlap"
	// RuleValidity: by the tokens' order, one was granted the lock while another's advertised validity still ran.
	RuleValidity = "granted during another's validity"
	// RuleGrantedTwice: by the tokens' order, the store itself let two hold at the same time, or gave tokens out of order.
	RuleGrantedTwice = "granted twice"
	// RuleDeletedEntry: somebody was granted the lock whose entry had been deleted while it waited, in one step with the entries ahead of it.
	RuleDeletedEntry = "granted to a deleted entry"
	// RuleTokenTwice: two holds have the same token.
	RuleTokenTwice = "token given twice"
	// RuleNotNotified: a holder still believed in its hold two TTLs after the observer had seen its entry go.
	RuleNotNotified = "holder not told"
	// RuleStaleWrite: the fenced resource took a write of an older hold after one of a newer hold, older by its token or by when it was
	// granted.
	RuleStaleWrite = "stale write accepted"
	// RuleOvertaken: somebody was overtaken, by one who asked more than a TTL later, though nothing was being done to the system.
	RuleOvertaken = "overtaken"
	// RuleStranded: a lock that nobody held was asked for all the time and given to nobody, though nothing was being done to the
	// system; or for so long that whatever was done excuses nothing.
	RuleStranded = "waiter stranded"
	// RuleForgotten: somebody waited for long while others who had asked later were served again and again, whatever was done to
	// the system.
	RuleForgotten = "waiter forgotten"
	// RuleStuck: when everything was over and healed, the lock could not be had.
	RuleStuck = "lock stuck"
	// RuleLeftBehind: when everything was over, and a TTL had passed, there was still something in the store.
	RuleLeftBehind = "entry left behind"
	// RuleLeak: a worker that had released and closed everything had more goroutines or descriptors than before.
	RuleLeak = "leak"
	// RuleHung: a worker that was asked to end never did.
	RuleHung = "hung"
	// RuleCrashed: a worker panicked.
	RuleCrashed = "crashed"
	// RuleTooLittle: too little happened for the run to prove anything.
	RuleTooLittle = "too little happened"
)

// A Violation is one case in which a rule was broken.
type Violation struct {
	Rule string `json:"rule"`
	Lock string `json:"lock,omitempty"`
	// At is when it showed, in the history's time.
	At int64 `json:"at"`
	// For is how long it lasted, where that means something.
	For time.Duration `json:"for_ns,omitempty"`
	// What says it in words.
	What string `json:"what"`
	// Grants are the holds it is about.
	Grants []string `json:"grants,omitempty"`
	// Conceded is the fault, if it is one under which nobody promises that the rule is kept: see [Concessions].
	Conceded string `json:"conceded,omitempty"`

	// since is the earliest time at which it can have been caused; zero means At.
	since int64
}

// Concessions are, by fault, the rules that nobody promises to keep on a target while it lasts and for a TTL after, because
// its store cannot: docs/guarantees.md says so. What tokens are for is never conceded, and of two holders only if the fault can
// have ended the hold of the one: see [Strike.endedOneOf].
func Concessions(target string) map[string][]string {
	exclusion := []string{RuleOverlap, RuleValidity}
	forgetting := []string{RuleOverlap, RuleValidity, RuleGrantedTwice}
	// Deleting a holder's entry lets the next one in as the holder is told.
	conceded := map[string][]string{history.Evict: exclusion}
	_, cluster, _ := strings.Cut(target, "@")
	switch strings.TrimRight(cluster, "0123456789") {
	case "etcd":
		// It may end fresh leases early when a leader goes on that was stopped. Options.LockDelay is for that.
		conceded["leader-pause"], conceded["server-pause"] = exclusion, exclusion
	case "redis", "redlock":
		// One that has forgotten everything, or whose clock has jumped, has let go of what was held. The site's save nothing.
		for _, fault := range []string{"restart-empty", "server-kill", "clock-jump"} {
			conceded[fault] = forgetting
		}
	}
	return conceded
}

// overlaps finds holders of one lock who believed at the same time that they held it.
func overlaps(lock string, holds []*Hold) []Violation {
	var found []Violation
	var last *Hold // of those before, the one whose end is the latest
	for _, h := range holds {
		if last != nil {
			if d, yes := last.overlaps(h); yes {
				found = append(found, Violation{
					Rule: RuleOverlap, Lock: lock, At: h.Return, For: time.Duration(d), Grants: []string{last.Grant, h.Grant},
					What: fmt.Sprintf("%s had it and %s believed for another %v to have it", h.Grant, last.Grant,
						time.Duration(d).Round(time.Microsecond)),
				})
			}
		}
		if last == nil || h.End > last.End {
			last = h
		}
	}
	return found
}

// inOrder checks the holds of a lock against the order that their tokens say they had, in two readings.
func inOrder(lock string, holds []*Hold, offers history.Offers) []Violation {
	var found []Violation
	for _, reading := range []struct {
		rule string
		end  func(*Hold) (least, most int64)
	}{
		{RuleGrantedTwice, func(h *Hold) (int64, int64) { return storeEnd(h, offers.Proof) }},
		{RuleValidity, func(h *Hold) (int64, int64) { return h.End, never }},
	} {
		grants := make([]*grant, 0, len(holds))
		for _, h := range holds {
			g := &grant{name: h.Grant, token: h.Token, call: h.Call, returned: h.Return}
			g.endMin, g.endMax = reading.end(h)
			grants = append(grants, g)
		}
		for _, c := range fenced(grants) {
			switch {
			case c.earlier == nil || c.earlier.token != c.later.token:
				found = append(found, c.violation(reading.rule, lock))
			case reading.rule == RuleGrantedTwice: // the other reading would say the same
				found = append(found, c.violation(RuleTokenTwice, lock))
			}
		}
	}
	return found
}

// violation says that the conflict breaks a rule. It shows when both have been granted. If that was in the order of their tokens
// it lasts until the earlier one ends; if not, the tokens went back at some time between the two.
func (c *conflict) violation(rule, lock string) Violation {
	v := Violation{Rule: rule, Lock: lock, At: c.later.returned, What: c.why, Grants: []string{c.later.name}}
	if c.earlier == nil {
		return v
	}
	if c.earlier.returned <= c.later.returned {
		v.For = time.Duration(max(0, c.earlier.expired-c.later.returned))
	} else {
		v.since, v.At = c.later.returned, c.earlier.returned
	}
	v.Grants = []string{c.earlier.name, c.later.name}
	v.What = fmt.Sprintf("%s (token %d) and %s (token %d): %s", c.earlier.name, c.earlier.token, c.later.name, c.later.token, c.why)
	return v
}

// storeEnd is when the store must have ended a hold. A release that proves it ended it; another one that was answered came
// after the end, which may have come at any time, as sessions expire, rightly or wrongly.
func storeEnd(h *Hold, proof bool) (least, most int64) {
	switch {
	case h.Outcome == history.OK && proof:
		return h.Release, h.Released
	case h.Outcome == history.OK || h.Outcome == history.Failed:
		return h.Call, h.Released
	default:
		return h.Call, never
	}
}

// dead finds holds whose entries an eviction had deleted in one step with the entries ahead of them: there was no moment at which it
// was their turn.
func dead(lock string, holds []*Hold, strikes []Strike) []Violation {
	took := map[uint64]bool{}
	for _, s := range strikes {
		if s.Lock == lock && s.Err == "" && len(s.Took) > 1 {
			for _, token := range s.Took[1:] {
				took[token] = true
			}
		}
	}
	var found []Violation
	for _, h := range holds {
		if h.Token != 0 && took[h.Token] {
			found = append(found, Violation{
				Rule: RuleDeletedEntry, Lock: lock, At: h.Return, For: time.Duration(max(0, h.End-h.Return)), Grants: []string{h.Grant},
				What: fmt.Sprintf("%s (token %d) was given the lock, though its entry had been deleted together with those ahead of it",
					h.Grant, h.Token),
			})
		}
	}
	return found
}

// staleWrites finds writes of older holds that the fenced resource accepted after those of newer ones: older by their tokens,
// or by when they were granted, which protects nothing if the tokens say otherwise. They come in the order in which the resource,
// which does one thing at a time, has decided on them.
func staleWrites(lock string, writes []history.Event, holds map[string]*Hold, ttl int64) []Violation {
	var found []Violation
	var newest *history.Write
	for _, e := range writes {
		w := e.Write
		if w.Mode != "fenced" || w.Refused {
			continue
		}
		if newest != nil && (w.Token < newest.Token || grantedBefore(holds[w.Grant], holds[newest.Grant], ttl)) {
			found = append(found, Violation{
				Rule: RuleStaleWrite, Lock: lock, At: e.At, Grants: []string{newest.Grant, w.Grant},
				What: fmt.Sprintf("a write of %s (token %d) was accepted after one of %s (token %d), which had been granted later", w.Grant,
					w.Token, newest.Grant, newest.Token),
			})
			continue
		}
		newest = w
	}
	return found
}

// grantedBefore reports whether a was granted before b: certainly if b was asked for later, and, if both were asked for at the same
// time, if b was given more than a TTL later. A worker may be stopped between its grant and the return of its call, so that the
// order of two returns alone shows nothing. Nothing is known of a hold, nil, whose holder was killed before it could tell.
func grantedBefore(a, b *Hold, ttl int64) bool {
	return a != nil && b != nil && (a.Return < b.Call || a.Return+ttl < b.Return)
}

// overtaken finds those who waited while somebody was served who had come more than patience later, with nothing done to
// the system from when the first asked until the other was served.
func overtaken(lock string, waits []*Wait, holds []*Hold, patience int64, quiet func(from, to int64) bool) []Violation {
	var found []Violation
	for _, w := range waits {
		until := inLine(w, patience)
		for _, h := range holds {
			if h.Grant != w.Grant && h.Call > w.Call+patience && h.Return < until && quiet(w.Call, h.Return) {
				found = append(found, Violation{
					Rule: RuleOvertaken, Lock: lock, At: h.Return, Grants: []string{w.Grant, h.Grant},
					What: fmt.Sprintf("%s asked %v after %s and had the lock before it", h.Grant,
						time.Duration(h.Call-w.Call).Round(time.Millisecond), w.Grant),
				})
				break
			}
		}
	}
	return found
}

// inLine returns until when somebody who waits is certainly in the line. Who gives up may have left it some time before it could
// say so, for which leaving is time enough; of a call that fails nothing is known.
func inLine(w *Wait, leaving int64) int64 {
	switch {
	case w.Return == 0:
		return exitOr(w, never)
	case w.Got:
		return w.Return
	case w.GaveUp:
		return w.Return - leaving
	default:
		return 0
	}
}

// passed is how many of those who have asked later may be served before somebody who waits counts as forgotten, if it takes long
// enough.
const passed = 10

// forgotten finds those who waited while others were served who had asked later: so many of them, and for longer than patience,
// that no fault explains it, nor chance where there is no line.
func forgotten(lock string, waits []*Wait, holds []*Hold, patience, end int64) []Violation {
	var found []Violation
	for _, w := range waits {
		until := w.over(end)
		next, _ := slices.BinarySearchFunc(holds, w.Call, func(h *Hold, at int64) int { return cmp.Compare(h.Return, at) })
		var last *Hold
		n := 0
		for _, h := range holds[next:] {
			if h.Return >= until {
				break
			}
			if h.Grant != w.Grant && h.Call > w.Call {
				n, last = n+1, h
			}
		}
		if n < passed || last.Return-w.Call <= patience {
			continue
		}
		lasted := time.Duration(last.Return - w.Call)
		found = append(found, Violation{
			Rule: RuleForgotten, Lock: lock, At: last.Return, For: lasted, Grants: []string{w.Grant, last.Grant},
			What: fmt.Sprintf("%s waited for %v while %d were served who had asked later, the last of them %s", w.Grant,
				lasted.Round(time.Millisecond), n, last.Grant),
		})
	}
	return found
}

// over returns when a call was over, in a history that ends with end.
func (w *Wait) over(end int64) int64 {
	if w.Return != 0 {
		return w.Return
	}
	return min(exitOr(w, end), end)
}

func exitOr(w *Wait, otherwise int64) int64 {
	if w.Exit != 0 {
		return w.Exit
	}
	return otherwise
}

// between is the longest time from the end of one call for a lock to the next one for which the lock counts as wanted.
const between = int64(time.Second)

// wanted joins the calls for one lock that follow one another, whoever made them and whatever came of them: who is refused at
// once, again and again, waits too.
func wanted(calls []*Wait, end int64) []*Wait {
	calls = slices.Clone(calls)
	slices.SortStableFunc(calls, func(a, b *Wait) int { return cmp.Compare(a.Call, b.Call) })
	var all []*Wait
	for _, c := range calls {
		w := *c
		w.Return = c.over(end)
		if n := len(all); n > 0 && w.Call <= all[n-1].Return+between {
			all[n-1].Return = max(all[n-1].Return, w.Return)
			continue
		}
		all = append(all, &w)
	}
	return all
}

// A gap is a time in which a lock was wanted that nobody was given.
type gap struct {
	from, to int64
}

// gaps returns, for one lock, the times from the end of a hold to the next grant during which it was wanted. A hold counts as
// over when its holder no longer believed in it.
func gaps(calls []*Wait, holds []*Hold, end int64) []gap {
	want := wanted(calls, end)
	var found []gap
	var free int64 // the latest end of the holds before
	for i := range len(holds) + 1 {
		next := end
		if i < len(holds) {
			next = holds[i].Return
		}
		for _, w := range want {
			if from, to := max(free, w.Call), min(next, w.Return); from < to {
				found = append(found, gap{from, to})
			}
		}
		if i < len(holds) {
			free = max(free, holds[i].End)
		}
	}
	return found
}

// stranded finds locks that nobody was given for longer than patience, though they were wanted, with nothing done to the
// system; or for ten times as long, whatever was done.
func stranded(lock string, calls []*Wait, all []gap, patience int64, calm func(from, to int64) (int64, int64)) []Violation {
	var found []Violation
	for _, g := range all {
		from, to := calm(g.from, g.to)
		meanwhile := "nothing was done to the system"
		if to-from <= patience {
			from, to = g.from, g.to
			meanwhile = "whatever was done to the system"
			if to-from <= 10*patience {
				continue
			}
		}
		lasted := time.Duration(to - from)
		n, last := asking(calls, from, to)
		found = append(found, Violation{
			Rule: RuleStranded, Lock: lock, At: to, For: lasted, Grants: []string{last},
			What: fmt.Sprintf("nobody held it and nobody was given it for %v, though it was asked for %d times, the last time by %s; %s",
				lasted.Round(time.Millisecond), n, last, meanwhile),
		})
	}
	return found
}

// asking returns how many calls there were at some time, and the last of them.
func asking(calls []*Wait, from, to int64) (n int, last string) {
	var latest int64
	for _, c := range calls {
		if c.Call >= to || c.Return != 0 && c.Return <= from {
			continue
		}
		n++
		if last == "" || c.Call > latest {
			last, latest = c.Grant, c.Call
		}
	}
	return n, last
}

// hasCrashed is how a process of Go ends that panics, as the system says it. Nothing here exits with 2 otherwise.
const hasCrashed = "exit status 2"

// ends finds workers that never ended, or ended in a panic.
func ends(l *lives) []Violation {
	var found []Violation
	for _, worker := range slices.Sorted(maps.Keys(l.exits)) {
		switch e := l.exits[worker]; e.Exited.How {
		case history.ExitHung:
			found = append(found, Violation{Rule: RuleHung, At: e.At, What: worker + " was asked to end and did not"})
		case hasCrashed:
			found = append(found, Violation{Rule: RuleCrashed, At: e.At, What: worker + " panicked; words.txt has what it said"})
		}
	}
	return found
}

// over judges how things stood when everything had ended.
func over(events []history.Event) []Violation {
	var found []Violation
	begin := map[string]*history.Census{}
	for _, e := range events {
		switch {
		case e.Final != nil && e.Final.Outcome != history.OK:
			found = append(found, Violation{
				Rule: RuleStuck, Lock: e.Final.Lock, At: e.At, What: "when everything was over it could not be had: " + e.Final.Err,
			})
		case e.Leftovers != nil && len(e.Leftovers.Keys) > 0:
			found = append(found, Violation{
				Rule: RuleLeftBehind, Lock: e.Leftovers.Lock, At: e.At,
				What: fmt.Sprintf("a TTL after everything was over, there was still %s", strings.Join(e.Leftovers.Keys, ", ")),
			})
		case e.Census != nil && e.Census.Phase == "begin":
			begin[e.Worker] = e.Census
		case e.Census != nil && begin[e.Worker] != nil:
			if was := begin[e.Worker]; e.Census.Goroutines > was.Goroutines || e.Census.Descriptors > was.Descriptors {
				found = append(found, Violation{
					Rule: RuleLeak, At: e.At,
					What: fmt.Sprintf("%s had %d goroutines and %d descriptors before it connected, and %d and %d after it had released and closed everything",
						e.Worker, was.Goroutines, was.Descriptors, e.Census.Goroutines, e.Census.Descriptors),
				})
			}
		}
	}
	return found
}
