package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the man pages",
		Long:   `Write the man pages of stile and of each verb into DIRECTORY, which is made if it is not there.`,
		Hidden: true, // for packagers
		Example: `  stile man /usr/local/share/man/man1
  stile man . && man ./stile-run.1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("missing directory: %s; see %s --help", cmd.UseLine(), cmd.CommandPath())
			}
			return atMost(1, cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return writeMan(cmd.Root(), args[0]) },
	}
}

// writeMan writes a page for root and one for each of its verbs.
func writeMan(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // man pages are for everybody
		return err
	}
	for _, cmd := range append([]*cobra.Command{root}, verbs(root)...) {
		path := filepath.Join(dir, pageName(cmd)+".1")
		if err := os.WriteFile(path, []byte(manPage(root, cmd)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// verbs returns the commands that are not hidden.
func verbs(root *cobra.Command) []*cobra.Command {
	var verbs []*cobra.Command
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() && cmd.Name() != "help" {
			verbs = append(verbs, cmd)
		}
	}
	return verbs
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// Headings that a verb's long text may contain.
const (
	description = "DESCRIPTION"
	exitStatus  = "EXIT STATUS"
	environment = "ENVIRONMENT"
	files       = "FILES"
)

// sectionOf returns the section that a paragraph of a verb's long text belongs to, and its text
// without the heading.
func sectionOf(paragraph string) (section, text string) {
	first, rest, _ := strings.Cut(paragraph, "\n")
	switch first {
	case "Exit codes:":
		return exitStatus, rest
	case "Environment:":
		return environment, rest
	case "Environment of the command:":
		return environment, paragraph
	case "Files:":
		return files, rest
	default:
		return description, paragraph
	}
}

// Default texts of sections, or additions to them.
const (
	defaultExitCodes = `  0    success
  125  stile failed; stderr says why`
	defaultEnvironment = `The environment of stile itself is described in stile(1).`
)

// sections splits the long text of a command into sections.
func sections(cmd *cobra.Command) map[string]string {
	paragraphs := map[string][]string{}
	for paragraph := range strings.SplitSeq(cmd.Long, "\n\n") {
		section, text := sectionOf(paragraph)
		paragraphs[section] = append(paragraphs[section], text)
	}
	if len(paragraphs[exitStatus]) == 0 {
		paragraphs[exitStatus] = []string{defaultExitCodes}
	}
	if cmd.HasParent() {
		paragraphs[environment] = append(paragraphs[environment], defaultEnvironment)
	}
	texts := map[string]string{}
	for section, text := range paragraphs {
		texts[section] = strings.Join(text, "\n\n")
	}
	return texts
}

// manPage returns the page of a command in the man macros of roff.
func manPage(root, cmd *cobra.Command) string {
	var p roff
	sections := sections(cmd)
	p.line(`.TH "%s" "1" "%s" "stile %s" "Stile"`, escape(strings.ToUpper(pageName(cmd))), released(), escape(version()))
	p.heading("NAME")
	p.line(`%s \- %s`, escape(pageName(cmd)), escape(cmd.Short))
	p.heading("SYNOPSIS")
	if cmd == root {
		p.line(`.B stile`)
		p.line(`VERB [flags] [ARGUMENT…]`)
	} else {
		p.line(`.B %s`, escape(cmd.CommandPath()))
		p.line(`%s`, escape(strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath()+" ")))
	}
	p.heading(description)
	p.text(sections[description])
	if cmd == root {
		p.heading("VERBS")
		for _, verb := range verbs(root) {
			p.line(".TP\n.BR %s (1)\n%s", escape(pageName(verb)), escape(verb.Short))
		}
	}
	p.heading("OPTIONS")
	p.options(cmd.Flags())
	for _, section := range []string{exitStatus, environment, files} {
		if text := sections[section]; text != "" {
			p.heading(section)
			p.text(text)
		}
	}
	p.heading("EXAMPLES")
	p.text(cmd.Example)
	p.heading("SEE ALSO")
	p.seeAlso(root, cmd)
	return p.String()
}

// roff builds a man page.
type roff struct{ strings.Builder }

func (p *roff) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *roff) heading(name string) { p.line(".SH %s", name) }

// text writes paragraphs. Paragraphs with indented lines keep their line breaks; others are filled.
func (p *roff) text(text string) {
	for i, paragraph := range strings.Split(text, "\n\n") {
		if i > 0 {
			p.line(".PP")
		}
		verbatim := false
		for line := range strings.SplitSeq(paragraph, "\n") {
			if indented := strings.HasPrefix(line, "  "); indented != verbatim {
				p.line(map[bool]string{true: ".nf", false: ".fi"}[indented])
				verbatim = indented
			}
			p.line("%s", escape(strings.TrimPrefix(line, "  ")))
		}
		if verbatim {
			p.line(".fi")
		}
	}
}

// options writes the flags.
func (p *roff) options(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		name, usage := pflag.UnquoteUsage(f)
		spelled := `\fB` + escape("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			spelled = `\fB` + escape("-"+f.Shorthand) + `\fR, ` + spelled
		}
		if name != "" {
			spelled += ` \fI` + escape(name) + `\fR`
		}
		if !slices.Contains([]string{"", "false", "0", "[]"}, f.DefValue) {
			usage += " (default: " + f.DefValue + ")"
		}
		p.line(".TP\n%s\n%s", spelled, escape(usage))
	})
	p.line(".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nshow help")
}

// seeAlso names the other pages.
func (p *roff) seeAlso(root, cmd *cobra.Command) {
	var others []string
	for _, other := range append([]*cobra.Command{root}, verbs(root)...) {
		if other != cmd {
			others = append(others, ".BR "+escape(pageName(other))+" (1)")
		}
	}
	others = append(others, ".BR flock (1)", ".BR timeout (1)")
	p.line("%s", strings.Join(others, " ,\n"))
}

// released returns the day that the pages bear: of SOURCE_DATE_EPOCH, with which packagers build
// reproducibly (https://reproducible-builds.org/specs/source-date-epoch/), or else of the commit that
// the program was built from; "" if the Go tool did not record it.
func released() string {
	if seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		return time.Unix(seconds, 0).UTC().Format(time.DateOnly)
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.time" {
				day, _, _ := strings.Cut(setting.Value, "T")
				return day
			}
		}
	}
	return ""
}

// escape returns text that roff prints unchanged.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
