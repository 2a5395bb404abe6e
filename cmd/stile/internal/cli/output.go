package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

// reader is what the verbs that read lines have in common.
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

// nameArg takes the name of a lock as the only argument. It may be any name that stile ls prints.
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

// prefixArg takes the beginning of names as the only argument, or none for all names.
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

// noArgs is for verbs that take none.
func noArgs(cmd *cobra.Command, args []string) error { return atMost(0, cmd, args) }

func atMost(n int, cmd *cobra.Command, args []string) error {
	if len(args) > n {
		return fmt.Errorf("unexpected argument %q: %s; see %s --help", args[n], cmd.UseLine(), cmd.CommandPath())
	}
	return nil
}

// jsonLine is a line as JSON. Where the name of the lock is not what to give to stile as an argument, that is there too.
type jsonLine struct {
	stile.Line
	Argument string `json:"argument,omitempty"`
}

func asJSONLine(l stile.Line) jsonLine { return jsonLine{l, argumentFor(l.Name)} }

// argumentFor returns the argument for a name, or nothing if that is the name itself.
func argumentFor(name string) string {
	if arg := asArgument(name); arg != name {
		return arg
	}
	return ""
}

// writeJSON writes v to stdout, over several lines.
func (s Stdio) writeJSON(v any) error {
	b, err := asJSON(v, "  ")
	if err != nil {
		return err
	}
	return s.write(b)
}

// write writes to stdout. If nobody reads there any more the error is an exit without words, with the code of a program
// that SIGPIPE ends: which is what ends us if we do not ignore it.
func (s Stdio) write(b []byte) error {
	_, err := s.Out.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		return errNoReader
	}
	return err
}

var errNoReader = &exit{Code: child.ExitCodeFor(syscall.SIGPIPE)}

// remark says on stderr what only a person wants to know.
func (s Stdio) remark(text string) {
	if s.hasReader() {
		s.say(text)
	}
}

// hasReader reports whether a person reads stderr.
func (s Stdio) hasReader() bool { return term.IsTerminal(int(s.Err.Fd())) }

// asJSON returns v as JSON with a newline at the end; in a single line if indent is empty. What a terminal may take for a
// command, or for nothing, is escaped.
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
		for _, unit := range utf16.Encode([]rune{r}) { // outside of strings JSON is ASCII, and all of it printable
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	return out, nil
}
