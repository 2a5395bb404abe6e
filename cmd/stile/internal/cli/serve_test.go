//go:build !lean

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestServe_flagsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## `stile serve")
	section, _, _ = strings.Cut(section, "\n## ")
	serve := newServe(Stdio{})
	serve.Flags().VisitAll(func(flag *pflag.Flag) {
		documented := strings.Contains(section, "`--"+flag.Name+" ") || strings.Contains(section, "| `--"+flag.Name+"`")
		if documented == flag.Hidden {
			t.Errorf("--%s: hidden %v, in docs/cli.md %v", flag.Name, flag.Hidden, documented)
		}
	})
	for _, part := range []string{"--root-password-file", "--peers", "--config-file", "--socket"} {
		if !strings.Contains(serve.Example, part) {
			t.Errorf("the examples of stile serve --help do not show %s", part)
		}
	}
	for example := range strings.SplitSeq(serve.Example, "\n\n") {
		if strings.Contains(example, "--listen 0.0.0.0") && !strings.Contains(example, "--root-password-file") &&
			!strings.Contains(example, "--tls-client-ca") {
			t.Errorf("an example of stile serve --help would be refused:\n%s", example)
		}
	}
}

func TestPeers_roundTrip(t *testing.T) {
	t.Parallel()
	var p peers
	const written = "a=http://127.0.0.1:1,b=http://127.0.0.1:2"
	if err := p.Set(" b=http://127.0.0.1:2, a=http://127.0.0.1:1"); err != nil || p.String() != written {
		t.Errorf("%s, %v; want %s", &p, err, written)
	}
	for _, bad := range []string{"", "a", "a=", "=http://127.0.0.1:1", "a=http://127.0.0.1:1,", "a=http://127.0.0.1:1,a=http://127.0.0.1:2"} {
		if err := p.Set(bad); err == nil {
			t.Errorf("%q was taken as %s", bad, &p)
		}
	}
}
