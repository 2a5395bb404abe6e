package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	etcd "go.etcd.io/etcd/api/v3/version"
)

// versions is the output of the verb version.
type versions struct {
	Stile    string `json:"stile"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Etcd     string `json:"etcd"` // version of the embedded etcd

	// Store is the store used without --url, and the reason; Problem says why there is none.
	Store   string `json:"store,omitempty"`
	From    string `json:"store_from,omitempty"`
	Problem string `json:"store_error,omitempty"`
}

func ourVersions() versions {
	return versions{Stile: version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Etcd: etcd.Version}
}

func (v versions) String() string {
	return fmt.Sprintf("stile %s %s %s etcd %s", v.Stile, v.Go, v.Platform, v.Etcd)
}

func newVersion(stdio Stdio) *cobra.Command {
	output := formatText
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, and which store is used",
		Long: `Print the version of stile, of Go, of the platform it is for, and of the etcd in stile serve.

The second line is the store used without --url, and what names it. The store is not
contacted.`,
		Example: `  stile version
  stile version -o json | jq -r .etcd`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := ourVersions()
			chosen, err := chooseStore("")
			if err == nil {
				v.Store, v.From = chosen.shown(), chosen.from
			} else {
				v.Problem = err.Error()
			}
			switch {
			case output == formatJSON:
				return stdio.writeJSON(v)
			case err != nil:
				return stdio.write(fmt.Appendf(nil, "%v\nno store: %v\n", v, err))
			default:
				return stdio.write(fmt.Appendf(nil, "%v\nstore %v\n", v, chosen))
			}
		},
	}
	cmd.Flags().VarP(&output, "output", "o", "text, or json for programs")
	return cmd
}

// version returns the version of the module that the program was built from, as far as the Go tool
// recorded it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(unknown)"
}
