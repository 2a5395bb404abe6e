// Package transcript writes down what the parts of Stile say to each other in a test: to be read by people, and compared
// with a file, so that it stays true.
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

var update = flag.Bool("update", false, "write the transcripts anew instead of comparing them")

// A Transcript is a text of scenes. It is safe for concurrent use.
type Transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

// Scene begins a scene. About says in a few lines what there is to see.
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

// Compare compares the text with the file's, and fails the test where they part. With -update it writes the file.
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
			was := "the end of the file"
			if i < len(wantLines) {
				was = wantLines[i]
			}
			tb.Fatalf("line %d of %s is\n\t%s\nand was\n\t%s\nThe whole of it now (go test -run '^%s$' -update writes it):\n\n%s",
				i+1, file, line, was, tb.Name(), got)
		}
	}
	if len(gotLines) < len(wantLines) {
		tb.Fatalf("%s has %d lines more:\n\t%s", file, len(wantLines)-len(gotLines), wantLines[len(gotLines)])
	}
}
