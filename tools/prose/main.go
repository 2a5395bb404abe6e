// Command prose checks what people read: the Markdown files of the repository, and the comments and texts in its Go files.
//
//   - No line of Markdown is longer than 100 characters, but for tables, code and links.
//   - Links lead to files and headings that exist. Addresses on the web are not looked up.
//   - Words are spelled as in American English.
//   - Phrases that were replaced by plain English (phrases.txt) do not come back.
package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"go/scanner"
	"go/token"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/golangci/misspell"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

const width = 100

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	found, err := check(root)
	for _, f := range found {
		fmt.Println(f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
	}
	if err != nil || len(found) > 0 {
		os.Exit(1)
	}
}

// checker collects what is wrong in the files below root.
type checker struct {
	root     string
	phrases  []phrase
	spelling *misspell.Replacer
	found    []string
}

// check returns what is wrong, a line for each, in the files below root that git knows.
func check(root string) ([]string, error) {
	phrases, err := parsePhrases(phrasesFile)
	if err != nil {
		return nil, err
	}
	c := &checker{root: root, phrases: phrases, spelling: misspell.New()}
	c.spelling.AddRuleList(misspell.DictAmerican)
	c.spelling.Compile()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md", "*.go")
	list.Dir, list.Stderr = root, os.Stderr
	names, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	var errs []error
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		source, err := os.ReadFile(filepath.Join(root, name))
		switch {
		case strings.HasPrefix(name, "tools/prose/"): // which quotes what must not come back
		case errors.Is(err, os.ErrNotExist): // it is about to be removed
		case err != nil:
			errs = append(errs, err)
		case strings.HasSuffix(name, ".md"):
			c.markdown(name, source)
		default:
			c.goFile(name, source)
		}
	}
	return c.found, errors.Join(errs...)
}

func (c *checker) report(name string, line int, format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf("%s:%d: %s", name, line, fmt.Sprintf(format, args...)))
}

// prose checks a piece of text that begins in a line of a file.
func (c *checker) prose(name string, line int, kind, s string) {
	for _, p := range c.phrases {
		if at := p.FindStringIndex(s); at != nil && (p.kind == "" || p.kind == kind) {
			c.report(name, line+strings.Count(s[:at[0]], "\n"), "%q: %s", s[at[0]:at[1]], p.instead)
		}
	}
	_, misspelled := c.spelling.Replace(s)
	for _, m := range misspelled {
		c.report(name, line+m.Line-1, "%q is spelled %q", m.Original, m.Corrected)
	}
}

// goFile checks comments and string literals.
func (c *checker) goFile(name string, source []byte) {
	files := token.NewFileSet()
	file := files.AddFile(name, -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	for {
		pos, tok, lit := s.Scan()
		switch tok {
		case token.EOF:
			return
		case token.COMMENT, token.STRING:
			c.prose(name, files.Position(pos).Line, "go", lit)
		default:
		}
	}
}

// markdown checks a file: its lines, its links, and the text outside of code.
func (c *checker) markdown(name string, source []byte) {
	code := false
	for i, l := range strings.Split(string(source), "\n") {
		if strings.HasPrefix(strings.TrimSpace(l), "```") {
			code = !code
		}
		if n := utf8.RuneCountInString(l); n > width && !code && !strings.HasPrefix(l, "|") && !strings.Contains(l, "](") {
			c.report(name, i+1, "%d characters, want %d at most", n, width)
		}
	}
	_ = ast.Walk(parse(source), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		if link, ok := n.(*ast.Link); ok {
			if why := c.deadLink(name, source, string(link.Destination)); why != "" {
				c.report(name, lineOf(n, source), "the link %s is dead: %s", link.Destination, why)
			}
		}
		if n.Type() == ast.TypeBlock && n.FirstChild() != nil && n.FirstChild().Type() == ast.TypeInline {
			c.prose(name, lineOf(n, source), "md", withoutCode(n, source))
		}
		return ast.WalkContinue, nil
	})
}

func parse(source []byte) ast.Node {
	return goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(source))
}

// lineOf returns the line in which a node begins.
func lineOf(n ast.Node, source []byte) int {
	for ; n != nil; n = n.Parent() {
		if n.Type() == ast.TypeBlock && n.Lines().Len() > 0 {
			return bytes.Count(source[:n.Lines().At(0).Start], []byte("\n")) + 1
		}
	}
	return 1
}

// withoutCode returns the text of a node. Line breaks are kept, code is left out.
func withoutCode(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.CodeSpan:
			return ast.WalkSkipChildren, nil
		case *ast.Text:
			if entering {
				b.Write(n.Segment.Value(source))
				if n.SoftLineBreak() || n.HardLineBreak() {
					b.WriteByte('\n')
				}
			}
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// deadLink returns why a link in a file leads nowhere; empty if it does not, or leads to the web.
func (c *checker) deadLink(name string, source []byte, destination string) string {
	u, err := url.Parse(destination)
	switch {
	case err != nil:
		return err.Error()
	case u.IsAbs():
		return ""
	case u.Path != "":
		path := filepath.Join(c.root, filepath.Dir(name), filepath.FromSlash(u.Path))
		if _, err := os.Stat(path); err != nil {
			return "there is no such file"
		}
		if u.Fragment == "" {
			return ""
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			path = filepath.Join(path, "README.md")
		}
		if source, err = os.ReadFile(path); err != nil {
			return err.Error()
		}
	}
	if !anchors(source)[u.Fragment] {
		return "there is no such heading"
	}
	return ""
}

// anchors returns what links to the headings of a file end with, as GitHub makes it.
func anchors(source []byte) map[string]bool {
	found := make(map[string]bool)
	_ = ast.Walk(parse(source), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if h, ok := n.(*ast.Heading); ok && entering {
			found[anchor(string(h.Lines().Value(source)))] = true
		}
		return ast.WalkContinue, nil
	})
	return found
}

func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		default:
			return -1
		}
	}, strings.TrimSpace(heading))
}

// A phrase must not come back.
type phrase struct {
	*regexp.Regexp
	kind    string // of files, "md" or "go"; empty: all
	instead string // what to write
}

//go:embed phrases.txt
var phrasesFile string

// parsePhrases reads lines with a kind of file, a regular expression and what to write, with tabs between them. Words of the
// expression may stand in different lines.
func parsePhrases(file string) ([]phrase, error) {
	var all []phrase
	lines := bufio.NewScanner(strings.NewReader(file))
	for lines.Scan() {
		l := lines.Text()
		if l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		fields := strings.Split(l, "\t")
		if len(fields) != 3 {
			return nil, fmt.Errorf("phrases.txt: %q: want three fields", l)
		}
		re, err := regexp.Compile(`(?i)\b(?:` + strings.ReplaceAll(fields[1], " ", `[\s/]+`) + `)\b`)
		if err != nil {
			return nil, fmt.Errorf("phrases.txt: %q: %w", l, err)
		}
		kind := fields[0]
		if kind == "all" {
			kind = ""
		}
		all = append(all, phrase{re, kind, fields[2]})
	}
	return all, lines.Err()
}
