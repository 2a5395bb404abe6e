package stile_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// docs/recipes.md shows code that runs: each of its snippets is part of an example.
func TestRecipes_snippetsAreFromExamples(t *testing.T) {
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	snippets := goBlock.FindAllStringSubmatch(string(doc), -1)
	if len(snippets) < 5 {
		t.Errorf("got %d snippets, want at least 5", len(snippets))
	}
	for _, s := range snippets {
		var indented strings.Builder
		for line := range strings.Lines(s[1]) {
			if line != "\n" {
				line = "\t" + line
			}
			indented.WriteString(line)
		}
		if !strings.Contains(string(examples), indented.String()) {
			t.Errorf("no example contains\n%s", s[1])
		}
	}
}
