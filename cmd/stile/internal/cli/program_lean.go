//go:build lean

package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/cmd/stile/internal/local"
)

// This program was built without the server: half of the time in which stile starts would otherwise pass
// in the packages of the server's etcd. stiled, the same program with it, is beside this one.

// needsServer reports whether a command line is one for stiled: it starts a server, or describes its flags.
func needsServer(args []string) bool {
	about := []string{"help", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}
	if len(args) > 1 && slices.Contains(about, args[0]) {
		args = args[1:]
	}
	return len(args) > 0 && (args[0] == "serve" || args[0] == "man")
}

// runServer has stiled run a command line. It returns only if that fails.
func (s Stdio) runServer(args []string) int {
	program, err := local.Program()
	if err == nil {
		var code int
		if code, err = become(program, args); err == nil {
			return code
		}
	}
	s.sayError(err)
	return exitFailure
}

// newServe returns the verb as lists of verbs show it. See needsServer for its use.
func newServe(Stdio) *cobra.Command {
	return &cobra.Command{Use: "serve [flags]", SuggestFor: serveNames(), Short: serveShort, RunE: func(*cobra.Command, []string) error { panic("stiled runs it") }}
}
