// Package transcript records the messages between the parts of Stile in a test and compares them
// with a golden file, so that the file is readable documentation and stays up to date.
package transcript

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var update = flag.Bool("update", false, "write the transcripts instead of comparing them")

// A Transcript is a text that consists of scenes. It is safe for concurrent use.
type Transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

// Scene starts a scene with a title and a description of a few lines.
func (t *Transcript) Scene(title, about string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text.Len() > 0 {
		t.text.WriteString("\n")
	}
	fmt.Fprintf(&t.text, "%s\n%s\n%s\n\n", title, strings.Repeat("=", len(title)), strings.TrimSpace(about))
}

// Line adds a line.
func (t *Transcript) Line(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " ") + "\n")
}

// Compare fails the test if the text differs from the file. With the flag -update it writes the
// file instead.
func (t *Transcript) Compare(tb testing.TB, file string) {
	tb.Helper()
	t.mu.Lock()
	got := t.text.String()
	t.mu.Unlock()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			tb.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i, line := range gotLines {
		if i >= len(wantLines) || line != wantLines[i] {
			expected := "the end of the file"
			if i < len(wantLines) {
				expected = wantLines[i]
			}
			tb.Fatalf("line %d of %s: got\n\t%s\nwant\n\t%s\nThe complete transcript (go test -run '^%s$' -update writes it):\n\n%s",
				i+1, file, line, expected, tb.Name(), got)
		}
	}
	if len(gotLines) < len(wantLines) {
		tb.Fatalf("%s has %d more lines:\n\t%s", file, len(wantLines)-len(gotLines), wantLines[len(gotLines)])
	}
}
