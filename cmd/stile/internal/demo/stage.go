package demo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stilelock/stile"
)

// stage is what is known of the demo at a moment: what the workers have told, and what stands in the store. It is told of
// events, decides who is to be killed, and is what the screen shows. It has no clock and starts nothing.
type stage struct {
	locked  bool // the workers take a lock
	add     int  // by each worker, in all
	turns   int  // of each worker
	began   time.Time
	parts   []part
	line    stile.Line // as last read
	lineErr error      // why it could not be read
	said    string     // of the line, last
	counter int        // the number in the file, as last read

	victim   int // index; negative: nobody yet
	begun    int // turns, of all workers
	killedAt time.Time
	reopened time.Time // when the lock was next held after the kill
}

// part is what is known of one worker.
type part struct {
	pid    int
	state  state
	added  int // acknowledged
	turns  int // begun
	token  uint64
	since  time.Time // when its current turn began
	waited time.Duration
	held   time.Duration
	lost   int
	gone   bool // the process has ended
}

// state is what a worker does by its own account. Who holds the lock and who waits for it, the store says.
type state string

const (
	starting state = "starts"
	standing state = "ready"
	joining  state = "joins"
	adding   state = "adds"
	leaving  state = "leaves"
	finished state = "done"
	killed   state = "killed"
)

func newStage(c Config, began time.Time) *stage {
	s := &stage{
		locked: !c.WithoutLock, add: c.Add, turns: c.Turns, began: began,
		parts: make([]part, c.Workers), victim: -1,
	}
	for i := range s.parts {
		s.parts[i].state = starting
	}
	return s
}

// told takes in what a worker has reported. It returns what happened, for people; empty if it is not worth a line.
func (s *stage) told(i int, r report, now time.Time) string {
	p := &s.parts[i]
	if p.state == killed { // a last word, that it has lost the lock at the same moment
		return ""
	}
	p.added = r.Added
	switch r.Event {
	case ready:
		p.state = standing
	case waiting:
		p.state = joining
		return "joins the line"
	case begun:
		return s.begin(i, r, now)
	case halted:
		return fmt.Sprintf("is in the middle of its part, at %d", r.Added)
	case lost:
		p.state = joining
		p.lost++
		p.held += r.Held
		if i == s.victim { // it is not to be killed while it holds nothing
			s.victim = -1
		}
		return fmt.Sprintf("has lost the lock at %d, and stopped: %s", r.Added, r.Why)
	case ended:
		p.state = leaving
		p.held += r.Held
		if s.locked {
			return fmt.Sprintf("lets the lock go after %s, at %d", seconds(r.Held), r.Added)
		}
	case done:
		p.state = finished
		return fmt.Sprintf("is done: has added %d", r.Added)
	case added:
	}
	return ""
}

// begin takes in that a worker has begun a turn. In the middle of the whole, the one who does so is to be killed: then
// there is always another who waits for the lock, or will.
func (s *stage) begin(i int, r report, now time.Time) string {
	p := &s.parts[i]
	p.state, p.since, p.token = adding, now, r.Token
	p.turns++
	p.waited += r.Waited
	s.begun++
	if s.victim < 0 && s.begun >= (len(s.parts)*s.turns+1)/2 {
		s.victim = i
	}
	if !s.killedAt.IsZero() && s.reopened.IsZero() {
		s.reopened = now
	}
	if !s.locked {
		return "begins to add"
	}
	return fmt.Sprintf("has the lock, token %d, after waiting %s", r.Token, seconds(r.Waited))
}

// order returns what the worker that has begun a turn is told.
func (s *stage) order(i int) order { return order{Halt: i == s.victim && s.killedAt.IsZero()} }

// killed takes in that the victim has been killed.
func (s *stage) killed(now time.Time) string {
	s.killedAt = now
	p := &s.parts[s.victim]
	p.state = killed
	p.held += now.Sub(p.since)
	if !s.locked {
		return fmt.Sprintf("killed with -9, at %d", p.added)
	}
	return fmt.Sprintf("killed with -9 while it holds the lock, at %d", p.added)
}

// exited takes in that a worker's process has ended. It returns an error if it should not have.
func (s *stage) exited(i int, err error) error {
	p := &s.parts[i]
	p.gone = true
	if p.state == finished && err == nil || p.state == killed {
		return nil
	}
	if err == nil {
		return fmt.Errorf("worker %d (pid %d) has ended too early", i+1, p.pid)
	}
	return fmt.Errorf("worker %d (pid %d) has failed after acknowledging %d: %w", i+1, p.pid, p.added, err)
}

// over reports whether all workers have ended.
func (s *stage) over() bool {
	return !slices.ContainsFunc(s.parts, func(p part) bool { return !p.gone })
}

// ready reports whether all workers wait for the start.
func (s *stage) ready() bool {
	return !slices.ContainsFunc(s.parts, func(p part) bool { return p.state != standing })
}

// saw takes in a reading of the line. It returns what is new in it, for people.
func (s *stage) saw(l stile.Line, err error) string {
	if s.lineErr = err; err == nil {
		s.line = l
	}
	text := s.lineText()
	if text == s.said {
		return ""
	}
	s.said = text
	return text
}

// lineText says who stands in the line, by number.
func (s *stage) lineText() string {
	if s.lineErr != nil {
		return "cannot be read: " + s.lineErr.Error()
	}
	var parts []string
	for _, e := range s.line.Holders {
		dead := ""
		if i := s.who(e); i >= 0 && s.parts[i].state == killed {
			dead = ", which is dead,"
		}
		parts = append(parts, fmt.Sprintf("%s%s holds the lock, token %d", s.name(e), dead, e.Token))
	}
	if len(parts) == 0 {
		parts = append(parts, "nobody holds the lock")
	}
	if len(s.line.Waiters) > 0 {
		var names []string
		for _, e := range s.line.Waiters {
			names = append(names, strings.TrimPrefix(s.name(e), "worker "))
		}
		parts = append(parts, "waiting: "+strings.Join(names, " "))
	}
	return strings.Join(parts, "; ")
}

// who returns the worker that an entry is of; negative if it is none of ours.
func (s *stage) who(e stile.Entry) int {
	return slices.IndexFunc(s.parts, func(p part) bool { return p.pid == e.Owner.PID })
}

func (s *stage) name(e stile.Entry) string {
	if i := s.who(e); i >= 0 {
		return "worker " + strconv.Itoa(i+1)
	}
	return "a stranger" // nobody knows the name of the lock, but everybody could read it
}

// place returns how a worker stands, as the store has it: holding or waiting; and what it does itself if it does not
// stand in the line.
func (s *stage) place(i int) string {
	p := s.parts[i]
	own := func(e stile.Entry) bool { return s.who(e) == i }
	switch {
	case p.state == finished:
		return string(p.state) // the reading may be a moment old
	case slices.ContainsFunc(s.line.Holders, own) && p.state == killed:
		return "killed, holds"
	case slices.ContainsFunc(s.line.Holders, own):
		return "holds"
	}
	if n := slices.IndexFunc(s.line.Waiters, own); n >= 0 {
		return fmt.Sprintf("waits #%d", n+1)
	}
	if s.locked && p.state == adding {
		return string(joining) // the reading is a moment old
	}
	return string(p.state)
}

// verdict counts what should be in the file: all that was acknowledged.
func (s *stage) verdict(found int) Verdict {
	v := Verdict{Found: found}
	for _, p := range s.parts {
		v.Expected += p.added
	}
	return v
}

// Verdict is how the demo came out.
type Verdict struct {
	// Expected is how many increments the workers have acknowledged, Found the number in the file.
	Expected, Found int
}

// OK reports whether nothing was lost.
func (v Verdict) OK() bool { return v.Expected == v.Found }

// String is the last line of the demo.
func (v Verdict) String() string { return fmt.Sprintf("expected %d, found %d", v.Expected, v.Found) }

// seconds writes a duration so that it can be compared with others.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
