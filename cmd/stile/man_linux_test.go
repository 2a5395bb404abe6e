package main_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMan_pages(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	dir := m.path("man")
	m.command("man", dir).spawn().expectExit(0)
	pages := []string{"stile.1"}
	for _, verb := range m.completions("") {
		if verb != "help" {
			pages = append(pages, "stile-"+verb+".1")
		}
	}
	for _, want := range []string{"stile-run.1", "stile-serve.1", "stile-show.1", "stile-break.1"} {
		if !slices.Contains(pages, want) {
			t.Errorf("the page %s is missing: %v", want, pages)
		}
	}
	written, err := os.ReadDir(dir)
	if err != nil || len(written) != len(pages) {
		t.Errorf("got %d pages, want %v: %v", len(written), pages, err)
	}
	for _, page := range pages {
		t.Run(page, func(t *testing.T) {
			checkPage(t, filepath.Join(dir, page))
		})
	}
}

// checkPage checks that a man page has all sections, and that man and mandoc report no problem.
func checkPage(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for section := range strings.SplitSeq(string(b), "\n.SH ") {
		name, text, _ := strings.Cut(section, "\n")
		sections[name] = text
	}
	for name, want := range map[string]string{
		"NAME": `stile`, "SYNOPSIS": "stile", "DESCRIPTION": " ", "OPTIONS": `\-\-help`, "EXIT STATUS": "125",
		"ENVIRONMENT": "stile", "EXAMPLES": "stile ", "SEE ALSO": "flock (1)",
	} {
		if !strings.Contains(sections[name], want) {
			t.Errorf("section %s: got %q, want it to contain %q", name, sections[name], want)
		}
	}
	for _, check := range [][]string{
		{"man", "--warnings", "-E", "UTF-8", "-l", path},
		{"mandoc", "-T", "lint", "-W", "warning", path},
	} {
		if _, err := exec.LookPath(check[0]); err != nil {
			skipWithout(t, check[0], err)
		}
		var findings bytes.Buffer
		cmd := exec.Command(check[0], check[1:]...)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANWIDTH=80")
		cmd.Stderr = &findings
		if check[0] == "mandoc" { // mandoc writes its findings to stdout; man writes the page there
			cmd.Stdout = &findings
		}
		err := cmd.Run()
		if check[0] == "man" && err != nil {
			t.Errorf("man: %v", err)
		}
		for line := range strings.Lines(findings.String()) {
			if !strings.Contains(line, "missing date") { // the date is missing where the Go tool does not know the commit
				t.Errorf("%s: %s", check[0], line)
			}
		}
	}
}
