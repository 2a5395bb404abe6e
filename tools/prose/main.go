// Command prose checks the texts in the repository: its Markdown files, and the comments and string
// literals in its Go files.
//
//   - No line of Markdown is longer than 100 characters, except in tables, in code and with links.
//   - Links lead to existing files and headings. Web addresses are not checked.
//   - The spelling is American English.
//   - The phrases in phrases.txt, which plain English has replaced, do not come back.
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

const maxWidth = 100

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	findings, err := check(root)
	for _, f := range findings {
		fmt.Println(f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
	}
	if err != nil || len(findings) > 0 {
		os.Exit(1)
	}
}

// checker collects the findings in the files below root.
type checker struct {
	root     string
	phrases  []phrase
	spelling *misspell.Replacer
	findings []string
}

// check returns the findings, one line each, in the files below root that git knows or would add.
func check(root string) ([]string, error) {
	phrases, err := parsePhrases(phrasesText)
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
		case strings.HasPrefix(name, "tools/prose/"): // it quotes the phrases
		case errors.Is(err, os.ErrNotExist): // deleted, but still in the index
		case err != nil:
			errs = append(errs, err)
		case strings.HasSuffix(name, ".md"):
			c.checkMarkdown(name, source)
		default:
			c.checkGo(name, source)
		}
	}
	return c.findings, errors.Join(errs...)
}

func (c *checker) add(name string, line int, format string, args ...any) {
	c.findings = append(c.findings, fmt.Sprintf("%s:%d: %s", name, line, fmt.Sprintf(format, args...)))
}

// checkText checks a text that begins in the given line of a file.
func (c *checker) checkText(name string, line int, s string) {
	for _, p := range c.phrases {
		if at := p.FindStringIndex(s); at != nil {
			c.add(name, line+strings.Count(s[:at[0]], "\n"), "%q: %s", s[at[0]:at[1]], p.replacement)
		}
	}
	_, misspelled := c.spelling.Replace(s)
	for _, m := range misspelled {
		c.add(name, line+m.Line-1, "%q is spelled %q", m.Original, m.Corrected)
	}
}

// checkGo checks comments and string literals.
func (c *checker) checkGo(name string, source []byte) {
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
			c.checkText(name, files.Position(pos).Line, lit)
		default:
		}
	}
}

// checkMarkdown checks the lines, the links and the text outside of code.
func (c *checker) checkMarkdown(name string, source []byte) {
	code := false
	for i, l := range strings.Split(string(source), "\n") {
		if strings.HasPrefix(strings.TrimSpace(l), "```") {
			code = !code
		}
		if n := utf8.RuneCountInString(l); n > maxWidth && !code && !strings.HasPrefix(l, "|") && !strings.Contains(l, "](") {
			c.add(name, i+1, "%d characters, want at most %d", n, maxWidth)
		}
	}
	_ = ast.Walk(parse(source), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		if link, ok := n.(*ast.Link); ok {
			if reason := c.deadLink(name, source, string(link.Destination)); reason != "" {
				c.add(name, lineOf(n, source), "dead link %s: %s", link.Destination, reason)
			}
		}
		if n.Type() == ast.TypeBlock && n.FirstChild() != nil && n.FirstChild().Type() == ast.TypeInline {
			c.checkText(name, lineOf(n, source), withoutCode(n, source))
		}
		return ast.WalkContinue, nil
	})
}

func parse(source []byte) ast.Node {
	return goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(source))
}

// lineOf returns the line on which a node begins.
func lineOf(n ast.Node, source []byte) int {
	for ; n != nil; n = n.Parent() {
		if n.Type() == ast.TypeBlock && n.Lines().Len() > 0 {
			return bytes.Count(source[:n.Lines().At(0).Start], []byte("\n")) + 1
		}
	}
	return 1
}

// withoutCode returns the text of a node with its line breaks, but without code.
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

// deadLink returns why a link in a file is dead, or "" if it is not, or leads to the web.
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
			return "no such file"
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
		return "no such heading"
	}
	return ""
}

// anchors returns the URL fragments of a file's headings, as GitHub forms them.
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

// A phrase is a regular expression that no text may match.
type phrase struct {
	*regexp.Regexp
	replacement string // what to write instead
}

//go:embed phrases.txt
var phrasesText string

// parsePhrases parses lines with a regular expression, a tab, and what to write instead. Spaces in
// the expression also match line breaks.
func parsePhrases(source string) ([]phrase, error) {
	var all []phrase
	lines := bufio.NewScanner(strings.NewReader(source))
	for lines.Scan() {
		l := lines.Text()
		if l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		expression, replacement, ok := strings.Cut(l, "\t")
		if !ok {
			return nil, fmt.Errorf("phrases.txt: %q: want an expression, a tab and a replacement", l)
		}
		re, err := regexp.Compile(`(?i)\b(?:` + strings.ReplaceAll(expression, " ", `[\s/]+`) + `)\b`)
		if err != nil {
			return nil, fmt.Errorf("phrases.txt: %q: %w", l, err)
		}
		all = append(all, phrase{re, replacement})
	}
	return all, lines.Err()
}
