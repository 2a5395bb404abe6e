package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"syscall"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/store"
)

// reader has what the verbs that read lines share.
type reader struct {
	stdio  Stdio
	url    string
	format format
}

func newReader(stdio Stdio) reader { return reader{stdio: stdio, format: formatText} }

func (r *reader) addFlags(flags *pflag.FlagSet) {
	addURL(flags, &r.url)
	flags.VarP(&r.format, "output", "o", "text, or json for programs")
}

// format is the value of --output.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
)

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	switch format(s) {
	case formatText, formatJSON:
		*f = format(s)
		return nil
	default:
		return errors.New("must be text or json")
	}
}

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "format" }

// nameArg accepts a lock name as the only argument: any name that stile ls prints.
func nameArg(name *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) (err error) {
		if len(args) == 0 || args[0] == "" {
			return fmt.Errorf("missing lock name: %s; see %s --help", cmd.UseLine(), cmd.CommandPath())
		}
		if err := atMost(1, cmd, args); err != nil {
			return err
		}
		*name, err = nameOf(args[0])
		return err
	}
}

// prefixArg accepts a prefix of names as the only argument; without one it means all names.
func prefixArg(prefix *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) (err error) {
		if err := atMost(1, cmd, args); err != nil || len(args) == 0 {
			return err
		}
		if *prefix, err = prefixOf(args[0]); err != nil {
			return err
		}
		return store.CheckPrefix(*prefix)
	}
}

// noArgs accepts no arguments.
func noArgs(cmd *cobra.Command, args []string) error { return atMost(0, cmd, args) }

func atMost(n int, cmd *cobra.Command, args []string) error {
	if len(args) > n {
		return fmt.Errorf("unexpected argument %q: %s; see %s --help", args[n], cmd.UseLine(), cmd.CommandPath())
	}
	return nil
}

// jsonLine is a line in JSON. Argument is set if the name must be given to stile in another form.
type jsonLine struct {
	stile.Line
	Argument string `json:"argument,omitempty"`
}

func asJSONLine(l stile.Line) jsonLine { return jsonLine{l, argumentFor(l.Name)} }

// argumentFor returns the argument for a name, or "" if it is the name itself.
func argumentFor(name string) string {
	if arg := asArgument(name); arg != name {
		return arg
	}
	return ""
}

// writeJSON writes v to stdout as indented JSON.
func (s Stdio) writeJSON(v any) error {
	b, err := asJSON(v, "  ")
	if err != nil {
		return err
	}
	return s.write(b)
}

// writeJSONLines writes lines as [Stdio.writeJSON] would write an array of them, a part at a time. If
// they end with an error, what was read before is written. The array stays open then, so that no program
// takes a part for the whole.
func writeJSONLines(lines iter.Seq2[stile.Line, error], write func([]byte) error) error {
	const part = 32 << 10
	var text []byte
	before, after := "[\n  ", "[]\n"
	for l, err := range lines {
		if err != nil {
			return cmp.Or(write(text), err)
		}
		b, err := asJSON(asJSONLine(l), "  ")
		if err != nil {
			return err
		}
		text = append(text, before...)
		text = append(text, bytes.ReplaceAll(bytes.TrimSpace(b), []byte("\n"), []byte("\n  "))...)
		if before, after = ",\n  ", "\n]\n"; len(text) >= part {
			if err := write(text); err != nil {
				return err
			}
			text = text[:0]
		}
	}
	return write(append(text, after...))
}

// write writes to stdout. If the reader is gone, it returns an exit without a text, with the exit
// code of a program ended by SIGPIPE: where SIGPIPE is not ignored, it ends this process anyway.
func (s Stdio) write(b []byte) error {
	_, err := s.Out.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		return errStdoutClosed
	}
	return err
}

var errStdoutClosed = &exit{Code: child.ExitCodeFor(syscall.SIGPIPE)}

// sayAtTerminal prints a line to stderr if a person reads it.
func (s Stdio) sayAtTerminal(text string) {
	if s.stderrIsTerminal() {
		s.say(text)
	}
}

// stderrIsTerminal reports whether stderr is a terminal.
func (s Stdio) stderrIsTerminal() bool { return term.IsTerminal(int(s.Err.Fd())) }

// asJSON returns v as JSON with a final newline, on one line if indent is empty. Characters that a
// terminal could interpret or not show are escaped.
func asJSON(v any, indent string) ([]byte, error) {
	var buf bytes.Buffer
	encoder := json.NewEncoder(&buf)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	var out []byte
	for _, r := range buf.String() {
		if r == '\n' || unicode.IsPrint(r) {
			out = append(out, string(r)...)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) { // outside of strings, JSON is printable ASCII
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	return out, nil
}
