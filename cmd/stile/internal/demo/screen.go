package demo

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/stilelock/stile"
)

// screen is the display: a table drawn repeatedly in the same place if out is a terminal with room
// for it, and otherwise a line for each event.
type screen struct {
	out   *os.File
	live  bool
	drawn int       // lines of the table above the cursor
	at    time.Time // time of the last drawing
}

func newScreen(out *os.File, workers int) screen {
	_, height, err := term.GetSize(int(out.Fd()))
	return screen{out: out, live: err == nil && height > workers+2 && os.Getenv("TERM") != "dumb"}
}

const (
	// drawInterval is the interval of drawing the table.
	drawInterval = 100 * time.Millisecond
	// redrawAge is the age from which a table is not drawn over: the demo was suspended, and the
	// shell has written below the table.
	redrawAge = 2 * time.Second
)

// Control sequences.
const (
	upLines   = "\x1b[%dA"
	clearLine = "\x1b[K" // from the cursor to the end
	noCursor  = "\x1b[?25l"
	cursor    = "\x1b[?25h"
	noWrap    = "\x1b[?7l" // truncate long lines, so that no line becomes two
	wrap      = "\x1b[?7h"
)

// say writes a line for an event, unless there is a table.
func (p *play) say(now time.Time, who, what string) error {
	if p.screen.live || what == "" {
		return nil
	}
	_, err := fmt.Fprintf(p.Out, "%7.3f  %-9s  %s\n", now.Sub(p.started).Seconds(), who, what)
	return err
}

// draw draws the table if there is one. It uses one write, so that the table does not flicker, and
// restores the terminal's state at the end of it: nothing remains to be restored if the demo is
// suspended or killed.
func (p *play) draw(now time.Time) error {
	s := &p.screen
	if !s.live {
		return nil
	}
	lines := p.table(now)
	text := noCursor + noWrap + "\r" // typed keys may have been echoed
	if s.drawn > 0 && now.Sub(s.at) <= redrawAge {
		text += fmt.Sprintf(upLines, s.drawn)
	}
	text += strings.Join(lines, clearLine+"\r\n") + clearLine + "\r\n" + wrap + cursor
	s.drawn, s.at = len(lines), now
	_, err := s.out.WriteString(text)
	return err
}

// end shows the results.
func (p *play) end(now time.Time) error {
	lines := p.table(now)
	if p.screen.live {
		if err := p.draw(now); err != nil {
			return err
		}
		lines = nil // drawn above
	}
	if !p.WithoutLock {
		lines = append(lines, fmt.Sprintf("After the kill the lock stayed held for %.2f s.", p.reopened.Sub(p.killedAt).Seconds()))
	}
	if lost := p.acknowledged() - p.number; lost > 0 {
		lines = append(lines, fmt.Sprintf("%d increments were lost: other workers had read the number before, and overwrote it.", lost))
	}
	_, err := fmt.Fprintf(p.Out, "%s\nexpected %d, found %d\n", strings.Join(lines, "\n"), p.acknowledged(), p.number)
	return err
}

// table returns a row for each worker, and one for the line. It is 79 columns wide, except for the
// last row.
func (p *play) table(now time.Time) []string {
	lines := []string{fmt.Sprintf("%6s  %7s  %-15s  %45s", "worker", "pid", "", "added")}
	for i, w := range p.parts {
		const width = 36
		full := width * w.added / p.Add
		bar := strings.Repeat("#", full) + strings.Repeat(".", width-full)
		lines = append(lines, fmt.Sprintf("%6d  %7d  %-15s  %s %8d", i+1, w.pid, p.place(i), bar, w.added))
	}
	what := p.lineText()
	if p.WithoutLock {
		what = "there is no lock"
	}
	return append(lines, fmt.Sprintf("%.2f s  in the file: %d; %s", now.Sub(p.started).Seconds(), p.number, what))
}

// lineText describes the holder and the waiters as read from the store.
func (p *play) lineText() string {
	if p.lineErr != nil {
		return "the line cannot be read: " + p.lineErr.Error()
	}
	text := "nobody holds the lock"
	for _, e := range p.line.Holders {
		i, dead := p.workerOf(e), ""
		if i >= 0 && p.parts[i].last == killed {
			dead = ", which is dead,"
		}
		text = fmt.Sprintf("%s%s holds the lock, token %d", workerName(i), dead, e.Token)
	}
	for i, e := range p.line.Waiters {
		if i == 0 {
			text += "; waiting:"
		}
		text += strings.TrimPrefix(" "+workerName(p.workerOf(e)), " worker")
	}
	return text
}

// place returns the place of worker i as read from the store: holding or waiting. If the worker is
// not in the line, place returns its last report.
func (p *play) place(i int) string {
	own := func(e stile.Entry) bool { return p.workerOf(e) == i }
	holds, n := slices.ContainsFunc(p.line.Holders, own), slices.IndexFunc(p.line.Waiters, own)
	switch last := p.parts[i].last; {
	case last == done:
		return string(done) // the reading may be older
	case holds && last == killed:
		return "killed, holds"
	case holds:
		return "holds"
	case n >= 0:
		return fmt.Sprintf("waits #%d", n+1)
	default:
		return string(last)
	}
}

// workerOf returns the worker of an entry; negative if the entry is not ours.
func (p *play) workerOf(e stile.Entry) int {
	return slices.IndexFunc(p.parts, func(w part) bool { return w.pid == e.Owner.PID })
}

func workerName(i int) string {
	if i < 0 {
		return "another client" // of the same store, using the lock's name
	}
	return fmt.Sprintf("worker %d", i+1)
}
