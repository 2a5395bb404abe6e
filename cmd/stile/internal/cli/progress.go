package cli

import (
	"fmt"
	"os"
	"strings"
	"unicode"

	"golang.org/x/term"
	"golang.org/x/text/width"
)

// progress is one line on the terminal that is kept up to date. A nil progress shows nothing. It is for one goroutine.
type progress struct {
	terminal *os.File
	columns  func() int // of the terminal; zero if that is not known
	rewraps  bool       // the terminal wraps anew what is in it when it gets narrower
	shown    int        // how many columns of text are there
}

// newProgress returns nil if nobody would see it: if stderr is not a terminal.
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

// rewraps reports whether the terminal is none of those that cut lines off when they get narrower, as is known of them.
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

// show puts a text in place of what was shown before: the first that fits into the line, or what fits of the last.
func (p *progress) show(texts ...string) {
	if p == nil {
		return
	}
	var line string
	// Some terminals begin a new line after the last column; and there has to be room for the ^C that they show.
	most := p.columns() - 3
	for _, text := range texts {
		if line = speaker + text; most < 1 || columnsOf(line) <= most {
			break
		}
	}
	if last := texts[len(texts)-1]; most >= 1 && columnsOf(line) > most {
		line = fit(last, most)
	}
	fmt.Fprint(p.terminal, p.erasure()+line)
	p.shown = columnsOf(line)
}

// erasure is what takes away what is shown, which may stand on several lines by now, and leaves the cursor where it began.
func (p *progress) erasure() string {
	if columns := p.columns(); p.rewraps && columns > 0 && p.shown > columns {
		return fmt.Sprintf("\x1b[%dA\r\x1b[J", (p.shown-1)/columns)
	}
	return "\r\x1b[K"
}

// clear leaves the terminal as if nothing had been there.
func (p *progress) clear() {
	if p == nil || p.shown == 0 {
		return
	}
	fmt.Fprint(p.terminal, p.erasure())
	p.shown = 0
}

// fit shortens a line to a number of columns.
func fit(line string, columns int) string {
	used, cut := 0, 0 // cut is where the line ends if it has to
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

// columnsOf returns how many columns of a terminal a text takes.
func columnsOf(text string) (columns int) {
	for _, r := range text {
		columns += runeColumns(r)
	}
	return columns
}

// runeColumns returns how many columns of a terminal a character takes: East Asian ones and pictures take two, accents that are
// put on the character before take none.
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
