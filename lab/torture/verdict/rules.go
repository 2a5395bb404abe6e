package verdict

import (
	"cmp"
	"fmt"
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
	// RuleStore: by the tokens' order, the store itself let two hold at the same time, or gave tokens out of order.
	RuleStore = "granted twice"
	// RuleToken: two holds have the same token.
	RuleToken = "token given twice"
	// RuleUntold: a holder still believed in its hold two TTLs after the observer had seen its entry go.
	RuleUntold = "holder not told"
	// RuleFence: the fenced resource took a write of an older hold after one of a newer hold.
	RuleFence = "stale write accepted"
	// RuleUnfair: somebody was overtaken, by one who asked more than a TTL later, though nothing was being done to the system.
	RuleUnfair = "overtaken"
	// RuleStranded: somebody waited for a lock that nobody held, though nothing was being done to the system.
	RuleStranded = "waiter stranded"
	// RuleStuck: when everything was over and healed, the lock could not be had.
	RuleStuck = "lock stuck"
	// RuleDebris: when everything was over, and a TTL had passed, there was still something in the store.
	RuleDebris = "entry left behind"
	// RuleLeak: a worker that had released and closed everything had more goroutines or descriptors than before.
	RuleLeak = "leak"
	// RuleHung: a worker that was asked to end never did.
	RuleHung = "hung"
	// RuleThin: too little happened for the run to prove anything.
	RuleThin = "too little happened"
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
}

// Concessions are, by fault, the rules that Stile does not promise to keep while it lasts and shortly after, because no store
// could: docs/guarantees.md says so. What tokens are for is never conceded.
func Concessions() map[string][]string {
	exclusion := []string{RuleOverlap, RuleValidity}
	forgetting := []string{RuleOverlap, RuleValidity, RuleStore}
	return map[string][]string{
		// Whoever takes a holder's entry away lets the next one in as the holder is told.
		history.Evict: exclusion,
		// etcd may end fresh leases early when a leader goes on that was stopped. Options.LockDelay is for that.
		"leader-pause": exclusion, "server-pause": exclusion,
		// A Redis that has forgotten everything, or whose clock has jumped, has let go of what was held.
		"restart-empty": forgetting, "clock-jump": forgetting,
	}
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
		{RuleStore, func(h *Hold) (int64, int64) { return storeEnd(h, offers.Proof) }},
		{RuleValidity, func(h *Hold) (int64, int64) { return h.End, never }},
	} {
		grants := make([]*grant, 0, len(holds))
		for _, h := range holds {
			g := &grant{name: h.Grant, token: h.Token, call: h.Call, returned: h.Return}
			g.endMin, g.endMax = reading.end(h)
			grants = append(grants, g)
		}
		c := fenced(grants)
		if c == nil {
			continue
		}
		rule := reading.rule
		if c.earlier != nil && c.earlier.token == c.later.token {
			rule = RuleToken
		}
		v := Violation{Rule: rule, Lock: lock, At: c.later.returned, What: c.why, Grants: []string{c.later.name}}
		if c.earlier != nil {
			v.Grants = []string{c.earlier.name, c.later.name}
			v.What = fmt.Sprintf("%s (token %d) and %s (token %d): %s", c.earlier.name, c.earlier.token, c.later.name,
				c.later.token, c.why)
		}
		found = append(found, v)
		if rule == RuleToken {
			break // the other reading would say the same
		}
	}
	return found
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

// staleWrites finds writes of older holds that the fenced resource accepted after those of newer ones. They come in the
// order in which the resource, which does one thing at a time, has decided on them.
func staleWrites(lock string, writes []history.Event) []Violation {
	var found []Violation
	var newest history.Event
	for _, e := range writes {
		w := e.Write
		if w.Mode != "fenced" || w.Refused {
			continue
		}
		if newest.Write != nil && w.Token < newest.Write.Token {
			found = append(found, Violation{
				Rule: RuleFence, Lock: lock, At: e.At, Grants: []string{newest.Write.Grant, w.Grant},
				What: fmt.Sprintf("a write of %s (token %d) was accepted after one of %s (token %d)", w.Grant, w.Token,
					newest.Write.Grant, newest.Write.Token),
			})
			continue
		}
		newest = e
	}
	return found
}

// overtaken finds those who waited while somebody was served who had come more than patience later, with nothing done to
// the system from when the first asked until the other was served.
func overtaken(lock string, waits []*Wait, holds []*Hold, patience int64, quiet func(from, to int64) bool) []Violation {
	var found []Violation
	for _, w := range waits {
		if w.Return != 0 && !w.Got {
			continue // it gave up, and need not have been in the line
		}
		for _, h := range holds {
			before := w.Return == 0 || h.Return < w.Return
			if h.Grant != w.Grant && h.Call > w.Call+patience && before && h.Return < exitOr(w, never) && quiet(w.Call, h.Return) {
				found = append(found, Violation{
					Rule: RuleUnfair, Lock: lock, At: h.Return, Grants: []string{w.Grant, h.Grant},
					What: fmt.Sprintf("%s asked %v after %s and had the lock before it", h.Grant,
						time.Duration(h.Call-w.Call).Round(time.Millisecond), w.Grant),
				})
				break
			}
		}
	}
	return found
}

func exitOr(w *Wait, otherwise int64) int64 {
	if w.Exit != 0 {
		return w.Exit
	}
	return otherwise
}

// A gap is a time in which somebody waited for a lock that nobody was given.
type gap struct {
	from, to int64
	waiter   string
}

// gaps returns, for one lock, the times from the end of a hold (or the begin of waiting) to the next grant during which at
// least one worker waited all the time. A hold counts as over when its holder no longer believed in it.
func gaps(waits []*Wait, holds []*Hold, end int64) []gap {
	var found []gap
	ends := make([]int64, 0, len(holds)) // the latest end of the first i holds
	var latest int64
	for _, h := range holds {
		latest = max(latest, h.End)
		ends = append(ends, latest)
	}
	for i := range len(holds) + 1 {
		next, free := end, int64(0)
		if i < len(holds) {
			next = holds[i].Return
		}
		if i > 0 {
			free = ends[i-1]
		}
		// The one who has waited the longest of those who waited until then.
		var first *Wait
		for _, w := range waits {
			until := min(exitOr(w, end), end)
			if w.Return != 0 {
				until = w.Return
			}
			if w.Call < next && until >= next && (first == nil || w.Call < first.Call) {
				first = w
			}
		}
		if first != nil && next > max(free, first.Call) {
			found = append(found, gap{from: max(free, first.Call), to: next, waiter: first.Grant})
		}
	}
	return found
}

// stranded finds waiters whom nobody served for longer than patience after the last thing was done to the system.
func stranded(lock string, all []gap, patience int64, lastDisturbed func(int64) int64) []Violation {
	var found []Violation
	for _, g := range all {
		from := max(g.from, lastDisturbed(g.to))
		if waited := g.to - from; waited > patience {
			found = append(found, Violation{
				Rule: RuleStranded, Lock: lock, At: g.to, For: time.Duration(waited), Grants: []string{g.waiter},
				What: fmt.Sprintf("%s waited %v for a lock that nobody held, while nothing was done to the system", g.waiter,
					time.Duration(waited).Round(time.Millisecond)),
			})
		}
	}
	return found
}

// hung finds workers that never ended.
func hung(l *lives) []Violation {
	var found []Violation
	for worker, e := range l.exits {
		if e.Exited.How == history.HowHung {
			found = append(found, Violation{
				Rule: RuleHung, At: e.At, What: worker + " was asked to end and did not",
			})
		}
	}
	slices.SortFunc(found, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
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
		case e.Left != nil && len(e.Left.Keys) > 0:
			found = append(found, Violation{
				Rule: RuleDebris, Lock: e.Left.Lock, At: e.At,
				What: fmt.Sprintf("a TTL after everything was over, there was still %s", strings.Join(e.Left.Keys, ", ")),
			})
		case e.Census != nil && e.Census.Phase == "begin":
			begin[e.Worker] = e.Census
		case e.Census != nil && begin[e.Worker] != nil:
			if was := begin[e.Worker]; e.Census.Goroutines > was.Goroutines || e.Census.Descriptors > was.Descriptors {
				found = append(found, Violation{
					Rule: RuleLeak, At: e.At,
					What: fmt.Sprintf("%s had %d goroutines and %d descriptors before its first lock, and %d and %d after it had released and closed everything",
						e.Worker, was.Goroutines, was.Descriptors, e.Census.Goroutines, e.Census.Descriptors),
				})
			}
		}
	}
	return found
}
