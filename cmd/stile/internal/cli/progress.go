package cli

import (
	"fmt"
	"os"
	"strings"
	"unicode"

	"golang.org/x/term"
	"golang.org/x/text/width"
)

// A progress is a status line on the terminal. A nil progress shows nothing. It is not safe for
// concurrent use.
type progress struct {
	terminal *os.File
	columns  func() int // of the terminal; zero if unknown
	rewraps  bool       // the terminal rewraps its text when it gets narrower
	shown    int        // number of columns of the text shown
}

// newProgress returns nil if stderr is not a terminal.
func newProgress(stdio Stdio) *progress {
	fd := int(stdio.Err.Fd())
	if !term.IsTerminal(fd) {
		return nil
	}
	return &progress{terminal: stdio.Err, rewraps: rewraps(os.Getenv), columns: func() int {
		columns, _, _ := term.GetSize(fd)
		return columns
	}}
}

// rewraps reports whether the terminal rewraps lines when it gets narrower. It returns false for
// the terminals known to cut them off.
func rewraps(env func(string) string) bool {
	kind, _, _ := strings.Cut(env("TERM"), "-")
	switch kind {
	case "linux", "dumb", "vt100", "vt220", "rxvt":
		return false
	case "screen":
		return env("TMUX") != ""
	default:
		return env("XTERM_VERSION") == ""
	}
}

// show replaces the text shown. It shows the first text that fits into the line, or the part of the
// last one that fits.
func (p *progress) show(texts ...string) {
	if p == nil {
		return
	}
	var line string
	// Some terminals start a new line after the last column, and ^C must fit too.
	most := p.columns() - 3
	for _, text := range texts {
		if line = messagePrefix + text; most < 1 || columnsOf(line) <= most {
			break
		}
	}
	if last := texts[len(texts)-1]; most >= 1 && columnsOf(line) > most {
		line = fit(last, most)
	}
	fmt.Fprint(p.terminal, p.erasure()+line)
	p.shown = columnsOf(line)
}

// erasure returns the control sequence that erases the text, which may have been wrapped to several
// lines, and moves the cursor back to its start.
func (p *progress) erasure() string {
	if columns := p.columns(); p.rewraps && columns > 0 && p.shown > columns {
		return fmt.Sprintf("\x1b[%dA\r\x1b[J", (p.shown-1)/columns)
	}
	return "\r\x1b[K"
}

// clear erases the text.
func (p *progress) clear() {
	if p == nil || p.shown == 0 {
		return
	}
	fmt.Fprint(p.terminal, p.erasure())
	p.shown = 0
}

// fit shortens a line to a number of columns.
func fit(line string, columns int) string {
	used, cut := 0, 0 // cut is where the line is cut if it is too long
	for i, r := range line {
		if used < columns {
			cut = i
		}
		if used += runeColumns(r); used > columns {
			return line[:cut] + "…"
		}
	}
	return line
}

// columnsOf returns how many terminal columns a text takes.
func columnsOf(text string) (columns int) {
	for _, r := range text {
		columns += runeColumns(r)
	}
	return columns
}

// runeColumns returns how many terminal columns a character takes: two for East Asian characters
// and pictures, none for combining accents.
func runeColumns(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case r < 0x1100:
		return 1
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	default:
		return 1
	}
}
