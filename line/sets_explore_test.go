//go:build !race

// The explorer has one goroutine, so the race detector would find nothing in it and would make it
// ten times slower. It is therefore left out of race builds, and make test runs it separately.

package line_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stilelock/stile/line"
)

// This file explores a model of callers that lock several names at once, in one atomic step of the
// store or one after another, sorted. It uses the real rule of admission, and models the rest: the
// local queues of each client, the lines of the store, losses and reconnections. It does not run the
// code of LockAll or of a store. It takes every step in every order. A state in which a caller is not
// done and no step but a fault is possible is a cycle that lasts.
//
// It shows that the rules in setRules suffice, and that each of them is necessary.

// setRules are the rules for locking several names. The zero value has them all.
type setRules struct {
	localOneByOne bool // a set joins the local queues of its names one after another, not in one step
	storeOneByOne bool // a set adds its entries one after another, in its caller's order
	lend          bool // a single lock's entry is lent to a set that waits for it locally
	rejoinAlone   bool // a waiting set that lost an entry replaces it and keeps the others
	pass          bool // an entry of a set whose client is away is passed over, and the set is not evicted
	batch         bool // sets that share a name are added in one batch, in any order within each line
}

const (
	setNames  = 3
	maxActors = 4
)

// An actor locks its names once and releases them.
type actor struct {
	client int
	names  []int // in the order of the caller
	mode   line.Mode
	sorted bool // takes the locks one after another, in the order of names, which is sorted
}

func (a actor) set() bool { return len(a.names) > 1 }

func (a actor) String() string {
	s := fmt.Sprintf("client %d %v of ", a.client, a.mode)
	for _, n := range a.names {
		s += string(rune('a' + n))
	}
	if a.sorted {
		s += " one by one"
	}
	return s
}

type phase uint8

const (
	joining   phase = iota // joins local queues; a sorted actor joins the lines as well
	queued                 // is in the local queues, and adds entries when it is the head of all
	waiting                // has added all entries
	leaving                // withdraws its entries, to join again
	held                   // holds all locks
	releasing              // withdraws its entries, to end
	done
)

// list holds indexes of actors plus one, in order of arrival. Zero means none.
type list [maxActors]uint8

func (l list) index(i int) int { return slices.Index(l[:], uint8(i+1)) }

func (l list) has(i int) bool { return l.index(i) >= 0 }

func (l *list) add(i int) { l[slices.Index(l[:], 0)] = uint8(i + 1) }

func (l *list) remove(i int) {
	if at := l.index(i); at >= 0 {
		copy(l[at:], l[at+1:])
		l[maxActors-1] = 0
	}
}

// setState is a state of the model. It is comparable, to recognize states that were seen.
type setState struct {
	lines  [setNames]list
	local  [2][setNames]list // by client
	phase  [maxActors]phase
	next   [maxActors]uint8 // how many names a joining actor has dealt with
	faults uint8            // how many faults are left
}

type setModel struct {
	rules  setRules
	actors []actor
}

func (m setModel) admitted(l list, i int) bool {
	at := l.index(i)
	if at < 0 {
		return false
	}
	ahead := make([]line.Mode, 0, maxActors)
	for _, other := range l[:at] {
		ahead = append(ahead, m.actors[other-1].mode)
	}
	return line.Admits(m.actors[i].mode, ahead)
}

func (m setModel) all(i int, f func(name int) bool) bool {
	return !slices.ContainsFunc(m.actors[i].names, func(n int) bool { return !f(n) })
}

func (m setModel) inAll(s setState, i int) bool {
	return m.all(i, func(n int) bool { return s.lines[n].has(i) })
}

func (m setModel) headOfAll(s setState, i int) bool {
	return m.all(i, func(n int) bool { return m.admitted(s.local[m.actors[i].client][n], i) })
}

// steps calls to with every state that follows without a fault.
func (m setModel) steps(s setState, to func(step string, next setState)) {
	for i, a := range m.actors {
		n := s // a copy
		switch s.phase[i] {
		case joining:
			m.join(s, i, to)
		case queued:
			if m.headOfAll(s, i) {
				m.enqueue(s, i, to)
			}
		case waiting:
			switch {
			case !m.inAll(s, i) && m.rules.rejoinAlone:
				for _, name := range a.names {
					if !s.lines[name].has(i) {
						n.lines[name].add(i)
					}
				}
				to(fmt.Sprint(i, " replaces the entry that it lost"), n)
			case !m.inAll(s, i):
				n.phase[i] = leaving
				to(fmt.Sprint(i, " learns of a loss"), n)
			case m.all(i, func(name int) bool { return m.admitted(s.lines[name], i) }):
				n.phase[i] = held
				to(fmt.Sprint(i, " holds"), n)
			}
		case leaving, releasing:
			m.withdraw(s, i, to)
		case held:
			n.phase[i] = releasing
			to(fmt.Sprint(i, " releases"), n)
			m.lend(s, i, to)
		case done:
		}
	}
	if m.rules.batch {
		m.batch(s, to)
	}
}

// join takes a step of an actor that joins the local queues. A sorted actor then joins the line and
// waits in it, before it turns to the next name.
func (m setModel) join(s setState, i int, to func(string, setState)) {
	a, k := m.actors[i], int(s.next[i])
	queues := &s.local[a.client]
	switch {
	case !a.sorted && !m.rules.localOneByOne:
		for _, name := range a.names {
			queues[name].add(i)
		}
		s.phase[i] = queued
		to(fmt.Sprint(i, " joins all local queues"), s)
	case !a.sorted:
		queues[a.names[k]].add(i)
		if s.next[i]++; int(s.next[i]) == len(a.names) {
			s.phase[i] = queued
		}
		to(fmt.Sprint(i, " joins a local queue"), s)
	case k > 0 && slices.ContainsFunc(a.names[:k], func(name int) bool { return !s.lines[name].has(i) }):
		s.phase[i] = leaving
		to(fmt.Sprint(i, " learns of a loss"), s)
	case !queues[a.names[k]].has(i):
		queues[a.names[k]].add(i)
		to(fmt.Sprint(i, " joins a local queue"), s)
	case m.admitted(queues[a.names[k]], i) && !s.lines[a.names[k]].has(i):
		s.lines[a.names[k]].add(i)
		to(fmt.Sprint(i, " adds an entry"), s)
	case m.admitted(s.lines[a.names[k]], i):
		if s.next[i]++; int(s.next[i]) == len(a.names) {
			s.phase[i] = held
		}
		to(fmt.Sprint(i, " holds one more"), s)
	}
}

// enqueue adds the entries that an actor lacks: all of them, unless one was lent to it.
func (m setModel) enqueue(s setState, i int, to func(string, setState)) {
	for _, name := range m.actors[i].names {
		if s.lines[name].has(i) {
			continue
		}
		s.lines[name].add(i)
		if m.rules.storeOneByOne {
			break
		}
	}
	if m.inAll(s, i) {
		s.phase[i] = waiting
	}
	to(fmt.Sprint(i, " adds entries"), s)
}

// withdraw removes one entry. With the last one, the actor begins again or ends.
func (m setModel) withdraw(s setState, i int, to func(string, setState)) {
	a, left := m.actors[i], false
	for _, name := range a.names {
		if s.lines[name].has(i) {
			n := s
			n.lines[name].remove(i)
			to(fmt.Sprint(i, " withdraws an entry"), n)
			left = true
		}
	}
	switch {
	case left:
		return
	case s.phase[i] == leaving && !a.sorted:
		s.phase[i] = queued // it stays the head of its local queues
	case s.phase[i] == leaving:
		s.phase[i], s.next[i] = joining, 0
	default:
		s.phase[i] = done
	}
	if s.phase[i] != queued {
		for _, name := range a.names {
			s.local[a.client][name].remove(i)
		}
	}
	to(fmt.Sprint(i, " has withdrawn all"), s)
}

// lend gives the entry of a single lock to a set that is next in the local queue.
func (m setModel) lend(s setState, i int, to func(string, setState)) {
	a := m.actors[i]
	name := a.names[0]
	at := s.lines[name].index(i)
	next := s.local[a.client][name][1]
	if !m.rules.lend || a.set() || at < 0 || next == 0 || !m.actors[next-1].set() || s.phase[next-1] != queued {
		return
	}
	s.lines[name][at] = next
	s.local[a.client][name].remove(i)
	s.phase[i] = done
	to(fmt.Sprint(i, " lends its entry to ", next-1), s)
}

// batch adds the entries of two sets in one step, in one order in the first line that they share and
// in the other order in the others.
func (m setModel) batch(s setState, to func(string, setState)) {
	for i := range m.actors {
		for j := range m.actors {
			if i == j || s.phase[i] != queued || s.phase[j] != queued || !m.headOfAll(s, i) || !m.headOfAll(s, j) {
				continue
			}
			n, first := s, [2]int{i, j}
			for name := range setNames {
				in := slices.DeleteFunc(first[:], func(k int) bool { return !slices.Contains(m.actors[k].names, name) })
				if len(in) == 2 {
					n.lines[name].add(in[0])
					n.lines[name].add(in[1])
					first = [2]int{in[1], in[0]}
					continue
				}
				first = [2]int{i, j}
				for _, k := range first {
					if slices.Contains(m.actors[k].names, name) {
						n.lines[name].add(k)
					}
				}
			}
			n.phase[i], n.phase[j] = waiting, waiting
			to(fmt.Sprint(i, " and ", j, " add entries in a batch"), n)
		}
	}
}

// failures calls to with every state that follows by a fault.
func (m setModel) failures(s setState, to func(step string, next setState)) {
	if s.faults == 0 {
		return
	}
	s.faults--
	for i, a := range m.actors {
		all := s
		for _, name := range a.names {
			if !s.lines[name].has(i) {
				continue
			}
			n := s
			n.lines[name].remove(i)
			to(fmt.Sprint("an entry of ", i, " is broken"), n)
			all.lines[name].remove(i)

			at := s.lines[name].index(i)
			if m.rules.pass && a.set() && s.phase[i] == waiting && at+1 < maxActors && s.lines[name][at+1] != 0 {
				n = s
				n.lines[name][at], n.lines[name][at+1] = s.lines[name][at+1], s.lines[name][at]
				to(fmt.Sprint(i, " is away and is passed over"), n)
			}
		}
		if all != s { // its session is lost, or its client is away and the set is evicted
			to(fmt.Sprint("all entries of ", i, " go"), all)
		}
	}
}

// deadlock returns the steps to a state in which a caller waits for ever, or nil if there is none.
func (m setModel) deadlock(faults uint8) []string {
	type origin struct {
		from setState
		step string
	}
	first := setState{faults: faults}
	for i := len(m.actors); i < maxActors; i++ {
		first.phase[i] = done
	}
	seen := map[setState]origin{first: {}}
	todo := []setState{first}
	for len(todo) > 0 {
		s := todo[0] // breadth first, so that the steps are the fewest
		todo = todo[1:]
		visit := func(step string, next setState) {
			if _, ok := seen[next]; !ok {
				seen[next] = origin{s, step}
				todo = append(todo, next)
			}
		}
		stuck := slices.ContainsFunc(s.phase[:], func(p phase) bool { return p != done })
		m.steps(s, func(step string, next setState) {
			stuck = false
			visit(step, next)
		})
		if stuck {
			var steps []string
			for s != first {
				steps = append(steps, seen[s].step)
				s = seen[s].from
			}
			slices.Reverse(steps)
			return steps
		}
		m.failures(s, visit)
	}
	return nil
}

// setActors returns sets of two and three names, and single locks of each mode.
func setActors() []actor {
	var all []actor
	for _, names := range [][]int{{0, 1}, {1, 0}, {1, 2}, {2, 0}, {0, 1, 2}, {2, 1, 0}} {
		all = append(all, actor{names: names})
	}
	for _, mode := range []line.Mode{line.Exclusive, line.Shared} {
		all = append(all, actor{names: []int{0}, mode: mode}, actor{names: []int{1}, mode: mode})
	}
	return all
}

// explore looks for a deadlock among every three actors, the first two of which belong to one client
// or to two. prepare changes the actors before each run.
func explore(t *testing.T, rules setRules, prepare func([]actor)) (found string) {
	t.Helper()
	pool := setActors()
	for i := range pool {
		for j := range pool {
			for k := j; k < len(pool); k++ {
				for _, client := range []int{0, 1} {
					actors := []actor{pool[i], pool[j], pool[k]}
					actors[1].client, actors[2].client = client, 1
					for x := range actors {
						actors[x].names = slices.Clone(actors[x].names)
					}
					prepare(actors)
					if steps := (setModel{rules, actors}).deadlock(1); steps != nil {
						return fmt.Sprintf("%v\n%s", actors, strings.Join(steps, "\n"))
					}
				}
			}
		}
	}
	return ""
}

func sortOneByOne(a *actor) {
	slices.Sort(a.names)
	a.sorted = true
}

// Bug: redisson #4050
func TestExploreSets_noDeadlock(t *testing.T) {
	for name, prepare := range map[string]func([]actor){
		"atomic": func([]actor) {},
		"sorted": func(actors []actor) {
			for i := range actors {
				sortOneByOne(&actors[i])
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if found := explore(t, setRules{}, prepare); found != "" {
				t.Errorf("callers wait for ever:\n%s", found)
			}
		})
	}
}

// Each rule is necessary: without it, callers deadlock.
func TestExploreSets_deadlockWithoutRule(t *testing.T) {
	for name, rules := range map[string]setRules{
		"local head in one step":      {localOneByOne: true},
		"entries in one step":         {storeOneByOne: true},
		"fresh entries":               {lend: true},
		"a set joins again as whole":  {rejoinAlone: true},
		"no entry of a set is passed": {pass: true},
		"no batch of sets that share": {batch: true},
	} {
		t.Run(name, func(t *testing.T) {
			found := explore(t, rules, func([]actor) {})
			if found == "" {
				t.Fatal("no callers deadlock, although the rule is left out")
			}
			t.Log(found)
		})
	}
	t.Run("one method per store", func(t *testing.T) {
		found := explore(t, setRules{}, func(actors []actor) { sortOneByOne(&actors[0]) })
		if found == "" {
			t.Fatal("no callers deadlock, although the methods are mixed")
		}
		t.Log(found)
	})
}
