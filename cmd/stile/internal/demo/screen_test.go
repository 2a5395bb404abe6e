package demo

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
)

func TestTable(t *testing.T) {
	t.Parallel()
	p := testPlay(t, Config{Workers: 4, Add: 100})
	p.reports(0, done, 100)
	p.reports(1, halfway, 50)
	p.kills(1, time.Second)
	if err := p.handleLine(lineOf(102, 103), nil, opening); err != nil {
		t.Fatal(err)
	}
	p.number = 150
	want := []string{
		"worker      pid                                                           added",
		"     1      101  done             ####################################      100",
		"     2      102  killed, holds    ##################..................       50",
		"     3      103  waits #1         ....................................        0",
		"     4      104                   ....................................        0",
		"2.50 s  in the file: 150; worker 2, which is dead, holds the lock, token 2048; waiting: 3",
	}
	if got := p.table(opening.Add(2500 * time.Millisecond)); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestTable_size(t *testing.T) {
	t.Parallel()
	p := testPlay(t, Config{Workers: maxWorkers, Add: maxAdd})
	for i := range p.parts {
		p.parts[i].pid = 4_000_000 + i
		p.reports(i, adding, maxAdd)
	}
	lines := p.table(opening)
	if len(lines) > 23 {
		t.Errorf("got %d lines, want at most 23 of a terminal's 24", len(lines))
	}
	for _, line := range lines {
		if len(line) > 79 {
			t.Errorf("got %d columns, want at most 79: %s", len(line), line)
		}
	}
}

func TestEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		without bool
		number  int
		want    string
	}{
		{false, 150, "After the kill the lock stayed held for 2.50 s.\nexpected 150, found 150\n"},
		{true, 140, "10 increments were lost: other workers had read the number before, and overwrote it.\nexpected 150, found 140\n"},
	} {
		p := testPlay(t, Config{Workers: 2, Add: 100, WithoutLock: c.without})
		p.reports(0, halfway, 50)
		p.kills(0, time.Second)
		p.number = c.number
		if _, err := p.handleReport(1, report{Event: adding}, opening.Add(3500*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		p.reports(1, done, 100)
		if err := p.end(opening); err != nil {
			t.Fatal(err)
		}
		if want := strings.Join(p.table(opening), "\n") + "\n" + c.want; p.shown() != want {
			t.Errorf("got\n%s\nwant\n%s", p.shown(), want)
		}
	}
}

// Without a lock the output mentions none of its terms.
func TestEnd_withoutLock(t *testing.T) {
	t.Parallel()
	p := testPlay(t, Config{Workers: 2, Add: 100, WithoutLock: true})
	p.reports(0, adding, 0)
	p.reports(1, done, 100)
	p.kills(0, 0)
	if err := p.end(opening); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"token", "wait", "held", "hold"} {
		if strings.Contains(p.shown(), word) {
			t.Errorf("output contains %q: %s", word, p.shown())
		}
	}
}

func TestSay_lineForEachEvent(t *testing.T) {
	t.Parallel()
	p := testPlay(t, Config{Workers: 10, Add: 100})
	for _, err := range []error{
		second(p.handleReport(9, report{Event: waiting, Text: "joins the line"}, opening.Add(1234*time.Millisecond))),
		second(p.handleReport(9, report{Event: added}, opening)),
		p.draw(opening),
		p.handleLine(stile.Line{}, nil, opening.Add(12345*time.Millisecond)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := "  1.234  worker 10  joins the line\n 12.345  line       nobody holds the lock\n"
	if got := p.shown(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func second(_ bool, err error) error { return err }

// Each table overwrites the one before, and leaves the terminal's state unchanged.
func TestDraw_inPlace(t *testing.T) {
	t.Parallel()
	p := testPlay(t, Config{Workers: 3, Add: 100})
	p.screen.live = true
	const height = 5
	picture := func(draw func(time.Time) error, now time.Time) string {
		t.Helper()
		before := len(p.shown())
		if err := draw(now); err != nil {
			t.Fatal(err)
		}
		return p.shown()[before:]
	}
	up := fmt.Sprintf("\r"+upLines, height)
	first := picture(p.draw, opening)
	if strings.Contains(first, up) {
		t.Errorf("the first table overwrites earlier output: %q", first)
	}
	if strings.Count(first, "\n") != height || !strings.HasSuffix(first, "\n"+wrap+cursor) {
		t.Errorf("want a table of %d lines that ends with a visible cursor, got %q", height, first)
	}
	if got := picture(p.draw, opening.Add(time.Second)); !strings.Contains(got, up) {
		t.Errorf("the second table is not drawn over the first: %q", got)
	}
	if got := picture(p.draw, opening.Add(time.Hour)); strings.Contains(got, up) {
		t.Errorf("after a suspension the table overwrites the shell's output: %q", got)
	}
	last := picture(p.end, opening.Add(time.Hour+time.Second))
	if !strings.Contains(last, up) || !strings.HasSuffix(last, wrap+cursor+"After the kill the lock stayed held for 0.00 s.\nexpected 0, found 0\n") {
		t.Errorf("the last table is not drawn over the one before, or the results are not below it: %q", last)
	}
}
