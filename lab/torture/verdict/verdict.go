// Package verdict judges a history: it finds the rules that were broken, and sums up in figures
// what happened. It depends on nothing but the history, so any history can be judged again later.
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

// SettleTime is how long after the healing of a fault, besides the TTL, a system may need until it
// serves again: for elections, reconnections, and retries with their backoff.
const SettleTime = 5 * time.Second

// Verdict is the judgment of one history.
type Verdict struct {
	Run        history.Run `json:"run"`
	Violations []Violation `json:"violations"`
	Figures    Figures     `json:"figures"`
	// Faults has one row for each kind of fault, in the order of their names.
	Faults []FaultFigures `json:"faults"`
	// Reached says how often the run reached what proves something; see [Reached].
	Reached []Reach `json:"reached"`

	// The fields below are for the timeline.
	Holds   []*Hold      `json:"-"`
	Waits   []*Wait      `json:"-"`
	Strikes []Strike     `json:"-"`
	Writes  []StaleWrite `json:"-"`
	Begin   int64        `json:"-"`
	End     int64        `json:"-"`
}

// Figures are the figures of a run.
type Figures struct {
	// Workers is how many workers were started, including those that replaced killed ones.
	Workers int `json:"workers"`
	Locks   int `json:"locks"`
	// Acquisitions are the calls that acquired a lock. HandOvers are those of them whose
	// predecessor was another worker.
	Acquisitions int `json:"acquisitions"`
	HandOvers    int `json:"hand_overs"`
	GaveUp       int `json:"gave_up"`
	Failed       int `json:"failed"`
	Unknown      int `json:"unknown"`
	// Lost are the holds whose holders were notified of the loss.
	Lost int `json:"lost"`
	// RemovedEarly are the holds whose entries the store removed while they were valid, without a
	// request to do so.
	RemovedEarly int `json:"early"`
	// NotifiedP50 and NotifiedP99 are how long after the observer saw its entry disappear the
	// holder was notified; zero without losses.
	NotifiedP50 time.Duration `json:"told_p50_ns"`
	NotifiedP99 time.Duration `json:"told_p99_ns"`
	// MinPerWorker and MaxPerWorker are the fewest and the most acquisitions of one worker, of
	// those that lived from the start to the end of the run.
	MinPerWorker int `json:"fewest"`
	MaxPerWorker int `json:"most"`

	Damage
	// LongestGap is the longest time for which a lock was wanted, free and not granted.
	LongestGap time.Duration `json:"longest_gap_ns"`
}

// Damage is the damage to the resource: to the cell that checks tokens, and to the one that does
// not.
type Damage struct {
	// Overlaps are the violations of [RuleOverlap], [RuleReaderBesideWriter] and [RuleTooMany].
	Overlaps int `json:"overlaps"`
	// Stale are the writes of older holds that reached the unfenced cell after writes of newer
	// ones.
	Stale int `json:"stale_unfenced"`
	// LostUpdates are the unfenced writes that overwrote an update their writers had not read, and the
	// readings that changed under a reader.
	LostUpdates int `json:"lost_updates"`
	// StaleAccepted are the violations of [RuleStaleWrite]. Refused are the writes that the fenced
	// cell refused.
	StaleAccepted int `json:"stale_fenced"`
	Refused       int `json:"refused"`
}

// FaultFigures are the figures of one kind of fault.
type FaultFigures struct {
	Name string `json:"name"`
	// Strikes is how often it struck. OnHolder and OnLeader are how often it struck a worker that
	// held a lock, and a server that was the leader.
	Strikes  int `json:"strikes"`
	OnHolder int `json:"on_holder"`
	OnLeader int `json:"on_leader"`
	// Failures is how often the fault or its healing failed.
	Failures int `json:"failures"`
	// Acquisitions, HandOvers, Damage and LongestGap are those from each strike to the next fault.
	Acquisitions int `json:"acquisitions"`
	HandOvers    int `json:"hand_overs"`
	Damage
	LongestGap time.Duration `json:"longest_gap_ns"`
}

// A Strike is one fault of a run, from its start to its healing.
type Strike struct {
	history.Fault
	From int64 `json:"from"`
	// To is when it was healed; the end of the history if it was not.
	To  int64  `json:"to"`
	Err string `json:"err,omitempty"`
}

// A StaleWrite is a write of an older hold that arrived after one of a newer hold.
type StaleWrite struct {
	Lock    string `json:"lock"`
	Grant   string `json:"grant"`
	At      int64  `json:"at"`
	Mode    string `json:"mode"`
	Refused bool   `json:"refused"`
}

// Judge judges a history.
func Judge(h *history.History) *Verdict {
	j := &judge{Verdict: &Verdict{Run: h.Run, Violations: []Violation{}, Faults: []FaultFigures{}}, history: h, index: newIndex(h)}
	if len(h.Events) > 0 {
		j.Begin, j.End = h.Events[0].At, j.index.end
	}
	j.Holds, j.Waits = j.index.holds, j.index.waits
	j.readFaults()
	j.setArrivals()
	j.judgeLocks()
	j.judgeWrites()
	j.judgeLosses()
	j.countCalls()
	j.Reached = Reached(h)
	j.Violations = append(j.Violations, checkExits(j.index)...)
	j.Violations = append(j.Violations, checkFinalState(h.Events)...)
	j.checkAmount()
	j.concede()
	slices.SortStableFunc(j.Violations, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
	return j.Verdict
}

// Broken returns the rules that were broken, each with the number of its violations. Conceded
// violations do not count.
func (v *Verdict) Broken() map[string]int {
	rules := map[string]int{}
	for _, violation := range v.Violations {
		if violation.Conceded == "" {
			rules[violation.Rule]++
		}
	}
	return rules
}

// Conceded returns the number of conceded violations.
func (v *Verdict) Conceded() int {
	n := 0
	for _, violation := range v.Violations {
		if violation.Conceded != "" {
			n++
		}
	}
	return n
}

type judge struct {
	*Verdict
	history *history.History
	index   *index
	byFault map[string]*FaultFigures
}

// readFaults reads the faults and how often each kind struck.
func (j *judge) readFaults() {
	j.byFault = map[string]*FaultFigures{}
	byID := map[int]int{}
	for _, e := range j.history.Events {
		switch {
		case e.Fault != nil:
			byID[e.Fault.ID] = len(j.Strikes)
			j.Strikes = append(j.Strikes, Strike{Fault: *e.Fault, From: e.At, To: j.End})
		case e.Heal != nil:
			if i, ok := byID[e.Heal.ID]; ok {
				j.Strikes[i].To, j.Strikes[i].Err = e.At, e.Heal.Err
			}
		}
	}
	slices.SortStableFunc(j.Strikes, func(a, b Strike) int { return cmp.Compare(a.From, b.From) })
	for _, s := range j.Strikes {
		row := j.byFault[s.Name]
		if row == nil {
			row = &FaultFigures{Name: s.Name}
			j.byFault[s.Name] = row
		}
		if s.Err != "" {
			row.Failures++
			continue
		}
		row.Strikes++
		if s.Role == "leader" {
			row.OnLeader++
		}
		victims := strings.Split(s.On, ",")
		if slices.ContainsFunc(j.Holds, func(h *Hold) bool {
			// The commands that `stile run` runs for w1 are the workers w1-1, w1-2 and so on.
			name, _, _ := strings.Cut(h.Worker, "-")
			return slices.Contains(victims, name) && h.Return < s.To && s.From < h.End
		}) {
			row.OnHolder++
		}
	}
}

// lastFault returns the figures of the kind of fault that was the last to begin before the time at;
// nil if there was none.
func (j *judge) lastFault(at int64) *FaultFigures {
	for _, s := range slices.Backward(j.Strikes) {
		if s.From <= at {
			return j.byFault[s.Name]
		}
	}
	return nil
}

// quiet reports whether no fault was active between from and to, or had been healed shortly before.
func (j *judge) quiet(from, to int64) bool {
	for _, s := range j.Strikes {
		if s.From < to && from < s.To+j.settle() {
			return false
		}
	}
	return true
}

func (j *judge) settle() int64 { return j.Run.TTL + int64(SettleTime) }

// maxGrantDelay is how long it may take until a free lock is granted: two TTLs, because a session
// may live for another one after a change of leader, and the time to settle.
func (j *judge) maxGrantDelay() int64 { return j.settle() + j.Run.TTL }

// longestQuiet returns the longest part of an interval in which no fault was active.
func (j *judge) longestQuiet(from, to int64) (begin, end int64) {
	quietSince := from // the start of the quiet part before the next strike
	longest := func(until int64) {
		if until-quietSince > end-begin {
			begin, end = quietSince, until
		}
	}
	for _, s := range j.Strikes {
		longest(min(s.From, to))
		quietSince = max(quietSince, s.To)
	}
	longest(to)
	return begin, end
}

// count adds one to a figure of the run, and to the same figure of the last fault.
func (j *judge) count(at int64, figure func(*Damage) *int) {
	*figure(&j.Figures.Damage)++
	if row := j.lastFault(at); row != nil {
		*figure(&row.Damage)++
	}
}

// judgeLocks judges the holds and waits of each lock.
func (j *judge) judgeLocks() {
	waits := byLock(j.index.waits, func(w *Wait) string { return w.Lock })
	calls := byLock(slices.Concat(j.index.waits, j.index.tries), func(w *Wait) string { return w.Lock })
	holds := byLock(j.Holds, func(h *Hold) string { return h.Lock })
	observed := byLock(j.index.observed, func(e history.Event) string { return e.Observed.Lock })
	j.Figures.Locks = len(holds)
	for _, lock := range slices.Sorted(maps.Keys(holds)) {
		held := holds[lock]
		found := slices.Concat(findOverlaps(lock, held), findTooMany(lock, held))
		for _, v := range found {
			j.count(v.At, func(d *Damage) *int { return &d.Overlaps })
		}
		found = append(found, findEndedBefore(lock, held)...)
		if j.Run.Offers.Tokens {
			found = append(found, checkTokens(lock, held, j.Run.Offers)...)
			found = append(found, findNotLeaders(lock, observed[lock], held, j.Run.Offers)...)
			found = append(found, findDeletedEntries(lock, held, j.Strikes, j.Run.Offers)...)
		}
		found = append(found, findNumbersTwice(lock, held, j.Run.Offers)...)
		if j.Run.Offers.Fair {
			inLine := slices.DeleteFunc(slices.Clone(waits[lock]), func(w *Wait) bool { return w.Set != "" && !j.Run.Offers.Sets })
			found = append(found, findOvertaken(lock, inLine, held, j.Run.TTL, j.quiet)...)
		}
		found = append(found, findForgotten(lock, waits[lock], held, 3*j.maxGrantDelay(), j.End)...)
		j.Violations = append(j.Violations, found...)
		j.countGrants(held)
	}
	for _, lock := range slices.Sorted(maps.Keys(calls)) {
		all := findGaps(calls[lock], holds[lock], j.End)
		for _, g := range all {
			j.countGap(g)
		}
		j.Violations = append(j.Violations, findStranded(lock, calls[lock], all, j.maxGrantDelay(), j.longestQuiet)...)
	}
	j.Violations = append(j.Violations, findSucceededTwice(j.index.once)...)
	j.Violations = append(j.Violations, findCycles(j.index.waits, j.Holds, j.maxGrantDelay(), j.End, j.longestQuiet)...)
}

func (j *judge) countGrants(held []*Hold) {
	for i, h := range held {
		handOver := i > 0 && held[i-1].Worker != h.Worker
		j.Figures.Acquisitions++
		row := j.lastFault(h.Return)
		if row != nil {
			row.Acquisitions++
		}
		if handOver {
			j.Figures.HandOvers++
			if row != nil {
				row.HandOvers++
			}
		}
	}
}

func (j *judge) countGap(g gap) {
	d := time.Duration(g.to - g.from)
	j.Figures.LongestGap = max(j.Figures.LongestGap, d)
	if row := j.lastFault(g.to); row != nil {
		row.LongestGap = max(row.LongestGap, d)
	}
}

// judgeWrites judges the writes. They are in the order in which the resource decided on them.
func (j *judge) judgeWrites() {
	var writes []history.Event
	for _, e := range j.history.Events {
		if e.Write != nil {
			writes = append(writes, e)
		}
	}
	groups := byLock(writes, func(e history.Event) string { return e.Write.Lock })
	for _, lock := range slices.Sorted(maps.Keys(groups)) {
		found := findStaleWrites(lock, groups[lock], j.index.byGrant, j.Run.TTL)
		for _, v := range found {
			j.count(v.At, func(d *Damage) *int { return &d.StaleAccepted })
		}
		j.Violations = append(j.Violations, found...)
		newest := map[string]int64{} // by mode, when the newest hold with an accepted write was granted
		for _, e := range groups[lock] {
			j.judgeWrite(e, newest)
		}
	}
}

func (j *judge) judgeWrite(e history.Event, newest map[string]int64) {
	w := e.Write
	if (w.Mode == "unfenced" || w.Mode == "reread") && w.Read != w.Version {
		j.count(e.At, func(d *Damage) *int { return &d.LostUpdates })
	}
	if w.Refused {
		j.count(e.At, func(d *Damage) *int { return &d.Refused })
	}
	h := j.index.byGrant[w.Grant]
	if h == nil || w.Mode == "reread" || w.Mode == "audit" && h.Mode != history.Exclusive {
		return // its holder was killed before it could record the hold; or others may hold the lock too
	}
	if h.Return >= newest[w.Mode] {
		if !w.Refused {
			newest[w.Mode] = h.Return
		}
		return
	}
	j.Writes = append(j.Writes, StaleWrite{Lock: w.Lock, Grant: w.Grant, At: e.At, Mode: w.Mode, Refused: w.Refused})
	if w.Mode == "unfenced" {
		j.count(e.At, func(d *Damage) *int { return &d.Stale })
	}
}

// judgeLosses compares the entries that the observer saw disappear with what the holders knew.
func (j *judge) judgeLosses() {
	byOrder := map[string]map[uint64][]*Hold{} // an entry may have several holds
	for _, h := range j.Holds {
		if h.LostAt != 0 {
			j.Figures.Lost++
		}
		if byOrder[h.Lock] == nil {
			byOrder[h.Lock] = map[uint64][]*Hold{}
		}
		order := orderOf(h.Token, j.Run.Offers)
		byOrder[h.Lock][order] = append(byOrder[h.Lock][order], h)
	}
	var delays []time.Duration
	for _, e := range j.history.Events {
		if e.Entry == nil || !e.Entry.Gone || e.Entry.Token == 0 {
			continue
		}
		for _, h := range byOrder[e.Entry.Lock][orderOf(e.Entry.Token, j.Run.Offers)] {
			if delay := j.judgeLoss(h, e.At); delay > 0 {
				delays = append(delays, delay)
			}
		}
	}
	slices.Sort(delays)
	j.Figures.NotifiedP50, j.Figures.NotifiedP99 = quantile(delays, 0.5), quantile(delays, 0.99)
}

// judgeLoss judges a hold whose entry the observer saw disappear at a time. It returns how much later
// the holder was notified; zero if it was not.
func (j *judge) judgeLoss(h *Hold, at int64) time.Duration {
	if h.Release != 0 && h.Release <= at {
		return 0
	}
	if row := j.lastFault(at); at < h.Until && (row == nil || row.Name != history.Evict) {
		j.Figures.RemovedEarly++
	}
	if late := h.End - at; late > 2*j.Run.TTL {
		j.Violations = append(j.Violations, Violation{
			Rule: RuleNotTold, Lock: h.Lock, At: h.End, For: time.Duration(late), Grants: []string{h.Grant},
			What: fmt.Sprintf("%s believed in its hold for another %v after its entry had disappeared", h.Grant, time.Duration(late).Round(time.Millisecond)),
		})
	}
	return time.Duration(max(0, h.LostAt-at))
}

// quantile returns the smallest value that at least the fraction q of the sorted values do not
// exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// countCalls counts the outcomes of calls, and the acquisitions of each worker.
func (j *judge) countCalls() {
	acquired, fromStart := map[string]int{}, map[string]bool{}
	var last int64 // the last fault or acquisition; a worker that exited earlier did not live to the end
	for _, e := range j.history.Events {
		switch {
		case e.Started != nil:
			j.Figures.Workers++
			fromStart[e.Worker] = e.At-j.Begin < int64(SettleTime)
		case e.Fault != nil:
			last = e.At
		case e.Acquire != nil && e.Acquire.Outcome == history.OK:
			acquired[e.Worker]++
			last = max(last, e.At)
		case e.Acquire != nil && e.Acquire.GaveUp:
			j.Figures.GaveUp++
		case e.Acquire != nil && e.Acquire.Outcome == history.Failed:
			j.Figures.Failed++
		case e.Acquire != nil:
			j.Figures.Unknown++
		}
	}
	first := true
	for worker, n := range acquired {
		if exit := j.index.exits[worker]; !fromStart[worker] || (exit.Exited != nil && exit.At < last) {
			continue
		}
		if first || n < j.Figures.MinPerWorker {
			j.Figures.MinPerWorker = n
		}
		j.Figures.MaxPerWorker, first = max(j.Figures.MaxPerWorker, n), false
	}
}

// concede marks the violations that a fault excuses. A fault that failed, or whose healing failed,
// excuses as much: it may have happened nevertheless.
func (j *judge) concede() {
	concessions := Concessions(j.Run.Target)
	for i := range j.Violations {
		v := &j.Violations[i]
		for _, s := range j.Strikes {
			rules := concessions[s.Name]
			if !slices.Contains(rules, v.Rule) || !s.mayHaveCaused(v, j.Run.TTL) {
				continue
			}
			// If the store loses its data, tokens go back whether or not a hold was ended.
			if v.since != 0 && slices.Contains(rules, RuleGrantedTwice) || s.mayHaveEnded(j.holdsOf(v), j.Run) {
				v.Conceded = s.Name
			}
		}
	}
}

// holdsOf returns the holds that a violation is about.
func (j *judge) holdsOf(v *Violation) []*Hold {
	var holds []*Hold
	for _, grant := range v.Grants {
		if h := j.index.byGrant[grant]; h != nil {
			holds = append(holds, h)
		}
	}
	return holds
}

// mayHaveCaused reports whether a strike is close enough in time to be the cause of a violation. A
// holder believes in its hold for a TTL after its last confirmation. A violation that begins later
// than a TTL after the healing, or lasts for more than two TTLs, has another cause.
func (s *Strike) mayHaveCaused(v *Violation, ttl int64) bool {
	since := v.At
	if v.since != 0 {
		since = v.since
	}
	return s.From <= v.At && since <= s.To+ttl && int64(v.For) <= 2*ttl && (s.Lock == "" || s.Lock == v.Lock)
}

// mayHaveEnded reports whether a strike can have ended one of several holds, which cannot exist
// together, without its holder knowing it when the last of them was granted. If the entries of all
// were admitted after the strike, it excuses nothing. The last of the holds counts only if it had the
// entry of an earlier hold: a client that does not know that its entry has ended may lock again with it. A hold of
// which its client learned last is not the last if another has a larger token: the store admitted that one later.
func (s *Strike) mayHaveEnded(holds []*Hold, run history.Run) bool {
	if len(holds) < 2 {
		return false
	}
	if len(s.Took) > 0 && holds[0].Token != 0 {
		return slices.ContainsFunc(holds, func(h *Hold) bool { return s.tookHolder(h, run.Offers) && !h.proven(run.Offers) })
	}
	holds = slices.Clone(holds)
	slices.SortStableFunc(holds, func(a, b *Hold) int { return cmp.Compare(a.Return, b.Return) })
	last := holds[len(holds)-1]
	if slices.ContainsFunc(holds, func(h *Hold) bool { return last.Token != 0 && h.Token > last.Token }) {
		last = nil
	}
	return slices.ContainsFunc(holds, func(h *Hold) bool {
		return (h != last || h.from < h.Return) && h.from <= s.To+s.grantDelay(run.TTL) && !h.proven(run.Offers)
	})
}

// tookHolder reports whether an eviction deleted the entry of a hold that may have held the lock
// then: the first of the line, or one that can hold the lock beside others.
func (s *Strike) tookHolder(h *Hold, offers history.Offers) bool {
	return orderOf(h.Token, offers) == orderOf(s.Took[0], offers) || h.Mode != history.Exclusive && slices.Contains(s.Took, h.Token)
}

// grantDelay is how long after the healing of a strike a hold may be granted at the latest if the
// strike can have ended it: the reply to its call may have been on its way. A paused leader ends
// leases only when it resumes.
func (s *Strike) grantDelay(ttl int64) int64 {
	if strings.HasSuffix(s.Name, "-pause") {
		return ttl
	}
	return ttl / 4
}

// proven reports whether the release has shown that the hold had lasted until then, so that no
// fault had ended it.
func (h *Hold) proven(offers history.Offers) bool {
	return offers.Proof && h.Outcome == history.OK && !h.unproven
}

// checkAmount reports a history that proves nothing.
func (j *judge) checkAmount() {
	add := func(format string, args ...any) {
		j.Violations = append(j.Violations, Violation{Rule: RuleTooLittle, At: j.End, What: fmt.Sprintf(format, args...)})
	}
	if n := j.Figures.Acquisitions; n < 10 {
		add("%d acquisitions prove nothing: at least 10 are needed", n)
	}
	if j.Figures.HandOvers == 0 {
		add("the lock never passed from one worker to another")
	}
	if locks := j.locksWithoutFinal(); len(locks) > 0 {
		add("the history is truncated: it lacks the last attempts at %d of the locks, such as %s", len(locks), locks[0])
	}
	asked := j.Run.Faults != "none" && j.Run.Faults != ""
	if asked && !slices.ContainsFunc(j.Strikes, func(s Strike) bool { return s.Err == "" }) {
		add("no fault struck, although %s were requested", j.Run.Faults)
	}
	if asked && j.Run.Faults != "all" {
		for name := range strings.SplitSeq(j.Run.Faults, ",") {
			if name = strings.TrimSpace(name); j.byFault[name] == nil {
				add("%s was requested but never tried", name)
			}
		}
	}
	for _, name := range j.Run.Promised {
		if !slices.ContainsFunc(j.Reached, func(r Reach) bool { return r.Name == name && r.Times > 0 }) {
			add("it was never reached that %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.byFault)) {
		row := j.byFault[name]
		j.Faults = append(j.Faults, *row)
		if row.Strikes == 0 && row.Failures > 2 { // a victim may be out of reach once or twice
			add("%s failed each of the %d times it was tried", name, row.Failures)
		}
	}
}

// locksWithoutFinal returns the locks that were asked for without a last attempt in the history.
// Every run ends with these attempts.
func (j *judge) locksWithoutFinal() []string {
	locks := map[string]bool{}
	for _, w := range slices.Concat(j.index.waits, j.index.tries) {
		locks[w.Lock] = true
	}
	for _, e := range j.history.Events {
		if e.Final != nil {
			delete(locks, e.Final.Lock)
		}
	}
	return slices.Sorted(maps.Keys(locks))
}
