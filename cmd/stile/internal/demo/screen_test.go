package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTheTable(t *testing.T) {
	t.Parallel()
	s := testStage(Config{Workers: 4, Add: 100, Turns: 1})
	s.told(0, report{Event: begun, Token: 256}, opening)
	s.told(0, report{Event: done, Added: 100}, opening)
	s.told(1, report{Event: begun, Token: 512}, opening)
	s.told(1, report{Event: halted, Added: 50}, opening)
	s.killed(opening.Add(time.Second))
	s.saw(lineOf(102, 103), nil)
	s.counter = 150
	want := []string{
		"worker      pid                                         added            token",
		"     1      101  done           ####################      100              256",
		">    2      102  killed, holds  ##########..........       50              512",
		"     3      103  waits #1       ....................        0",
		"     4      104  starts         ....................        0",
		"2.50 s  in the file: 150; locked by a dead worker for 1.50 s",
	}
	if got := s.table(opening.Add(2500 * time.Millisecond)); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	s.told(2, report{Event: begun, Token: 768, Waited: 3 * time.Second}, opening.Add(3*time.Second))
	s.saw(lineOf(103, 104), nil)
	last := s.table(opening.Add(4 * time.Second))[5]
	if want := "4.00 s  in the file: 150; 1 wait for the lock"; last != want {
		t.Errorf("got %q, want %q", last, want)
	}
}

func TestTheTableFitsIntoEightyColumns(t *testing.T) {
	t.Parallel()
	s := testStage(Config{Workers: maxWorkers, Add: maxAdd, Turns: 1})
	for i := range s.parts {
		s.parts[i].pid = 4_000_000 + i
		s.told(i, report{Event: begun, Added: maxAdd, Token: 1 << 49, Waited: time.Hour}, opening)
	}
	s.counter = maxWorkers * maxAdd
	s.killed(opening)
	s.saw(lineOf(s.parts[s.victim].pid), nil)
	lines := s.table(opening.Add(100 * time.Second))
	if len(lines) > 23 {
		t.Errorf("%d lines: the cursor needs one of 24", len(lines))
	}
	for _, line := range append(lines, s.summary(Verdict{})...) {
		if len(line) > 79 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
}

func TestTheSummary(t *testing.T) {
	t.Parallel()
	s := testStage(Config{Workers: 2, Add: 100, Turns: 1})
	s.told(0, report{Event: begun, Token: 256}, opening)
	s.told(0, report{Event: halted, Added: 50}, opening.Add(time.Second))
	s.killed(opening.Add(time.Second))
	s.told(1, report{Event: begun, Token: 512, Waited: 3500 * time.Millisecond}, opening.Add(3500*time.Millisecond))
	s.told(1, report{Event: lost, Added: 20, Held: time.Second, Why: "expired"}, opening.Add(4*time.Second))
	s.told(1, report{Event: begun, Token: 768, Added: 20, Waited: time.Second}, opening.Add(5*time.Second))
	s.told(1, report{Event: ended, Added: 100, Held: time.Second}, opening.Add(6*time.Second))
	s.told(1, report{Event: done, Added: 100}, opening.Add(6*time.Second))
	want := []string{
		"worker    waited      held  turns     added       last token",
		"     1    0.00 s    1.00 s      1        50              256  killed -9",
		"     2    4.50 s    2.00 s      2       100              768  lost the lock: 1",
		"2 hand-overs. After the kill the lock stayed closed for 2.50 s.",
	}
	if got := s.summary(s.verdict(150)); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	want = append(want, "10 increments were lost: others had read the number before, and wrote theirs over it.")
	if got := s.summary(s.verdict(140)); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Without a lock nothing is said of one.
func TestTheScreenWithoutALock(t *testing.T) {
	t.Parallel()
	s := testStage(Config{Workers: 2, Add: 100, Turns: 1, WithoutLock: true})
	var said []string
	for i := range s.parts {
		said = append(said, s.told(i, report{Event: begun}, opening), s.told(i, report{Event: ended, Added: 100}, opening))
	}
	said = append(said, s.killed(opening))
	said = append(append(said, s.table(opening)...), s.summary(s.verdict(200))...)
	for _, line := range said {
		for _, word := range []string{"token", "wait", "held", "hold", "hand-over", "lets"} {
			if strings.Contains(line, word) {
				t.Errorf("%q says %q", line, word)
			}
		}
	}
}

// testOutput returns a file to be a screen, and what is in it.
func testOutput(t *testing.T) (*os.File, func() string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "screen"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, func() string {
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

func TestAScreenThatIsNoTerminalHasALineForEachEvent(t *testing.T) {
	t.Parallel()
	s := testStage(Config{Workers: 2, Add: 100, Turns: 1})
	f, shown := testOutput(t)
	sc := newScreen(f, s)
	sc.say(s, opening.Add(1234*time.Millisecond), "worker 10", "joins the line")
	sc.tick(s, opening)
	sc.say(s, opening.Add(12345*time.Millisecond), "line", "nobody holds the lock")
	sc.end()
	want := "  1.234  worker 10  joins the line\n 12.345  line       nobody holds the lock\n"
	if got := shown(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Each picture goes up as far as the one before went down, and leaves the terminal as it was.
func TestTheLiveTableIsDrawnInPlace(t *testing.T) {
	t.Parallel()
	s := testStage(Config{Workers: 3, Add: 100, Turns: 1})
	const height = 5
	f, shown := testOutput(t)
	l := &live{out: f}
	picture := func(now time.Time) string {
		t.Helper()
		before := len(shown())
		if err := l.tick(s, now); err != nil {
			t.Fatal(err)
		}
		got := shown()[before:]
		if strings.Count(got, "\n") != height || !strings.HasSuffix(got, "\n"+wrap+cursor) {
			t.Errorf("a picture that is not %d lines, or leaves the cursor hidden: %q", height, got)
		}
		return got
	}
	up := fmt.Sprintf("\r"+upLines, height)
	if got := picture(opening); strings.Contains(got, up) {
		t.Errorf("the first picture overwrites what was there before: %q", got)
	}
	if got := picture(opening.Add(time.Second)); !strings.Contains(got, up) {
		t.Errorf("the second is not in the place of the first: %q", got)
	}
	if got := picture(opening.Add(time.Hour)); strings.Contains(got, up) {
		t.Errorf("after a suspension, what the shell has said is overwritten: %q", got)
	}
	l.end()
	if !strings.HasSuffix(shown(), up+clearDown) {
		t.Errorf("the table stands in the way of the results: %q", shown())
	}
}
