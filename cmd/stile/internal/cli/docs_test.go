package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// docs/cli.md has each flag of these verbs in the verb's section, and the exit codes of its help.
func TestVerbs_areDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*cobra.Command{
		newRun(Stdio{}), newElect(Stdio{}), newOnce(Stdio{}), newAssert(Stdio{}), newHold(Stdio{}), newSlots(Stdio{}), newBreak(Stdio{}),
		newGraph(Stdio{}), newTop(Stdio{}), newTrace(Stdio{}), newDoctor(Stdio{}),
	} {
		_, section, found := strings.Cut(string(text), "\n## `stile "+cmd.Name()+" ")
		if !found {
			t.Errorf("%s has no section", cmd.Name())
		}
		section, _, _ = strings.Cut(section, "\n## ")
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			name := "[` ]--" + f.Name + `\b`
			if f.Shorthand != "" {
				name += "|`-" + f.Shorthand + `\b`
			}
			// Verbs that read the store share a remark about these.
			if common := slices.Contains([]string{"url", "output"}, f.Name); !f.Hidden && !common && !regexp.MustCompile(name).MatchString(section) {
				t.Errorf("%s: --%s is not documented", cmd.Name(), f.Name)
			}
		})
		if got, want := exitCodes(section, `(?m)^\| ([^|]*) \|`), exitCodes(cmd.Long, `(?m)^  (\d[\d+N]*)  `); !slices.Equal(got, want) {
			t.Errorf("%s: got the exit codes %v in docs/cli.md, want those of the help, %v", cmd.Name(), got, want)
		}
	}
}

// exitCodes returns the exit codes in the places of a text that an expression finds.
func exitCodes(text, places string) (codes []string) {
	for _, found := range regexp.MustCompile(places).FindAllStringSubmatch(text, -1) {
		for code := range strings.SplitSeq(found[1], ", ") {
			if regexp.MustCompile(`^\d+(\+N)?$`).MatchString(code) {
				codes = append(codes, code)
			}
		}
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}
