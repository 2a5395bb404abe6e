//go:build linux

package guards_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stilelock/stile/lab/guards"
)

var (
	pauses = flag.Int("pauses", 30, "pauses of a holder, for each guard")
	beside = flag.Int("beside", 30, "how many journals of a guard are used at the same time")
	seed   = flag.Uint64("seed", 1, "seed of the random choices")
)

// TestPauses stops holders at random moments of their writes, until they have lost the lock. No stale write
// may be accepted, and every stale holder must be told. `make torture-guards` runs 300 pauses for each
// guard.
// Promise: P2
func TestPauses(t *testing.T) {
	for _, kind := range guards.Kinds() { // one kind at a time: each has many processes
		t.Run(kind.Name, func(t *testing.T) {
			sum := torment(t, kind, writerProgram(t), *pauses, *beside)
			t.Logf("seed %d: %v", *seed, &sum)
			for _, violation := range sum.violations {
				t.Error(violation)
			}
			if sum.pauses < *pauses*9/10 {
				t.Errorf("too little happened: %d pauses, want %d", sum.pauses, *pauses)
			}
		})
	}
}

// A tally counts what happened.
type tally struct {
	pauses     int // holders that were stopped until another one held the lock
	within     int // of these, those that were stopped before their write had ended
	blocked    int // writes of the next holder that had to wait for one that was stopped
	refused    int // stale writes that were refused
	written    int // writes that were accepted
	violations []string
}

func (c *tally) String() string {
	return fmt.Sprintf("%d pauses, %d within a write, %d of them blocked the next holder; %d writes accepted, %d stale ones refused, %d violations",
		c.pauses, c.within, c.blocked, c.written, c.refused, len(c.violations))
}

func (c *tally) add(other tally) {
	c.pauses += other.pauses
	c.within += other.within
	c.blocked += other.blocked
	c.refused += other.refused
	c.written += other.written
	c.violations = append(c.violations, other.violations...)
}

// torment uses as many journals as beside, until holders have been stopped n times in all.
func torment(t *testing.T, kind guards.Kind, writer string, n, beside int) (sum tally) {
	s := serversFor(t, kind, writer)
	openJournal(t, kind, "first", s)
	beside = min(beside, n)
	var mu sync.Mutex
	t.Run("journals", func(t *testing.T) { // ends when all of them have
		for i := range beside {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				r := rand.New(rand.NewPCG(*seed, uint64(i)))
				name := newName()
				l := &lane{t: t, kind: kind, random: r, journal: openJournal(t, kind, name, s)}
				l.holder = startWriter(t, writer, kind, name, shortTTL, s)
				l.rival = startWriter(t, writer, kind, name, shortTTL, s)
				for range (n + beside - 1 - i) / beside {
					l.round()
				}
				l.judge()
				mu.Lock()
				defer mu.Unlock()
				sum.add(l.tally)
			})
		}
	})
	return sum
}

// A lane is a journal with two writers, one of which is stopped in each round.
type lane struct {
	t             *testing.T
	kind          guards.Kind
	random        *rand.Rand
	journal       guards.Journal
	holder, rival *process
	token         uint64 // the holder's; 0 if nobody holds the lock
	tally
}

// wait is how long the next holder's write may take before the stopped process is continued, in case it
// blocks that write. It is no time limit: nothing fails when it has passed.
const wait = 300 * time.Millisecond

// maxDelay is the maximum time between the start of a write and the pause.
const maxDelay = 4 * time.Millisecond

// round stops the holder during a write, until the rival holds the lock.
func (l *lane) round() {
	l.t.Helper()
	if l.token == 0 {
		l.token = l.holder.lock()
		l.count(l.holder.do("write")) // the first one is slower: it connects
	}
	l.rival.send("lock")
	l.holder.send("write")
	f := l.random.Float64()
	time.Sleep(time.Duration(f * f * float64(maxDelay))) // often a short time, because most writes are short
	l.holder.signal(syscall.SIGSTOP)
	next := tokenIn(l.t, l.rival.next())
	if next <= l.token {
		l.violate("the next holder has token %d, after %d", next, l.token)
	}
	l.pauses++

	rivalFirst, rivalWrote := l.random.IntN(2) == 0, false
	if rivalFirst {
		l.rival.send("write")
		answer, answered := l.rival.answer(wait)
		if rivalWrote = answered; answered {
			l.expectWritten(answer)
		}
	}
	answer, before := l.holder.answered()
	l.holder.signal(syscall.SIGCONT)
	if !before {
		l.within++
		answer = l.holder.next()
	}
	l.count(answer) // the order in the journal shows whether it was right
	if rivalFirst && !rivalWrote {
		l.blocked++
		l.expectWritten(l.rival.next())
	}
	if !rivalFirst {
		answer := l.holder.do("write")
		if l.count(answer); l.kind.Presence {
			l.expectStale(answer)
		}
		l.expectWritten(l.rival.do("write"))
	}
	answer = l.holder.do("write")
	l.count(answer)
	l.expectStale(answer)
	if answer := l.holder.do("release"); answer != "released" {
		l.violate("the stale holder releases: %s", answer)
	}
	l.holder, l.rival, l.token = l.rival, l.holder, next
}

// count counts an answer to "write".
func (l *lane) count(answer string) {
	switch {
	case answer == "written":
		l.written++
	case strings.HasPrefix(answer, "stale "):
		l.refused++
	default:
		l.violate("a write: %s", answer)
	}
}

func (l *lane) expectStale(answer string) {
	if !strings.HasPrefix(answer, "stale ") {
		l.violate("the write of a stale holder with token %d: %s", l.token, answer)
	}
}

// expectWritten expects that the rival has written. With a presence guard it may have lost the lock itself,
// on a busy machine.
func (l *lane) expectWritten(answer string) {
	l.count(answer)
	if answer != "written" && (!l.kind.Presence || answer != "stale 0") {
		l.violate("the write of the next holder: %s", answer)
	}
}

// judge compares the journal with the answers.
func (l *lane) judge() {
	all := tokens(l.t, l.journal)
	if !slices.IsSorted(all) {
		l.violate("a stale write was accepted: the tokens in the journal are %d", all)
	}
	if len(all) != l.written {
		l.violate("%d writes were accepted, and the journal has %d", l.written, len(all))
	}
}

func (l *lane) violate(format string, args ...any) {
	l.violations = append(l.violations, fmt.Sprintf(format, args...))
}
