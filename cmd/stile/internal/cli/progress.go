package cli

import (
	"fmt"
	"os"

	"golang.org/x/term"
)

// progress is one line on the terminal that is kept up to date. A nil progress shows nothing. It is for one goroutine.
type progress struct {
	terminal *os.File
	shown    bool
}

// newProgress returns nil if nobody would see it: if stderr is not a terminal.
func newProgress(stdio Stdio) *progress {
	if !term.IsTerminal(int(stdio.Err.Fd())) {
		return nil
	}
	return &progress{terminal: stdio.Err}
}

// show puts text in place of what was shown before, as much of it as fits into the line.
func (p *progress) show(text string) {
	if p == nil {
		return
	}
	line := "stile: " + text
	if width, _, err := term.GetSize(int(p.terminal.Fd())); err == nil && width > 1 {
		line = fit(line, width-1) // the last column is left free: some terminals begin a new line there
	}
	fmt.Fprintf(p.terminal, "\r%s\x1b[K", line)
	p.shown = true
}

// fit shortens a line to a number of columns.
func fit(line string, columns int) string {
	used, cut := 0, 0 // cut is where the line ends if it has to
	for i, r := range line {
		if used < columns {
			cut = i
		}
		if used += columnsOf(r); used > columns {
			return line[:cut] + "…"
		}
	}
	return line
}

// columnsOf returns how many columns of a terminal a character takes at most: East Asian ones and pictures take two.
func columnsOf(r rune) int {
	if r >= 0x1100 && r != '…' {
		return 2
	}
	return 1
}

// clear leaves the line as if nothing had been there.
func (p *progress) clear() {
	if p == nil || !p.shown {
		return
	}
	fmt.Fprint(p.terminal, "\r\x1b[K")
	p.shown = false
}
