package demo

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"
)

// screen shows what happens. It is for one goroutine.
type screen interface {
	// say tells what has happened, and to whom: "worker 3", "line".
	say(s *stage, now time.Time, who, what string) error
	// tick is called several times a second.
	tick(s *stage, now time.Time) error
	// end makes way for the results.
	end()
}

// newScreen returns a table that is kept up to date if out is a terminal that has room for it, and otherwise a screen with a
// line for each event.
func newScreen(out *os.File, s *stage) screen {
	_, height, err := term.GetSize(int(out.Fd()))
	if err == nil && height > len(s.table(s.began)) && os.Getenv("TERM") != "dumb" {
		return &live{out: out}
	}
	return events{out}
}

// events is a screen with a line for each event.
type events struct{ out *os.File }

func (e events) say(s *stage, now time.Time, who, what string) error {
	_, err := fmt.Fprintf(e.out, "%7.3f  %-9s  %s\n", now.Sub(s.began).Seconds(), who, what)
	return err
}

func (events) tick(*stage, time.Time) error { return nil }
func (events) end()                         {}

// live is a table that is drawn over and over in the same place. A picture is written at once, so that it does not flicker,
// and whatever it changes in the terminal's ways is put right at its end: so there is nothing to restore if the demo is
// suspended or killed.
type live struct {
	out   *os.File
	drawn int // lines, above the cursor
	at    time.Time
}

// aWhile without a new picture means that the demo was suspended: then the shell has written below the old one.
const aWhile = 2 * time.Second

// Control sequences.
const (
	upLines   = "\x1b[%dA"
	clearLine = "\x1b[K" // the rest of it
	clearDown = "\x1b[J" // and all below
	noCursor  = "\x1b[?25l"
	cursor    = "\x1b[?25h"
	noWrap    = "\x1b[?7l" // what does not fit into a line is not shown: else a line would be two
	wrap      = "\x1b[?7h"
)

func (*live) say(*stage, time.Time, string, string) error { return nil }

func (l *live) tick(s *stage, now time.Time) error {
	if now.Sub(l.at) > aWhile {
		l.drawn = 0
	}
	lines := s.table(now)
	var b bytes.Buffer
	b.WriteString(noCursor + noWrap)
	l.back(&b)
	for _, line := range lines {
		b.WriteString(line + clearLine + "\r\n")
	}
	b.WriteString(wrap + cursor)
	l.drawn, l.at = len(lines), now
	_, err := l.out.Write(b.Bytes())
	return err
}

func (l *live) end() {
	var b bytes.Buffer
	l.back(&b)
	b.WriteString(clearDown)
	l.drawn = 0
	_, _ = l.out.Write(b.Bytes()) // whoever writes next will see what is wrong
}

// back goes to where the table begins.
func (l *live) back(b *bytes.Buffer) {
	b.WriteString("\r") // keys that were typed may have been shown
	if l.drawn > 0 {
		fmt.Fprintf(b, upLines, l.drawn)
	}
}

// table is the picture: a row for each worker, and what the lock and the counter are at. It is 79 columns wide.
func (s *stage) table(now time.Time) []string {
	lines := []string{row("%6s  %7s  %-13s  %29s  %15s", "worker", "pid", "", "added", s.ifLocked("token"))}
	for i, p := range s.parts {
		const width = 20
		full := width * p.added / s.add
		bar := strings.Repeat("#", full) + strings.Repeat(".", width-full)
		place, mark := s.place(i), ""
		if strings.HasSuffix(place, "holds") {
			mark = ">"
		}
		lines = append(lines, row("%1s%5d  %7d  %-13s  %s %8d  %15s", mark, i+1, p.pid, place, bar, p.added, s.token(i)))
	}
	return append(lines, row("%s  in the file: %d; %s", seconds(now.Sub(s.began)), s.counter, s.doing(now)))
}

// doing says what goes on, in a few words.
func (s *stage) doing(now time.Time) string {
	switch {
	case !s.locked:
		return "there is no lock"
	case s.lineErr != nil:
		return "the line " + s.lineText()
	case !s.killedAt.IsZero() && s.reopened.IsZero():
		return fmt.Sprintf("locked by a dead worker for %s", seconds(now.Sub(s.killedAt)))
	default:
		return fmt.Sprintf("%d wait for the lock", len(s.line.Waiters))
	}
}

// summary is what is shown after the end, but for the last line.
func (s *stage) summary(v Verdict) []string {
	lines := []string{row("%6s  %8s  %8s  %5s  %8s  %15s", "worker", s.ifLocked("waited"), s.ifLocked("held"),
		s.ifLocked("turns"), "added", s.ifLocked("last token"))}
	for i, p := range s.parts {
		note := ""
		if p.state == killed {
			note = "  killed -9"
		}
		if p.lost > 0 {
			note += fmt.Sprintf("  lost the lock: %d", p.lost)
		}
		lines = append(lines, row("%6d  %8s  %8s  %5s  %8d  %15s%s", i+1, s.ifLocked(seconds(p.waited)),
			s.ifLocked(seconds(p.held)), s.ifLocked(strconv.Itoa(p.turns)), p.added, s.token(i), note))
	}
	if s.locked {
		lines = append(lines, fmt.Sprintf("%d hand-overs. After the kill the lock stayed closed for %s.",
			s.begun-1, seconds(s.reopened.Sub(s.killedAt))))
	}
	if lost := v.Expected - v.Found; lost > 0 {
		lines = append(lines, fmt.Sprintf(
			"%d increments were lost: others had read the number before, and wrote theirs over it.", lost))
	}
	return lines
}

// token is that of the worker's last turn.
func (s *stage) token(i int) string {
	if s.parts[i].token == 0 {
		return ""
	}
	return strconv.FormatUint(s.parts[i].token, 10)
}

// ifLocked returns text that says nothing where there is no lock.
func (s *stage) ifLocked(text string) string {
	if s.locked {
		return text
	}
	return ""
}

// row formats a line, without spaces at its end.
func row(format string, args ...any) string {
	return strings.TrimRight(fmt.Sprintf(format, args...), " ")
}
