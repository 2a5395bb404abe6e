package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
)

func TestProgress_fitsColumns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line    string
		columns int
		want    string
	}{
		{"", 1, ""},
		{"abcde", 5, "abcde"},
		{"abcdef", 5, "abcd…"},
		{"äöüäöü", 5, "äöüä…"},
		{"a\u0308o\u0308", 2, "a\u0308o\u0308"},
		{"錠錠", 4, "錠錠"},
		{"錠錠", 3, "錠…"},
		{"a錠錠", 4, "a錠…"},
		{"錠錠錠", 4, "錠…"},
		{"錠", 1, "…"},
		{"🔒🔒", 3, "🔒…"},
	} {
		if got := fit(c.line, c.columns); got != c.want {
			t.Errorf("%q in %d columns: %q, want %q", c.line, c.columns, got, c.want)
		}
	}
}

// screen is a terminal, as far as progress needs one. Each of its lines has the characters that were written there, one for each
// column.
type screen struct {
	t        *testing.T
	columns  int
	rewraps  bool
	lines    []string
	row, col int
}

// write does what a terminal does with what is written to it.
func (s *screen) write(text string) {
	s.t.Helper()
	for text != "" {
		switch {
		case strings.HasPrefix(text, "\r"):
			s.col, text = 0, text[1:]
		case strings.HasPrefix(text, "\x1b[K"):
			s.lines[s.row], text = cut(s.lines[s.row], s.col), text[3:]
		case strings.HasPrefix(text, "\x1b[J"):
			s.lines = append(s.lines[:s.row], cut(s.lines[s.row], s.col))
			text = text[3:]
		case strings.HasPrefix(text, "\x1b["):
			var up int
			if n, err := fmt.Sscanf(text, "\x1b[%dA", &up); n != 1 || err != nil || up > s.row {
				s.t.Fatalf("unexpected %q in row %d", text, s.row)
			}
			s.row -= up
			_, text, _ = strings.Cut(text, "A")
		default:
			if s.col == s.columns {
				s.t.Fatalf("a line of more than %d columns is written", s.columns)
			}
			line := []rune(s.lines[s.row])
			for len(line) <= s.col {
				line = append(line, ' ')
			}
			line[s.col] = []rune(text)[0]
			s.lines[s.row] = string(line)
			text = text[len(string(line[s.col])):]
			s.col++
		}
	}
}

func cut(line string, columns int) string {
	if r := []rune(line); len(r) > columns {
		return string(r[:columns])
	}
	return line
}

// resize makes the terminal narrower or wider. One that wraps anew does so with the line after the first.
func (s *screen) resize(columns int) {
	s.columns = columns
	if !s.rewraps {
		for i := range s.lines {
			s.lines[i] = cut(s.lines[i], columns)
		}
		s.col = min(s.col, columns-1)
		return
	}
	text := []rune(strings.Join(s.lines[1:], "")) // it has been one line
	s.lines = s.lines[:1]
	for chunk := range slices.Chunk(text, columns) {
		s.lines = append(s.lines, string(chunk))
	}
	if len(text) == 0 {
		s.lines = append(s.lines, "")
	}
	s.row = len(s.lines) - 1
	s.col = len([]rune(s.lines[s.row]))
}

// at is a progress that shows on the screen what it writes when done is called.
func (s *screen) progress(t *testing.T) (p *progress, done func()) {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	seen := 0
	return &progress{terminal: file, rewraps: s.rewraps, columns: func() int { return s.columns }}, func() {
		t.Helper()
		all, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		s.write(string(all[seen:]))
		seen = len(all)
	}
}

func TestProgress_clearsTerminal(t *testing.T) {
	t.Parallel()
	for _, rewraps := range []bool{true, false} {
		for _, narrow := range []int{79, 41, 40, 39, 20, 13, 4} {
			for _, again := range []bool{true, false} {
				s := &screen{t: t, columns: 80, rewraps: rewraps, lines: []string{"before", ""}, row: 1}
				p, written := s.progress(t)
				p.show("held by somebody with a long name; next in line", "next in line")
				written()
				if want := "stile: held by somebody with a long name; next in line"; s.lines[1] != want {
					t.Fatalf("the screen shows %q, want %q", s.lines, want)
				}
				s.write("^C") // the terminal shows it itself
				s.resize(narrow)
				if again {
					p.show("held by somebody with a long name; next in line", "next in line")
					written()
					if len(s.lines) != 2 {
						t.Errorf("after a change to %d columns (wraps anew: %v) the screen shows %q", narrow, rewraps, s.lines)
					}
				}
				s.resize(120)
				p.clear()
				written()
				if rest := strings.Join(s.lines[1:], ""); s.lines[0] != cut("before", narrow) && !rewraps || rewraps && s.lines[0] != "before" ||
					rest != "" || s.col != 0 || s.row != 1 {
					t.Errorf("after changes to %d and 120 columns (wraps anew: %v) the screen shows %q, and the cursor is in %d, %d",
						narrow, rewraps, s.lines, s.row, s.col)
				}
			}
		}
	}
}

func TestWaitingTexts(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 1, 2, 8, 37, 12, 0, time.Local)
	line := stile.Line{Name: "deploy", Holders: []stile.Entry{{
		Owner: stile.Owner{User: "root", Host: "vm", PID: 1, Command: "sleep", Since: since.Add(-time.Minute), Obtained: since},
	}}}
	for _, c := range []struct {
		columns int
		want    string
	}{
		{200, `stile: "deploy": held by root@vm pid 1 (sleep) since 2026-01-02 08:37:12; next in line; waited 2s`},
		{93, `stile: "deploy": held by root@vm pid 1 (sleep) since 2026-01-02 08:37:12; next in line`},
		{80, `stile: "deploy": held by root@vm pid 1 (sleep); next in line`},
		{60, `stile: "deploy": held by root@vm pid 1; next in line`},
		{52, `stile: "deploy": held by root@vm; next in line`},
		{45, `stile: held by root@vm; next in line`},
		{30, `stile: next in line`},
		{20, `next in line`},
		{10, `next i…`},
		{4, `…`},
	} {
		s := &screen{t: t, columns: c.columns, lines: []string{""}}
		p, written := s.progress(t)
		p.show(waitingTexts("deploy", line, 1, 2*time.Second)...)
		written()
		if s.lines[0] != c.want {
			t.Errorf("in %d columns it is\n%s, want\n%s", c.columns, s.lines[0], c.want)
		}
	}
	if got, want := waitingTexts("deploy", line, 3, 0)[2], `"deploy": held by root@vm pid 1 (sleep); 3 ahead`; got != want {
		t.Errorf("with others ahead it is %q, want %q", got, want)
	}
	unknown := waitingTexts("deploy", line, -1, 0)
	if got, want := unknown[2], `"deploy": held by root@vm pid 1 (sleep)`; got != want || unknown[len(unknown)-1] != "waiting" {
		t.Errorf("with an unknown place they are %q, want %q and waiting at the end", unknown, want)
	}
	line.Holders[0].Owner = stile.Owner{}
	line.Holders[0].Session = "694d\x1b"
	if got, want := waitingTexts("deploy", line, 1, 0)[1],
		`"deploy": held by an unknown client (session 694d\x1b), not stile; next in line`; got != want {
		t.Errorf("behind another client it is %q, want %q", got, want)
	}
}

func TestProgress_rewraps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  map[string]string
		want bool
	}{
		{map[string]string{"TERM": "xterm-256color"}, true},
		{map[string]string{"TERM": "xterm-256color", "XTERM_VERSION": "XTerm(390)"}, false},
		{map[string]string{"TERM": "screen-256color"}, false},
		{map[string]string{"TERM": "screen-256color", "TMUX": "/tmp/tmux"}, true},
		{map[string]string{"TERM": "linux"}, false},
		{map[string]string{"TERM": "rxvt-unicode-256color"}, false},
		{map[string]string{"TERM": "alacritty"}, true},
	} {
		if got := rewraps(func(name string) string { return c.env[name] }); got != c.want {
			t.Errorf("with %v: %v, want %v", c.env, got, c.want)
		}
	}
}
