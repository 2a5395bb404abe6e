package demo

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
)

// opening is when the demos of the tests begin.
var opening = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// testStage returns a stage with workers whose process ids are 101, 102, …
func testStage(c Config) *stage {
	s := newStage(c, opening)
	for i := range s.parts {
		s.parts[i].pid = 101 + i
	}
	return s
}

// lineOf returns a line in which the processes with these ids stand: the first holds the lock.
func lineOf(pids ...int) stile.Line {
	var l stile.Line
	for i, pid := range pids {
		e := stile.Entry{Token: uint64(i+1) << 11, Owner: stile.Owner{PID: pid}}
		if i == 0 {
			l.Holders = append(l.Holders, e)
		} else {
			l.Waiters = append(l.Waiters, e)
		}
	}
	return l
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	s := testStage(Config{Workers: 3, Add: 10, Turns: 1})
	s.told(0, report{Event: begun}, opening)
	s.told(0, report{Event: ended, Added: 10}, opening)
	s.told(0, report{Event: done, Added: 10}, opening)
	s.told(1, report{Event: begun, Added: 0}, opening)
	s.told(1, report{Event: halted, Added: 5}, opening)
	s.killed(opening)
	s.told(2, report{Event: done, Added: 10}, opening)
	for found, want := range map[int]string{25: "expected 25, found 25", 24: "expected 25, found 24", 26: "expected 25, found 26"} {
		v := s.verdict(found)
		if v.String() != want || v.OK() != (found == 25) {
			t.Errorf("found %d: %v, %v; the killed worker has acknowledged 5", found, v, v.OK())
		}
	}
}

// However the turns fall, there is a worker left after the kill to show when the lock is let go.
func TestOneIsKilledInTheMiddleOfTheWhole(t *testing.T) {
	t.Parallel()
	for workers := 2; workers <= maxWorkers; workers++ {
		for turns := 1; turns <= 4; turns++ {
			for name, next := range map[string]func(n int) int{
				"one after another": func(n int) int { return n / turns },
				"round and round":   func(n int) int { return n % workers },
			} {
				s := testStage(Config{Workers: workers, Add: 100, Turns: turns})
				n := 0
				for ; n < workers*turns; n++ {
					s.told(next(n), report{Event: begun}, opening)
					if s.order(next(n)).Halt {
						break
					}
				}
				if n != (workers*turns-1)/2 {
					t.Errorf("%d workers, %d turns, %s: the victim is chosen at turn %d", workers, turns, name, n+1)
				}
				left := 0
				for m := n + 1; m < workers*turns; m++ {
					if next(m) != s.victim {
						left++
					}
				}
				if left == 0 {
					t.Errorf("%d workers, %d turns, %s: nobody is left after the kill", workers, turns, name)
				}
			}
		}
	}
}

func TestAVictimThatLosesTheLockIsSpared(t *testing.T) {
	t.Parallel()
	s := testStage(Config{Workers: 2, Add: 10, Turns: 1})
	s.told(0, report{Event: begun}, opening)
	if !s.order(0).Halt {
		t.Fatal("the test wants the first to be the victim")
	}
	s.told(0, report{Event: lost, Added: 5, Why: "expired"}, opening)
	s.told(1, report{Event: begun}, opening)
	if s.victim != 1 || !s.order(1).Halt {
		t.Errorf("victim: %d; want the one who holds the lock", s.victim)
	}
	if v := s.verdict(5); !v.OK() {
		t.Errorf("%v: what was written before the loss counts", v)
	}
}

func TestOnlyTheVictimMayDie(t *testing.T) {
	t.Parallel()
	s := testStage(Config{Workers: 3, Add: 10, Turns: 1})
	s.told(0, report{Event: begun}, opening)
	s.told(0, report{Event: done, Added: 10}, opening)
	if err := s.exited(0, nil); err != nil {
		t.Errorf("a worker that was done: %v", err)
	}
	s.told(1, report{Event: begun}, opening)
	s.killed(opening)
	s.told(1, report{Event: lost}, opening) // said before it died, heard after
	if err := s.exited(1, errors.New("signal: killed")); err != nil {
		t.Errorf("the victim: %v", err)
	}
	s.told(2, report{Event: begun, Added: 4}, opening)
	err := s.exited(2, errors.New("signal: killed"))
	if err == nil || !strings.Contains(err.Error(), "worker 3 (pid 103)") || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("another: %v", err)
	}
	if err := testStage(Config{Workers: 2, Add: 10, Turns: 1}).exited(0, nil); err == nil {
		t.Error("a worker that ends too early is taken for one that is done")
	}
}

// Who holds and who waits is what the store says, not what the workers say.
func TestPlacesAreTheStores(t *testing.T) {
	t.Parallel()
	s := testStage(Config{Workers: 4, Add: 10, Turns: 1})
	for i := range s.parts {
		s.told(i, report{Event: waiting}, opening)
	}
	s.told(0, report{Event: begun}, opening)
	s.told(0, report{Event: lost}, opening)
	s.told(1, report{Event: begun}, opening) // half of the four turns: it will be the one
	places := func() string {
		var all []string
		for i := range s.parts {
			all = append(all, s.place(i))
		}
		return strings.Join(all, ", ")
	}
	if got, want := places(), "joins, joins, joins, joins"; got != want {
		t.Errorf("before the first reading: %s; want %s", got, want)
	}
	said := s.saw(lineOf(102, 104, 101), nil)
	if got, want := places(), "waits #2, holds, joins, waits #1"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	if want := "worker 2 holds the lock, token 2048; waiting: 4 1"; said != want {
		t.Errorf("%q; want %q", said, want)
	}
	if again := s.saw(lineOf(102, 104, 101), nil); again != "" {
		t.Errorf("the same reading is news: %q", again)
	}
	s.killed(opening)
	said = s.saw(lineOf(102, 104, 101), nil)
	if got, want := places(), "waits #2, killed, holds, joins, waits #1"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	if want := "worker 2, which is dead, holds the lock, token 2048; waiting: 4 1"; said != want {
		t.Errorf("%q; want %q", said, want)
	}
	said = s.saw(lineOf(104, 999), nil)
	if want := "worker 4 holds the lock, token 2048; waiting: a stranger"; said != want {
		t.Errorf("%q; want %q", said, want)
	}
	if said = s.saw(stile.Line{}, errors.New("no store")); said != "cannot be read: no store" {
		t.Errorf("%q", said)
	}
	if said = s.saw(stile.Line{}, nil); said != "nobody holds the lock" {
		t.Errorf("%q", said)
	}
}

func TestTurnsAreAsEqualAsTheyCanBe(t *testing.T) {
	t.Parallel()
	for _, j := range []job{{Add: 10, Turns: 3}, {Add: 7, Turns: 7}, {Add: maxAdd, Turns: 11}} {
		before := 0
		for turn := 1; turn <= j.Turns; turn++ {
			n := j.end(turn) - before
			if n != j.Add/j.Turns && n != j.Add/j.Turns+1 {
				t.Errorf("%d in %d turns: turn %d has %d", j.Add, j.Turns, turn, n)
			}
			before = j.end(turn)
		}
		if before != j.Add {
			t.Errorf("%d in %d turns: %d in all", j.Add, j.Turns, before)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	good := Config{Workers: 2, Add: 1, Turns: 1, URL: "local:"}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for flag, bad := range map[string]func(*Config){
		"--workers 1":                  func(c *Config) { c.Workers = 1 },
		"--workers 21":                 func(c *Config) { c.Workers = maxWorkers + 1 },
		"--add 0":                      func(c *Config) { c.Add = 0 },
		fmt.Sprint("--add ", maxAdd+1): func(c *Config) { c.Add = maxAdd + 1 },
		"--turns 0":                    func(c *Config) { c.Turns = 0 },
		"--turns 2":                    func(c *Config) { c.Turns = 2 },
		"--url mem:":                   func(c *Config) { c.URL = "mem:" },
	} {
		c := good
		bad(&c)
		if err := c.check(); err == nil || !strings.HasPrefix(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
