package stile_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// docs/recipes.md shows code that runs: each of its snippets is part of an example.
func TestRecipes_snippetsAreFromExamples(t *testing.T) {
	snippets := goBlock.FindAllStringSubmatch(readFile(t, "docs/recipes.md"), -1)
	if len(snippets) < 5 {
		t.Errorf("got %d snippets, want at least 5", len(snippets))
	}
	for _, s := range snippets {
		checkSnippet(t, "example_test.go", s[1])
	}
}

var (
	// block matches a block of code, with the comment before it that names its source.
	block = regexp.MustCompile("(?ms)(?:^<!-- from (\\S+) -->\n)?^```\\S*\n(.*?)^```$")
	// heading matches a heading of the first two levels.
	heading = regexp.MustCompile(`(?m)^#{1,2} .*$`)
	// source matches the files that a test compiles or runs.
	source = regexp.MustCompile(`_test\.go$|^examples/|/testdata/`)
)

// docs/integrations.md shows only code that a test compiles or runs. The comment before each of its blocks
// names the file that the block is from:
//
//	<!-- from adapters/stilecron/example_test.go -->
//
// The file is a test, belongs to one (testdata) or to examples/. It contains the block in consecutive lines,
// at any depth of indentation. Each heading has a block, and each module below adapters/ is in the page.
func TestIntegrations_snippetsAreTested(t *testing.T) {
	const page = "docs/integrations.md"
	doc := readFile(t, page)
	for _, b := range block.FindAllStringSubmatch(doc, -1) {
		if from := b[1]; source.MatchString(from) {
			checkSnippet(t, from, b[2])
		} else {
			t.Errorf("%s: no test compiles or runs the source %q of this block; name a test in a line <!-- from FILE --> before it:\n%s", page, from, b[2])
		}
	}
	const snippet = "a snippet"
	sections := heading.Split(block.ReplaceAllString(doc, snippet), -1)
	titles := heading.FindAllString(block.ReplaceAllString(doc, snippet), -1)
	for i, title := range titles[1:] { // without the page's title
		if !strings.Contains(sections[i+2], "\n"+snippet+"\n") {
			t.Errorf("%s: the section %q has no snippet", page, title)
		}
	}
	modules, err := filepath.Glob("adapters/*/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, mod := range modules {
		if dir := filepath.ToSlash(filepath.Dir(mod)); !strings.Contains(doc, "(../"+dir+")") {
			t.Errorf("%s has no link to ../%s", page, dir)
		}
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkSnippet fails the test if the file does not contain the snippet at some depth of indentation.
func checkSnippet(t *testing.T, file, snippet string) {
	t.Helper()
	text := "\n" + readFile(t, file)
	for depth := range 5 {
		var indented strings.Builder
		for line := range strings.Lines(snippet) {
			if line != "\n" {
				line = strings.Repeat("\t", depth) + line
			}
			indented.WriteString(line)
		}
		if strings.Contains(text, "\n"+indented.String()) {
			return
		}
	}
	t.Errorf("%s does not contain\n%s", file, snippet)
}
