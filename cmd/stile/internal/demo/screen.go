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

// screen is where the demo is shown: as a table that is drawn over and over in the same place if out is a terminal that has
// room for it, and otherwise as a line for each event.
type screen struct {
	out   *os.File
	live  bool
	drawn int       // lines above the cursor that are the table's
	at    time.Time // when it was drawn
}

func newScreen(out *os.File, workers int) screen {
	_, height, err := term.GetSize(int(out.Fd()))
	return screen{out: out, live: err == nil && height > workers+2 && os.Getenv("TERM") != "dumb"}
}

const (
	// interval is how often the table is drawn.
	interval = 100 * time.Millisecond
	// suspended is the age of a table that was left because the demo was suspended: the shell has written below it.
	suspended = 2 * time.Second
)

// Control sequences.
const (
	upLines   = "\x1b[%dA"
	clearLine = "\x1b[K" // the rest of it
	noCursor  = "\x1b[?25l"
	cursor    = "\x1b[?25h"
	noWrap    = "\x1b[?7l" // what does not fit into a line is not shown: else a line would be two
	wrap      = "\x1b[?7h"
)

// say shows an event as a line, unless there is a table.
func (p *play) say(now time.Time, who, what string) error {
	if p.screen.live || what == "" {
		return nil
	}
	_, err := fmt.Fprintf(p.Out, "%7.3f  %-9s  %s\n", now.Sub(p.began).Seconds(), who, what)
	return err
}

// draw draws the table if there is one. It is written at once, so that it does not flicker, and its end undoes what it has
// changed in the terminal: there is nothing to restore if the demo is suspended or killed.
func (p *play) draw(now time.Time) error {
	s := &p.screen
	if !s.live {
		return nil
	}
	lines := p.table(now)
	text := noCursor + noWrap + "\r" // keys that were typed may have been shown
	if s.drawn > 0 && now.Sub(s.at) <= suspended {
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
		lines = nil // they are there
	}
	if !p.WithoutLock {
		lines = append(lines, fmt.Sprintf("After the kill the lock stayed closed for %.2f s.", p.reopened.Sub(p.killedAt).Seconds()))
	}
	if lost := p.acknowledged() - p.number; lost > 0 {
		lines = append(lines, fmt.Sprintf("%d increments were lost: others had read the number before, and wrote theirs over it.", lost))
	}
	_, err := fmt.Fprintf(p.Out, "%s\nexpected %d, found %d\n", strings.Join(lines, "\n"), p.acknowledged(), p.number)
	return err
}

// table has a row for each worker, and one for what goes on. It is 79 columns wide, but for the last.
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
	return append(lines, fmt.Sprintf("%.2f s  in the file: %d; %s", now.Sub(p.began).Seconds(), p.number, what))
}

// lineText names the holder and the waiters, as the store has them.
func (p *play) lineText() string {
	if p.lineErr != nil {
		return "the line cannot be read: " + p.lineErr.Error()
	}
	text := "nobody holds the lock"
	for _, e := range p.line.Holders {
		i, dead := p.who(e), ""
		if i >= 0 && p.parts[i].last == killed {
			dead = ", which is dead,"
		}
		text = fmt.Sprintf("%s%s holds the lock, token %d", workerName(i), dead, e.Token)
	}
	for i, e := range p.line.Waiters {
		if i == 0 {
			text += "; waiting:"
		}
		text += strings.TrimPrefix(" "+workerName(p.who(e)), " worker")
	}
	return text
}

// place returns where worker i stands, as the store has it: holding or waiting. If it does not stand in the line, place
// returns what the worker does by its own account.
func (p *play) place(i int) string {
	own := func(e stile.Entry) bool { return p.who(e) == i }
	holds, n := slices.ContainsFunc(p.line.Holders, own), slices.IndexFunc(p.line.Waiters, own)
	switch last := p.parts[i].last; {
	case last == done:
		return string(done) // the reading may be a moment old
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

// who returns the worker whose entry it is; negative if it is none of ours.
func (p *play) who(e stile.Entry) int {
	return slices.IndexFunc(p.parts, func(w part) bool { return w.pid == e.Owner.PID })
}

func workerName(i int) string {
	if i < 0 {
		return "a stranger" // another client of the store has found the name of the lock there
	}
	return fmt.Sprintf("worker %d", i+1)
}
