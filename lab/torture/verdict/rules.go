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
	// RuleOverlap: two holders believed at the same time that they held the lock, each by all that
	// the lock's interface had reported to it.
	RuleOverlap = "overlap"
	// RuleValidity: in the order of the tokens, the lock was granted while the advertised validity
	// of another hold still ran.
	RuleValidity = "granted during another's validity"
	// RuleReaderBesideWriter: a reader and a writer believed at the same time that they held the lock.
	RuleReaderBesideWriter = "reader beside a writer"
	// RuleTooMany: more holders than a semaphore has slots believed at the same time that they held
	// one.
	RuleTooMany = "more holders than slots"
	// RuleNumberTwice: two holders believed at the same time that they had the same slot number, or
	// the fencing tokens of a number contradict its holds.
	RuleNumberTwice = "slot number given twice"
	// RuleNotLeader: an observer of an election was told that a candidate leads while another leader
	// certainly had not left, or was told the value of one leader with the token of another.
	RuleNotLeader = "no leader observed as one"
	// RuleCycle: callers that each asked for several locks waited for each other in a circle, while
	// none of these locks was held or granted, for longer than a free lock may stay free.
	RuleCycle = "callers wait in a circle"
	// RuleSucceededTwice: `stile once` ran a command although a success for its key was known to be
	// recorded, or recorded two.
	RuleSucceededTwice = "succeeded twice for one key"
	// RuleGrantedTwice: in the order of the tokens, the store itself granted the lock twice at
	// once, or gave tokens out of order.
	RuleGrantedTwice = "granted twice"
	// RuleDeletedEntry: a waiter was granted the lock although its entry had been deleted in one
	// step of the store with all entries ahead of it.
	RuleDeletedEntry = "granted to a deleted entry"
	// RuleExpired: a hold was over when it was granted: its deadline had passed before the call.
	RuleExpired = "granted after its deadline"
	// RuleLostEntry: a call was granted the lock with an entry of which its client had been notified before that
	// it is lost.
	RuleLostEntry = "granted with a lost entry"
	// RuleTokenTwice: two holds have the same token.
	RuleTokenTwice = "token given twice"
	// RuleNotTold: a holder still believed in its hold two TTLs after the observer had seen its
	// entry disappear.
	RuleNotTold = "holder not told"
	// RuleStaleWrite: the fenced resource accepted a write of an older hold after one of a newer
	// hold: older by its token, or certainly granted earlier.
	RuleStaleWrite = "stale write accepted"
	// RuleOvertaken: a client was served before another that had asked more than a TTL earlier,
	// while no fault was active.
	RuleOvertaken = "overtaken"
	// RuleStranded: a lock was free and not granted although clients asked for it all the time:
	// while no fault was active, or for longer than any fault excuses.
	RuleStranded = "waiter stranded"
	// RuleForgotten: a client waited for long while others that had asked later were served again
	// and again, under any fault.
	RuleForgotten = "waiter forgotten"
	// RuleStuck: after all faults were healed, the lock could not be acquired.
	RuleStuck = "lock stuck"
	// RuleLeftBehind: a TTL after the end of all workers, the store still had data of the lock.
	RuleLeftBehind = "entry left behind"
	// RuleLeak: a worker that had released and closed everything had more goroutines or descriptors
	// than before it connected.
	RuleLeak = "leak"
	// RuleHung: a worker that was asked to end did not end.
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
	// At is when it could first be seen, in the time of the history.
	At int64 `json:"at"`
	// For is how long it lasted; zero for rules for which that has no meaning.
	For time.Duration `json:"for_ns,omitempty"`
	// What describes it in words.
	What string `json:"what"`
	// Grants are the holds or calls that it is about.
	Grants []string `json:"grants,omitempty"`
	// Conceded is the fault that excuses it, if there is one: see [Concessions].
	Conceded string `json:"conceded,omitempty"`

	// since is the earliest time at which its cause can have happened; zero means At.
	since int64
}

// Concessions returns, by fault, the rules that the target does not promise to keep while the fault
// lasts and for a TTL after it, because its store cannot: see docs/guarantees.md. RuleStaleWrite is
// never conceded. A violation with two holders is conceded only if the fault can have ended the
// hold of one of them: see [Strike.mayHaveEnded].
func Concessions(target string) map[string][]string {
	exclusion := []string{RuleOverlap, RuleReaderBesideWriter, RuleTooMany, RuleNumberTwice, RuleValidity}
	withDataLoss := append(slices.Clone(exclusion), RuleGrantedTwice, RuleNotLeader, RuleSucceededTwice)
	// After the entry of a holder is deleted, the next client is admitted at the same time as the
	// holder is notified.
	conceded := map[string][]string{history.Evict: exclusion}
	_, cluster, _ := strings.Cut(target, "@")
	switch strings.TrimRight(cluster, "0123456789") {
	case "etcd":
		// A leader that was stopped may end fresh leases early when it resumes. Options.LockDelay
		// is for that.
		conceded["leader-pause"], conceded["server-pause"] = exclusion, exclusion
	case "redis", "redlock":
		// A server that has lost all data, or whose clock has jumped, has dropped its holds. The
		// site's servers save no data, so a killed one loses it.
		for _, fault := range []string{"restart-empty", "server-kill", "clock-jump"} {
			conceded[fault] = withDataLoss
		}
	}
	return conceded
}

// A part of a hold is the time for which its holder believed that it held the lock alone, or with
// others. A hold that was downgraded has both.
type part struct {
	*Hold
	exclusive bool
	from, to  int64
}

// parts returns the parts of holds, in the order of their starts.
func parts(holds []*Hold) []part {
	var all []part
	for _, h := range holds {
		alone := h.exclusiveEnd()
		if h.Mode == history.Exclusive {
			all = append(all, part{h, true, h.Return, alone})
		}
		if alone < h.End {
			all = append(all, part{h, false, alone, h.End})
		}
	}
	slices.SortStableFunc(all, func(a, b part) int { return cmp.Compare(a.from, b.from) })
	return all
}

// findOverlaps finds holders of one lock that believed at the same time that they held it, unless
// both held it with others.
func findOverlaps(lock string, holds []*Hold) []Violation {
	var found []Violation
	var last [2]*part // of the shared and of the exclusive parts so far, the one that ends last
	for _, p := range parts(holds) {
		for i, other := range last {
			if other == nil || other.Hold == p.Hold || i == 0 && !p.exclusive {
				continue
			}
			rule := RuleOverlap
			if other.exclusive != p.exclusive {
				rule = RuleReaderBesideWriter
			}
			if d := min(other.to, p.to) - p.from; d > 0 {
				found = append(found, Violation{
					Rule: rule, Lock: lock, At: p.from, For: time.Duration(d), Grants: []string{other.Grant, p.Grant},
					What: fmt.Sprintf("%s was granted the lock%s, and %s believed for another %v that it still held it%s", p.Grant, howHeld(&p),
						other.Grant, time.Duration(d).Round(time.Microsecond), howHeld(other)),
				})
			}
		}
		kind := 0
		if p.exclusive {
			kind = 1
		}
		if last[kind] == nil || p.to > last[kind].to {
			last[kind] = &p
		}
	}
	return found
}

// howHeld says how a hold of a read-write lock was held.
func howHeld(p *part) string {
	if p.exclusive {
		return ""
	}
	return " as a reader"
}

// findTooMany finds holders of one semaphore that believed together that they held more slots than
// it has.
func findTooMany(lock string, holds []*Hold) []Violation {
	var found []Violation
	var active []*Hold
	for _, h := range holds {
		n := h.Mode.Slots()
		if n == 0 {
			continue
		}
		active = slices.DeleteFunc(active, func(other *Hold) bool { return other.End <= h.Return })
		active = append(active, h)
		if len(active) <= n || h.End <= h.Return {
			continue
		}
		v := Violation{Rule: RuleTooMany, Lock: lock, At: h.Return}
		until := h.End
		for _, other := range active {
			until, v.Grants = min(until, other.End), append(v.Grants, other.Grant)
		}
		v.For = time.Duration(until - h.Return)
		v.What = fmt.Sprintf("%s was granted a slot, and then %d believed that they held one of %d", h.Grant, len(active), n)
		found = append(found, v)
	}
	return found
}

// findNumbersTwice judges each slot number of a semaphore as a lock of its own, whose tokens are
// those of the number.
func findNumbersTwice(lock string, holds []*Hold, offers history.Offers) []Violation {
	byNumber := map[int][]*Hold{}
	for _, h := range holds {
		if h.Number == 0 {
			continue
		}
		alone := *h
		alone.Mode, alone.Token = history.Exclusive, h.NumberToken
		byNumber[h.Number] = append(byNumber[h.Number], &alone)
	}
	var found []Violation
	for _, number := range slices.Sorted(maps.Keys(byNumber)) {
		all := findOverlaps(lock, byNumber[number])
		if offers.Tokens {
			all = append(all, checkTokens(lock, byNumber[number], offers)...)
		}
		for _, v := range all {
			v.What = fmt.Sprintf("slot number %d: %s: %s", number-1, v.Rule, v.What)
			v.Rule = RuleNumberTwice
			found = append(found, v)
		}
	}
	return found
}

// findNotLeaders finds observations of leaders that did not lead. A leader with a larger token leads
// only after the one with a smaller token has left; and that one had not left when its release
// proves that it was still there. If the store kept its data, no observation is older than its
// leader.
func findNotLeaders(lock string, observed []history.Event, holds []*Hold, offers history.Offers) []Violation {
	byToken := map[uint64]*Hold{}
	for _, h := range holds {
		byToken[h.Token] = h
	}
	var found []Violation
	next := 0
	var proven *Hold // of the holds granted before an observation, one whose release came last
	for _, e := range observed {
		o := e.Observed
		for ; next < len(holds) && holds[next].Return <= e.At; next++ {
			if h := holds[next]; h.proven(offers) && (proven == nil || h.Release > proven.Release) {
				proven = h
			}
		}
		v := Violation{Rule: RuleNotLeader, Lock: lock, At: e.At}
		switch leader := byToken[o.Token]; {
		case o.Token == 0:
			continue
		case proven != nil && proven.Token < o.Token && e.At < proven.Release:
			v.Grants, v.since = []string{proven.Grant}, proven.Return
			v.What = fmt.Sprintf("%s was told that the candidate with token %d leads, while %s (token %d) led for another %v", e.Worker, o.Token,
				proven.Grant, proven.Token, time.Duration(proven.Release-e.At).Round(time.Microsecond))
		case leader != nil && o.Value != "" && publisher(o.Value) != leader.Worker:
			v.Grants = []string{leader.Grant}
			v.What = fmt.Sprintf("%s was told that %q leads with token %d, which is that of %s", e.Worker, o.Value, o.Token, leader.Grant)
		default:
			continue
		}
		found = append(found, v)
	}
	return found
}

// findSucceededTwice finds calls of `stile once` that ran a command for a key although a success was
// recorded: calls that began after another one had recorded or found it, and those that recorded
// another one. What a call that was killed has recorded is not known.
func findSucceededTwice(calls []history.Event) []Violation {
	var found []Violation
	known := map[[2]string]history.Event{} // by lock and key, the first call that showed a success
	for _, e := range calls {
		o := e.Once
		id := [2]string{o.Lock, o.Key}
		first, succeeded := known[id]
		switch {
		case !succeeded && (o.Recorded || o.Skipped):
			known[id] = e
		case succeeded && o.Ran && (o.Call > first.At || o.Recorded && first.Once.Recorded):
			found = append(found, Violation{
				Rule: RuleSucceededTwice, Lock: o.Lock, At: e.At, Grants: []string{first.Once.Grant, o.Grant}, since: first.At,
				What: fmt.Sprintf("%s ran the command for %s, although %s had shown that it had succeeded", o.Grant, o.Key, first.Once.Grant),
			})
		case succeeded && o.Recorded && !first.Once.Recorded:
			known[id] = history.Event{At: first.At, Once: o} // the success that the first call found
		}
	}
	return found
}

// publisher returns the worker that publishes a value, which is all before the "#".
func publisher(value string) string {
	worker, _, _ := strings.Cut(value, "#")
	return worker
}

// checkTokens checks whether the holds of a lock can have happened in the order of their tokens:
// once with the times at which the store must have ended them (RuleGrantedTwice), and once with
// their advertised validity (RuleValidity).
func checkTokens(lock string, holds []*Hold, offers history.Offers) []Violation {
	var found []Violation
	for _, check := range []struct {
		rule string
		ends func(*grant, *Hold)
	}{
		{RuleGrantedTwice, func(g *grant, h *Hold) { g.endInStore(h, h.proven(offers)) }},
		{RuleValidity, (*grant).endForHolder},
	} {
		grants := make([]*grant, 0, len(holds))
		for _, h := range holds {
			g := &grant{name: h.Grant, worker: h.Worker, token: h.Token, mode: h.Mode, call: h.Call, returned: h.Return}
			check.ends(g, h)
			grants = append(grants, g)
		}
		for _, c := range findConflicts(grants) {
			switch {
			case len(c.ahead) == 0 || c.ahead[0].token != c.later.token:
				found = append(found, c.violation(check.rule, lock))
			case check.rule == RuleGrantedTwice: // the other check finds the same
				found = append(found, c.violation(RuleTokenTwice, lock))
			}
		}
	}
	return found
}

// violation returns the conflict as a violation of a rule. It can be seen when all grants have
// returned. If they returned in the order of their tokens, it lasts until the first of the earlier
// holds ends; if not, the tokens went back at some time between two of the returns.
func (c *conflict) violation(rule, lock string) Violation {
	v := Violation{Rule: rule, Lock: lock, At: c.later.returned, What: c.why, Grants: []string{c.later.name}}
	if len(c.ahead) == 0 {
		return v
	}
	first := slices.MinFunc(c.ahead, func(a, b *grant) int { return cmp.Compare(a.until(c.later), b.until(c.later)) })
	last := slices.MaxFunc(c.ahead, func(a, b *grant) int { return cmp.Compare(a.returned, b.returned) })
	if last.returned <= c.later.returned {
		v.For = time.Duration(max(0, first.until(c.later)-c.later.returned))
	} else {
		v.since, v.At = c.later.returned, last.returned
	}
	v.Grants = nil
	var names []string
	for _, g := range c.ahead {
		v.Grants = append(v.Grants, g.name)
		names = append(names, fmt.Sprintf("%s (token %d)", g.name, g.token))
	}
	v.Grants = append(v.Grants, c.later.name)
	v.What = fmt.Sprintf("%s and %s (token %d): %s", strings.Join(names, ", "), c.later.name, c.later.token, c.why)
	return v
}

// until returns how long a grant kept a later one out.
func (g *grant) until(later *grant) int64 {
	if later.mode == history.Shared {
		return g.shared
	}
	return g.expired
}

// endForHolder sets the times until which the holder believed in its hold.
func (g *grant) endForHolder(h *Hold) {
	g.endMin, g.endMax = h.End, never
	if h.Downgrade != 0 {
		g.downMin, g.downMax = h.exclusiveEnd(), never
	}
}

// endInStore sets the interval in which the store must have ended a hold. A release that proves that
// the hold had lasted ended it. Any other release with a reply came after the end, which may have
// been at any time before it, because sessions expire, rightly or wrongly. A downgrade that
// succeeded shows that the hold had lasted until then.
func (g *grant) endInStore(h *Hold, proven bool) {
	switch {
	case proven:
		g.endMin, g.endMax = h.Release, h.Released
	case h.Outcome == history.OK || h.Outcome == history.Failed:
		g.endMin, g.endMax = h.Call, h.Released
	default:
		g.endMin, g.endMax = h.Call, never
	}
	switch {
	case h.Downgrade == 0:
	case h.Downgraded != 0:
		g.downMin, g.downMax = h.Downgrade, h.Downgraded
	default:
		g.downMin, g.downMax = min(h.Downgrade, g.endMin), never
	}
}

// clockError is how much the end of a validity may be recorded too early.
const clockError = int64(time.Millisecond)

// findEndedBefore finds holds that had ended before the calls that they were granted to, as their clients knew:
// by the deadline, or by the loss of an earlier hold of the same entry.
func findEndedBefore(lock string, holds []*Hold) []Violation {
	var found []Violation
	for _, h := range holds {
		v := Violation{Lock: lock, At: h.Return, Grants: []string{h.Grant}}
		switch {
		case h.grantedUntil != 0 && h.grantedUntil+clockError < h.Call:
			v.Rule = RuleExpired
			v.What = fmt.Sprintf("%s was granted the lock, and its deadline had passed %v before it asked", h.Grant,
				time.Duration(h.Call-h.grantedUntil).Round(time.Microsecond))
		case h.entryLostAt != 0 && h.entryLostAt < h.Call:
			v.Rule = RuleLostEntry
			v.What = fmt.Sprintf("%s was granted the lock (token %d) with an entry of which its client had been notified %v before it asked "+
				"that it is lost", h.Grant, h.Token, time.Duration(h.Call-h.entryLostAt).Round(time.Microsecond))
		default:
			continue
		}
		found = append(found, v)
	}
	return found
}

// findDeletedEntries finds exclusive holds whose entries an eviction had deleted in one step with the
// entries ahead of them: there was no moment at which such an entry was first in its line. (Entries
// of other modes may have held the lock beside those ahead.)
func findDeletedEntries(lock string, holds []*Hold, strikes []Strike, offers history.Offers) []Violation {
	deleted := map[uint64]bool{}
	for _, s := range strikes {
		if s.Lock == lock && s.Err == "" && len(s.Took) > 1 {
			for _, token := range s.Took[1:] {
				deleted[orderOf(token, offers)] = true
			}
		}
	}
	var found []Violation
	for _, h := range holds {
		if h.Token != 0 && h.Mode == history.Exclusive && deleted[orderOf(h.Token, offers)] {
			found = append(found, Violation{
				Rule: RuleDeletedEntry, Lock: lock, At: h.Return, For: time.Duration(max(0, h.End-h.Return)), Grants: []string{h.Grant},
				What: fmt.Sprintf("%s (token %d) was granted the lock although its entry had been deleted together with all entries ahead of it",
					h.Grant, h.Token),
			})
		}
	}
	return found
}

// findStaleWrites finds writes of older holds that the fenced resource accepted after writes of
// newer ones. A hold is older by its token, or by the time of its grant: tokens that contradict the
// grants protect nothing. The writes are in the order in which the resource, which handles one at a
// time, decided on them.
func findStaleWrites(lock string, writes []history.Event, holds map[string]*Hold, ttl int64) []Violation {
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
				What: fmt.Sprintf("the resource accepted a write of %s (token %d) after one of %s (token %d), which was granted later", w.Grant,
					w.Token, newest.Grant, newest.Token),
			})
			continue
		}
		newest = w
	}
	return found
}

// grantedBefore reports whether a was certainly granted before b: if b was asked for after a had
// been granted, or if the call for b returned more than a TTL later. The order of the two returns
// alone shows nothing, because a worker may be paused between its grant and the return of its call.
// A hold is nil if its holder was killed before it could record it; nothing is known of it.
//
// If b had the entry of earlier holds, what counts is when the first of them was granted: its tokens say how old
// the entry is. If the store has lost that entry meanwhile, a can have been granted before b with a larger token.
// Then the two overlap, which other rules judge.
func grantedBefore(a, b *Hold, ttl int64) bool {
	switch {
	case a == nil || b == nil:
		return false
	case b.from < b.Return:
		return a.Return+ttl < b.from
	default:
		return a.Return < b.Call || a.Return+ttl < b.Return
	}
}

// findOvertaken finds waiters that waited while a client was served that had asked more than
// tolerance later, if no fault was active from the first call until the other was served.
func findOvertaken(lock string, waits []*Wait, holds []*Hold, tolerance int64, quiet func(from, to int64) bool) []Violation {
	var found []Violation
	for _, w := range waits {
		until := inLineUntil(w, tolerance)
		for _, h := range holds {
			if h.Grant != w.Grant && h.Call > w.Arrived+tolerance && h.Return < until && quiet(w.Arrived, h.Return) {
				found = append(found, Violation{
					Rule: RuleOvertaken, Lock: lock, At: h.Return, Grants: []string{w.Grant, h.Grant},
					What: fmt.Sprintf("%s asked %v after %s and was served before it", h.Grant,
						time.Duration(h.Call-w.Arrived).Round(time.Millisecond), w.Grant),
				})
				break
			}
		}
	}
	return found
}

// inLineUntil returns the time until which a waiter is certainly in the line. A waiter that gives
// up may have left the line before its call returned, at most leaveTime earlier. Nothing is known
// of a call that failed.
func inLineUntil(w *Wait, leaveTime int64) int64 {
	switch {
	case w.Return == 0:
		return exitOr(w, never)
	case w.Granted:
		return w.Return
	case w.GaveUp:
		return w.Return - leaveTime
	default:
		return 0
	}
}

// minOvertakers is how many clients that asked later must be served before a waiter counts as
// forgotten, if it waits for long enough.
const minOvertakers = 10

// findForgotten finds waiters that waited while clients were served that had asked later: for
// longer than maxDelay, and so many of them that no fault explains it, nor chance if the lock has
// no line. In a crowd, what counts is when the waiter arrived in the line, and as many must be served as
// were in it: a whole line may join between the arrival of a waiter's client and that of its request.
func findForgotten(lock string, waits []*Wait, holds []*Hold, maxDelay, end int64) []Violation {
	var found []Violation
	enough := max(minOvertakers, crowdOf(waits, end))
	for _, w := range waits {
		until := w.returnOr(end)
		next, _ := slices.BinarySearchFunc(holds, w.Arrived, func(h *Hold, at int64) int { return cmp.Compare(h.Return, at) })
		var last *Hold
		n := 0
		for _, h := range holds[next:] {
			if h.Return >= until {
				break
			}
			if h.Grant != w.Grant && h.Call > w.Arrived {
				n, last = n+1, h
			}
		}
		if n < enough || last.Return-w.Arrived <= maxDelay {
			continue
		}
		lasted := time.Duration(last.Return - w.Arrived)
		found = append(found, Violation{
			Rule: RuleForgotten, Lock: lock, At: last.Return, For: lasted, Grants: []string{w.Grant, last.Grant},
			What: fmt.Sprintf("%s waited for %v while %d were served that had asked later, the last of them %s", w.Grant,
				lasted.Round(time.Millisecond), n, last.Grant),
		})
	}
	return found
}

// returnOr returns the time at which a call was over, in a history that ends at end.
func (w *Wait) returnOr(end int64) int64 {
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

// maxCallDistance is the longest time from the end of one call for a lock to the next one during
// which the lock counts as wanted.
const maxCallDistance = int64(time.Second)

// wantedPeriods joins the calls for one lock that follow each other, of any client and with any
// outcome: a client that is refused at once, again and again, waits too. The Call and Return of the
// results are the periods.
func wantedPeriods(calls []*Wait, end int64) []*Wait {
	calls = slices.Clone(calls)
	slices.SortStableFunc(calls, func(a, b *Wait) int { return cmp.Compare(a.Call, b.Call) })
	var all []*Wait
	for _, c := range calls {
		w := *c
		w.Return = c.returnOr(end)
		if n := len(all); n > 0 && w.Call <= all[n-1].Return+maxCallDistance {
			all[n-1].Return = max(all[n-1].Return, w.Return)
			continue
		}
		all = append(all, &w)
	}
	return all
}

// A gap is a time in which a lock was wanted and not granted.
type gap struct {
	from, to int64
}

// findGaps returns, for one lock, the times from the end of a hold to the next grant during which
// the lock was wanted: from the end of the last hold on or, if it is a semaphore, from when on a slot
// was free. A hold ends when its holder no longer believes in it.
func findGaps(calls []*Wait, holds []*Hold, end int64) []gap {
	want := wantedPeriods(calls, end)
	var found []gap
	ends := make([]int64, capacity(calls)) // the latest ends of the holds before, the latest first
	for i := range len(holds) + 1 {
		next, free := end, ends[len(ends)-1]
		if i < len(holds) {
			next = holds[i].Return
		}
		if i > 0 {
			free = max(free, holds[i-1].Return) // the next slot may have been free earlier
		}
		for _, w := range want {
			if from, to := max(free, w.Call), min(next, w.Return); from < to {
				found = append(found, gap{from, to})
			}
		}
		if i < len(holds) {
			at, _ := slices.BinarySearchFunc(ends, holds[i].End, func(a, b int64) int { return cmp.Compare(b, a) })
			ends = slices.Insert(ends, at, holds[i].End)[:len(ends)]
		}
	}
	return found
}

// capacity returns how many can hold a lock at the same time, apart from readers.
func capacity(calls []*Wait) int {
	n := 1
	for _, c := range calls {
		n = max(n, c.Mode.Slots())
	}
	return min(n, maxCapacity)
}

// maxCapacity bounds what capacity returns, whatever a history says.
const maxCapacity = 1000

// findStranded finds locks that were wanted and not granted for longer than maxDelay while no fault
// was active, or for ten times as long under any faults.
func findStranded(lock string, calls []*Wait, all []gap, maxDelay int64, longestQuiet func(from, to int64) (int64, int64)) []Violation {
	var found []Violation
	for _, g := range all {
		from, to := longestQuiet(g.from, g.to)
		comment := "no fault was active"
		if to-from <= maxDelay {
			from, to = g.from, g.to
			comment = "longer than any fault excuses"
			if to-from <= 10*maxDelay {
				continue
			}
		}
		lasted := time.Duration(to - from)
		n, last := callsDuring(calls, from, to)
		found = append(found, Violation{
			Rule: RuleStranded, Lock: lock, At: to, For: lasted, Grants: []string{last},
			What: fmt.Sprintf("the lock was free and not granted for %v, with %d calls for it, the last of them %s; %s",
				lasted.Round(time.Millisecond), n, last, comment),
		})
	}
	return found
}

// callsDuring returns how many calls were active at some time between from and to, and the last of
// them.
func callsDuring(calls []*Wait, from, to int64) (n int, last string) {
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

// panicStatus is the status of a Go process that panicked, as the system reports it. No process of
// a run exits with 2 for another reason.
const panicStatus = "exit status 2"

// checkExits finds workers that did not end when asked to, or panicked.
func checkExits(l *index) []Violation {
	var found []Violation
	for _, worker := range slices.Sorted(maps.Keys(l.exits)) {
		switch e := l.exits[worker]; e.Exited.How {
		case history.ExitHung:
			found = append(found, Violation{Rule: RuleHung, At: e.At, What: worker + " was asked to end and did not"})
		case panicStatus:
			found = append(found, Violation{Rule: RuleCrashed, At: e.At, What: worker + " panicked; its output is in words.txt"})
		}
	}
	return found
}

// checkFinalState checks what was left when everything had ended: locks that cannot be acquired,
// entries in the store, and leaks of workers.
func checkFinalState(events []history.Event) []Violation {
	var found []Violation
	begin := map[string]*history.Census{}
	for _, e := range events {
		switch {
		case e.Final != nil && e.Final.Outcome != history.OK:
			found = append(found, Violation{
				Rule: RuleStuck, Lock: e.Final.Lock, At: e.At, What: "the last attempt to acquire it did not succeed: " + e.Final.Err,
			})
		case e.Leftovers != nil && len(e.Leftovers.Keys) > 0:
			found = append(found, Violation{
				Rule: RuleLeftBehind, Lock: e.Leftovers.Lock, At: e.At,
				What: fmt.Sprintf("a TTL after the end of all workers, the store still had %s", strings.Join(e.Leftovers.Keys, ", ")),
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
