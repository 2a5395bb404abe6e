package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// repository returns the directory of a new git repository with the given files.
func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	if out, err := exec.Command("git", "init", "-q", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestCheck(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 21)
	for name, c := range map[string]struct {
		files map[string]string
		want  []string // prefixes of the findings
	}{
		"good text":                      {map[string]string{"a.md": "# A\n\nSee [b](b.md#one-two) and [above](#a).\n", "b.md": "## One, `two`!\n"}, nil},
		"a long line":                    {map[string]string{"a.md": "Short.\n" + long + "\n"}, []string{"a.md:2: 105 characters"}},
		"a long line in code or a table": {map[string]string{"a.md": "```\n" + long + "\n```\n\n| " + long + "|\n"}, nil},
		"a dead link to a file":          {map[string]string{"docs/a.md": "\n[b](b.md)\n"}, []string{"docs/a.md:2: dead link b.md: no such file"}},
		"a dead link to a heading":       {map[string]string{"a.md": "[b](#b)\n\n# A\n"}, []string{"a.md:1: dead link #b: no such heading"}},
		"a phrase":                       {map[string]string{"a.md": "One.\nThe answer makes\nno sense.\n"}, []string{"a.md:2: \"makes\\nno sense\": unexpected"}},
		"a phrase in a table":            {map[string]string{"a.md": "| a |\n|---|\n| Whoever comes |\n"}, []string{`a.md:3: "Whoever"`}},
		"a phrase in code":               {map[string]string{"a.md": "Run `who waits`.\n"}, nil},
		"a phrase in Go":                 {map[string]string{"a.go": "package a\n\n// It makes no sense.\n"}, []string{`a.go:3: "makes no sense"`}},
		"a phrase in a Go string":        {map[string]string{"a.go": "package a\n\nconst b = `makes no sense`\n"}, []string{`a.go:3: "makes no sense"`}},
		"a word misspelled":              {map[string]string{"a.md": "One.\nIt rec" + "ieves.\n"}, []string{`a.md:2: "rec` + `ieves" is spelled "receives"`}},
		"British spelling":               {map[string]string{"a.md": "Its behaviour.\n"}, []string{`a.md:1: "behaviour" is spelled "behavior"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			findings, err := check(repository(t, c.files))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(findings, c.want, func(got, want string) bool { return strings.HasPrefix(got, want) }) {
				t.Errorf("got findings %q, want %q", findings, c.want)
			}
		})
	}
}
