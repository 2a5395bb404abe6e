package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	etcd "go.etcd.io/etcd/api/v3/version"
)

// versions is what the verb version tells.
type versions struct {
	Stile    string `json:"stile"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Etcd     string `json:"etcd"` // what stile serve is
}

func ourVersions() versions {
	return versions{version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, etcd.Version}
}

func (v versions) String() string {
	return fmt.Sprintf("stile %s %s %s etcd %s", v.Stile, v.Go, v.Platform, v.Etcd)
}

func newVersion(stdio Stdio) *cobra.Command {
	output := formatText
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long:  `Print the version of stile, of Go, of the platform it is for, and of the etcd in stile serve.`,
		Example: `  stile version
  stile version -o json | jq -r .etcd`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := ourVersions()
			if output == formatJSON {
				return stdio.writeJSON(v)
			}
			return stdio.write(fmt.Appendln(nil, v))
		},
	}
	cmd.Flags().VarP(&output, "output", "o", "text, or json for programs")
	return cmd
}

// version is that of the module this program was built from, as far as the Go tool knew it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(unknown)"
}
