// Package verdict judges a history: which rules were broken, and in figures what happened. It knows nothing of how the
// history came about, so that anybody can judge one again.
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

// SettleTime is how long after the healing of a fault, besides the TTL, a system may need to serve again: elections,
// reconnections and retries with their pauses.
const SettleTime = 5 * time.Second

// Verdict is what a history shows.
type Verdict struct {
	Run        history.Run `json:"run"`
	Violations []Violation `json:"violations"`
	Figures    Figures     `json:"figures"`
	// Faults has one row for each fault by name, in the order of their names.
	Faults []FaultFigures `json:"faults"`

	// For the timeline.
	Holds   []*Hold      `json:"-"`
	Waits   []*Wait      `json:"-"`
	Strikes []Strike     `json:"-"`
	Writes  []StaleWrite `json:"-"`
	Begin   int64        `json:"-"`
	End     int64        `json:"-"`
}

// Figures say how much happened in a run, and how well.
type Figures struct {
	// Workers is how many there were, with those that replaced killed ones.
	Workers int `json:"workers"`
	Locks   int `json:"locks"`
	// Acquisitions are calls that got a lock, HandOvers those of them whose predecessor was another worker.
	Acquisitions int `json:"acquisitions"`
	HandOvers    int `json:"hand_overs"`
	GaveUp       int `json:"gave_up"`
	Failed       int `json:"failed"`
	Unknown      int `json:"unknown"`
	// Lost are holds whose holders were told of the loss.
	Lost int `json:"lost"`
	// RemovedEarly are holds whose entries the store removed while they were valid, though nobody had asked it to.
	RemovedEarly int `json:"early"`
	// NotifiedP50 and NotifiedP99 are how long after the observer saw the entry go the holder was told. Zero without losses.
	NotifiedP50 time.Duration `json:"told_p50_ns"`
	NotifiedP99 time.Duration `json:"told_p99_ns"`
	// MinPerWorker and MaxPerWorker are acquisitions of workers that lived from the begin to the end.
	MinPerWorker int `json:"fewest"`
	MaxPerWorker int `json:"most"`

	Damage
	// LongestGap is the longest time that a lock was asked for which nobody held, and that nobody was given.
	LongestGap time.Duration `json:"longest_gap_ns"`
}

// Damage is what was done to the resource, and would have been done to one that does not check tokens.
type Damage struct {
	// Overlaps are violations of [RuleOverlap].
	Overlaps int `json:"overlaps"`
	// Stale are writes of older holds that reached the unfenced resource after writes of newer ones.
	Stale int `json:"stale_unfenced"`
	// LostUpdates are unfenced writes that overwrote what their writers had not read.
	LostUpdates int `json:"lost_updates"`
	// StaleAccepted are violations of [RuleStaleWrite], Refused the writes that the fenced resource refused.
	StaleAccepted int `json:"stale_fenced"`
	Refused       int `json:"refused"`
}

// FaultFigures are those of one kind of fault.
type FaultFigures struct {
	Name string `json:"name"`
	// Strikes is how often it struck; OnHolder and OnLeader how often it struck a worker that held, and a server that led.
	Strikes  int `json:"strikes"`
	OnHolder int `json:"on_holder"`
	OnLeader int `json:"on_leader"`
	// Failures is how often it could not be done, or not be healed.
	Failures int `json:"failures"`
	// Acquisitions and HandOvers, and the damage, are those from each strike to the next fault.
	Acquisitions int `json:"acquisitions"`
	HandOvers    int `json:"hand_overs"`
	Damage
	LongestGap time.Duration `json:"longest_gap_ns"`
}

// A Strike is one fault.
type Strike struct {
	history.Fault
	From int64 `json:"from"`
	// To is when it was healed.
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
	j := &judge{Verdict: &Verdict{Run: h.Run, Violations: []Violation{}, Faults: []FaultFigures{}}, history: h, lives: live(h)}
	if len(h.Events) > 0 {
		j.Begin, j.End = h.Events[0].At, j.lives.end
	}
	j.Holds, j.Waits = j.lives.holds, j.lives.waits
	j.strikes()
	j.locks()
	j.resource()
	j.losses()
	j.calls()
	j.Violations = append(j.Violations, ends(j.lives)...)
	j.Violations = append(j.Violations, over(h.Events)...)
	j.thin()
	j.concede()
	slices.SortStableFunc(j.Violations, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
	return j.Verdict
}

// Broken returns the rules that were broken and not conceded, each with how often.
func (v *Verdict) Broken() map[string]int {
	rules := map[string]int{}
	for _, violation := range v.Violations {
		if violation.Conceded == "" {
			rules[violation.Rule]++
		}
	}
	return rules
}

// Conceded returns how many violations are conceded.
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
	lives   *lives
	rows    map[string]*FaultFigures
}

// strikes reads the faults.
func (j *judge) strikes() {
	j.rows = map[string]*FaultFigures{}
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
		row := j.rows[s.Name]
		if row == nil {
			row = &FaultFigures{Name: s.Name}
			j.rows[s.Name] = row
		}
		if s.Err != "" {
			row.Failures++
			continue
		}
		row.Strikes++
		if s.Role == "leader" {
			row.OnLeader++
		}
		struck := strings.Split(s.On, ",")
		if slices.ContainsFunc(j.Holds, func(h *Hold) bool {
			// What `stile run` runs for w1 is done by w1-1, w1-2 and so on.
			name, _, _ := strings.Cut(h.Worker, "-")
			return slices.Contains(struck, name) && h.Return < s.To && s.From < h.End
		}) {
			row.OnHolder++
		}
	}
}

// row returns the row of the fault that began last before at; nil if there was none.
func (j *judge) row(at int64) *FaultFigures {
	for _, s := range slices.Backward(j.Strikes) {
		if s.From <= at {
			return j.rows[s.Name]
		}
	}
	return nil
}

// quiet reports whether nothing was being done to the system, nor had just been.
func (j *judge) quiet(from, to int64) bool {
	for _, s := range j.Strikes {
		if s.From < to && from < s.To+j.settle() {
			return false
		}
	}
	return true
}

func (j *judge) settle() int64 { return j.Run.TTL + int64(SettleTime) }

// patience is how long it may take until somebody is given a lock: two TTLs, because a session may live for another one after a
// change of leader, and the time to settle.
func (j *judge) patience() int64 { return j.settle() + j.Run.TTL }

// calm returns the longest part of a time in which nothing was being done to the system.
func (j *judge) calm(from, to int64) (begin, end int64) {
	undisturbed := from // since when, before the next strike
	longest := func(until int64) {
		if until-undisturbed > end-begin {
			begin, end = undisturbed, until
		}
	}
	for _, s := range j.Strikes {
		longest(min(s.From, to))
		undisturbed = max(undisturbed, s.To)
	}
	longest(to)
	return begin, end
}

// count adds to a figure of the run and to that of the fault during which it happened.
func (j *judge) count(at int64, figure func(*Damage) *int) {
	*figure(&j.Figures.Damage)++
	if row := j.row(at); row != nil {
		*figure(&row.Damage)++
	}
}

// locks judges the holds and waits of each lock.
func (j *judge) locks() {
	waits := byLock(j.lives.waits, func(w *Wait) string { return w.Lock })
	calls := byLock(slices.Concat(j.lives.waits, j.lives.tries), func(w *Wait) string { return w.Lock })
	holds := byLock(j.Holds, func(h *Hold) string { return h.Lock })
	j.Figures.Locks = len(holds)
	for _, lock := range slices.Sorted(maps.Keys(holds)) {
		held := holds[lock]
		found := overlaps(lock, held)
		for _, v := range found {
			j.count(v.At, func(d *Damage) *int { return &d.Overlaps })
		}
		if j.Run.Offers.Tokens {
			found = append(found, inOrder(lock, held, j.Run.Offers)...)
			found = append(found, dead(lock, held, j.Strikes)...)
		}
		if j.Run.Offers.Fair {
			found = append(found, overtaken(lock, waits[lock], held, j.Run.TTL, j.quiet)...)
		}
		found = append(found, forgotten(lock, waits[lock], held, 3*j.patience(), j.End)...)
		j.Violations = append(j.Violations, found...)
		j.grants(held)
	}
	for _, lock := range slices.Sorted(maps.Keys(calls)) {
		all := gaps(calls[lock], holds[lock], j.End)
		for _, g := range all {
			j.gap(g)
		}
		j.Violations = append(j.Violations, stranded(lock, calls[lock], all, j.patience(), j.calm)...)
	}
}

func (j *judge) grants(held []*Hold) {
	for i, h := range held {
		handOver := i > 0 && held[i-1].Worker != h.Worker
		j.Figures.Acquisitions++
		row := j.row(h.Return)
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

func (j *judge) gap(g gap) {
	d := time.Duration(g.to - g.from)
	j.Figures.LongestGap = max(j.Figures.LongestGap, d)
	if row := j.row(g.to); row != nil {
		row.LongestGap = max(row.LongestGap, d)
	}
}

// resource judges the writes, which come in the order in which the resource decided on them.
func (j *judge) resource() {
	var writes []history.Event
	for _, e := range j.history.Events {
		if e.Write != nil {
			writes = append(writes, e)
		}
	}
	groups := byLock(writes, func(e history.Event) string { return e.Write.Lock })
	for _, lock := range slices.Sorted(maps.Keys(groups)) {
		found := staleWrites(lock, groups[lock], j.lives.byGrant, j.Run.TTL)
		for _, v := range found {
			j.count(v.At, func(d *Damage) *int { return &d.StaleAccepted })
		}
		j.Violations = append(j.Violations, found...)
		newest := map[string]int64{} // by mode, when the newest hold was granted of which a write was accepted
		for _, e := range groups[lock] {
			j.write(e, newest)
		}
	}
}

func (j *judge) write(e history.Event, newest map[string]int64) {
	w := e.Write
	if w.Mode == "unfenced" && w.Read != w.Version {
		j.count(e.At, func(d *Damage) *int { return &d.LostUpdates })
	}
	if w.Refused {
		j.count(e.At, func(d *Damage) *int { return &d.Refused })
	}
	h := j.lives.byGrant[w.Grant]
	if h == nil {
		return // its holder was killed before it could tell that it held
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

// losses compares what the observer saw go with what the holders knew.
func (j *judge) losses() {
	byToken := map[string]map[uint64]*Hold{}
	for _, h := range j.Holds {
		if h.LostAt != 0 {
			j.Figures.Lost++
		}
		if byToken[h.Lock] == nil {
			byToken[h.Lock] = map[uint64]*Hold{}
		}
		byToken[h.Lock][h.Token] = h
	}
	var told []time.Duration
	for _, e := range j.history.Events {
		if e.Entry == nil || !e.Entry.Gone || e.Entry.Token == 0 {
			continue
		}
		h := byToken[e.Entry.Lock][e.Entry.Token]
		if h == nil || (h.Release != 0 && h.Release <= e.At) {
			continue
		}
		if row := j.row(e.At); e.At < h.Until && (row == nil || row.Name != history.Evict) {
			j.Figures.RemovedEarly++
		}
		if late := h.End - e.At; late > 2*j.Run.TTL {
			j.Violations = append(j.Violations, Violation{
				Rule: RuleNotNotified, Lock: h.Lock, At: h.End, For: time.Duration(late), Grants: []string{h.Grant},
				What: fmt.Sprintf("%s believed in it for another %v after its entry had gone", h.Grant, time.Duration(late).Round(time.Millisecond)),
			})
		}
		if h.LostAt > e.At {
			told = append(told, time.Duration(h.LostAt-e.At))
		}
	}
	slices.Sort(told)
	j.Figures.NotifiedP50, j.Figures.NotifiedP99 = quantile(told, 0.5), quantile(told, 0.99)
}

// quantile returns the smallest value that at least the fraction q of the sorted values do not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// calls counts how calls ended, and who got how much.
func (j *judge) calls() {
	got, whole := map[string]int{}, map[string]bool{}
	var last int64 // when the first worker was asked to end, or was killed at the end
	for _, e := range j.history.Events {
		switch {
		case e.Started != nil:
			j.Figures.Workers++
			whole[e.Worker] = e.At-j.Begin < int64(SettleTime)
		case e.Fault != nil:
			last = e.At
		case e.Acquire != nil && e.Acquire.Outcome == history.OK:
			got[e.Worker]++
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
	for worker, n := range got {
		if exit := j.lives.exits[worker]; !whole[worker] || (exit.Exited != nil && exit.At < last) {
			continue
		}
		if first || n < j.Figures.MinPerWorker {
			j.Figures.MinPerWorker = n
		}
		j.Figures.MaxPerWorker, first = max(j.Figures.MaxPerWorker, n), false
	}
}

// concede marks the violations that a fault excuses. One that could not be done, or not be healed, excuses as well: it may have
// been done nevertheless.
func (j *judge) concede() {
	concessions := Concessions(j.Run.Target)
	for i := range j.Violations {
		v := &j.Violations[i]
		for _, s := range j.Strikes {
			rules := concessions[s.Name]
			if !slices.Contains(rules, v.Rule) || !s.near(v, j.Run.TTL) {
				continue
			}
			// Tokens go back where the store forgets them, whatever becomes of the holds.
			if v.since != 0 && slices.Contains(rules, RuleGrantedTwice) || s.endedOneOf(j.holdsOf(v), j.Run) {
				v.Conceded = s.Name
			}
		}
	}
}

// holdsOf returns the holds that a violation is about.
func (j *judge) holdsOf(v *Violation) []*Hold {
	var holds []*Hold
	for _, grant := range v.Grants {
		if h := j.lives.byGrant[grant]; h != nil {
			holds = append(holds, h)
		}
	}
	return holds
}

// near reports whether a strike is near enough to a violation to be its cause. A holder believes in its hold for a TTL after its
// last confirmation; what begins later than that, or lasts twice as long, has another cause.
func (s *Strike) near(v *Violation, ttl int64) bool {
	since := v.At
	if v.since != 0 {
		since = v.since
	}
	return s.From <= v.At && since <= s.To+ttl && int64(v.For) <= 2*ttl && (s.Lock == "" || s.Lock == v.Lock)
}

// endedOneOf reports whether a strike can have ended a hold whose holder did not know of it yet as the next one was granted. Two
// holds that were both granted after the strike are excused by nothing.
func (s *Strike) endedOneOf(holds []*Hold, run history.Run) bool {
	if len(holds) != 2 {
		return false
	}
	if len(s.Took) > 0 && holds[0].Token != 0 {
		return slices.ContainsFunc(holds, func(h *Hold) bool { return h.Token == s.Took[0] && !h.proven(run.Offers) })
	}
	first := slices.MinFunc(holds, func(a, b *Hold) int { return cmp.Compare(a.Return, b.Return) })
	return first.Return <= s.To+s.delay(run.TTL) && !first.proven(run.Offers)
}

// delay is how long after a strike the last hold may be granted that it ends: the answer to the call may be on its way. When a
// leader goes on that was stopped, it is only then that it ends leases.
func (s *Strike) delay(ttl int64) int64 {
	if strings.HasSuffix(s.Name, "-pause") {
		return ttl
	}
	return ttl / 4
}

// proven reports whether its release has shown that the hold lasted until then: no fault had ended it.
func (h *Hold) proven(offers history.Offers) bool { return offers.Proof && h.Outcome == history.OK }

// thin says when the history proves nothing.
func (j *judge) thin() {
	weak := func(format string, args ...any) {
		j.Violations = append(j.Violations, Violation{Rule: RuleTooLittle, At: j.End, What: fmt.Sprintf(format, args...)})
	}
	if n := j.Figures.Acquisitions; n < 10 {
		weak("the lock was taken %d times; 10 is the least that is believed", n)
	}
	if j.Figures.HandOvers == 0 {
		weak("the lock never went from one worker to another")
	}
	if untold := j.untold(); len(untold) > 0 {
		weak("the history is cut short: it has no last attempt at %d of the locks, such as %s", len(untold), untold[0])
	}
	asked := j.Run.Faults != "none" && j.Run.Faults != ""
	if asked && !slices.ContainsFunc(j.Strikes, func(s Strike) bool { return s.Err == "" }) {
		weak("no fault struck, though %s were asked for", j.Run.Faults)
	}
	if asked && j.Run.Faults != "all" {
		for name := range strings.SplitSeq(j.Run.Faults, ",") {
			if name = strings.TrimSpace(name); j.rows[name] == nil {
				weak("%s was asked for and never tried", name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.rows)) {
		row := j.rows[name]
		j.Faults = append(j.Faults, *row)
		if row.Strikes == 0 && row.Failures > 2 { // a victim may be out of reach just then
			weak("%s failed each of the %d times it was tried", name, row.Failures)
		}
	}
}

// untold returns the locks that somebody asked for of which the history has no last attempt, which is how every run ends.
func (j *judge) untold() []string {
	locks := map[string]bool{}
	for _, w := range slices.Concat(j.lives.waits, j.lives.tries) {
		locks[w.Lock] = true
	}
	for _, e := range j.history.Events {
		if e.Final != nil {
			delete(locks, e.Final.Lock)
		}
	}
	return slices.Sorted(maps.Keys(locks))
}
