//go:build unix

package cli

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stilelock/stile/cmd/stile/internal/local"
)

// newPlaces returns places of a machine where nothing is yet, but for the directories above; they belong to this user
// instead of root.
func newPlaces(t *testing.T) sharedPaths {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "st") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, name := range []string{"etc", "etc/stile", "run"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return sharedPaths{
		config: filepath.Join(dir, "etc/stile/config"), socket: filepath.Join(dir, "run/stile/stile.sock"), owner: os.Getuid(),
	}
}

func (p sharedPaths) write(t *testing.T, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(p.config, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(p.config, mode); err != nil { // whatever the umask is
		t.Fatal(err)
	}
}

// listen makes the server's directory and socket.
func (p sharedPaths) listen(t *testing.T, mode os.FileMode) {
	t.Helper()
	dir := filepath.Dir(p.socket)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

func (p sharedPaths) wants(t *testing.T, flag, url, from string) {
	t.Helper()
	got, err := p.choose(flag)
	if err != nil || got != (choice{url: url, from: from}) {
		t.Errorf("got %+v, %v; want %s, named by %q", got, err, url, from)
	}
}

func TestChoice_precedence(t *testing.T) {
	t.Setenv(urlVar, "")
	p := newPlaces(t)
	p.wants(t, "", local.URL, "")
	p.listen(t, 0o755)
	p.wants(t, "", "etcd+unix://"+p.socket, p.socket)
	p.write(t, "# for all users\nurl: redis://h\n", 0o644)
	p.wants(t, "", "redis://h", p.config)
	t.Setenv(urlVar, "zk://h")
	p.wants(t, "", "zk://h", urlVar)
	p.wants(t, "etcd://h", "etcd://h", "--url")
	p.write(t, "not understood", 0o666) // and not looked at
	p.wants(t, "etcd://h", "etcd://h", "--url")
}

func TestChoice_unusedMachineStore(t *testing.T) {
	t.Setenv(urlVar, "")
	const secret = "hunter2"
	config := func(text string, mode os.FileMode) func(*testing.T, sharedPaths) {
		return func(t *testing.T, p sharedPaths) { p.write(t, text, mode) }
	}
	chmod := func(mode os.FileMode, path func(p sharedPaths) string) func(*testing.T, sharedPaths) {
		return func(t *testing.T, p sharedPaths) {
			if p.listen(t, 0o755); strings.HasSuffix(path(p), "etc/stile") {
				p.write(t, "url: etcd://h", 0o644)
			}
			if err := os.Chmod(path(p), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		prepare func(*testing.T, sharedPaths)
		want    string
	}{
		"others can write to the file":     {config("url: etcd://h", 0o646), "it can be written to by other users"},
		"a group can write to the file":    {config("url: etcd://h", 0o664), "it can be written to by other users"},
		"unknown setting":                  {config("ur1: etcd://h", 0o644), `unknown setting "ur1"; there is only url`},
		"another setting":                  {config("url: etcd://h\nttl: 5", 0o644), `unknown setting "ttl"`},
		"empty":                            {config("", 0o644), "the setting url is missing"},
		"no text":                          {config("url: 5", 0o644), "the setting url is missing or not text"},
		"twice":                            {config("url: etcd://h\nurl: etcd://h", 0o644), "it must have one line"},
		"no YAML":                          {config("etcd://ann:"+secret+"@h: - :", 0o644), "one line"},
		"no mapping":                       {config("etcd://ann:"+secret+"@h", 0o644), "one line"},
		"others can replace the file":      {chmod(0o777, func(p sharedPaths) string { return filepath.Dir(p.config) }), "can be written to by other users"},
		"others can replace the socket":    {chmod(0o777, func(p sharedPaths) string { return filepath.Dir(p.socket) }), "anybody may listen there"},
		"a group can replace the socket":   {chmod(0o770, func(p sharedPaths) string { return filepath.Dir(p.socket) }), "anybody may listen there"},
		"others can replace its directory": {chmod(0o777, func(p sharedPaths) string { return filepath.Dir(filepath.Dir(p.socket)) }), "can be written to by other users"},
		"a directory in place of the file": {func(t *testing.T, p sharedPaths) { mkdir(t, p.config) }, "is a directory"},
		"a file in place of the directory": {func(t *testing.T, p sharedPaths) { touch(t, filepath.Dir(p.socket)) }, "is not a directory"},
		"the server does not run just now": {func(t *testing.T, p sharedPaths) { mkdir(t, filepath.Dir(p.socket)) }, "it does not run"},
		"the server's directory is a link": {func(t *testing.T, p sharedPaths) { symlink(t, "/", filepath.Dir(p.socket)) }, "is not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlaces(t)
			c.prepare(t, p)
			got, err := p.choose("")
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "--url") {
				t.Fatalf("got %+v, %v; want an error with %q and --url", got, err, c.want)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
	t.Run("another user's", func(t *testing.T) {
		p := newPlaces(t)
		p.write(t, "url: etcd://h", 0o644)
		p.owner++
		if got, err := p.choose(""); err == nil || !strings.Contains(err.Error(), "does not belong to root") {
			t.Errorf("the file: got %+v, %v", got, err)
		}
		p = newPlaces(t)
		p.listen(t, 0o755)
		p.owner++
		if got, err := p.choose(""); err == nil || !strings.Contains(err.Error(), "does not belong to root") {
			t.Errorf("the directory of the socket: got %+v, %v", got, err)
		}
	})
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func TestChoice_passwordInMachineFile(t *testing.T) {
	t.Setenv(urlVar, "")
	const url = "etcd://ann:hunter2@h"
	for _, c := range []struct {
		mode os.FileMode
		want string
	}{
		{0o644, "every user can read the password"},
		{0o640, ""},
	} {
		p := newPlaces(t)
		p.write(t, "url: "+url, c.mode)
		chosen, err := p.choose("")
		if err != nil || chosen.url != url {
			t.Fatalf("got %+v, %v", chosen, err)
		}
		if got := strings.Join(chosen.warnings(), ""); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("mode %v: warned %q, want %q", c.mode, got, c.want)
		}
		if got := chosen.String(); strings.Contains(got, "hunter2") || !strings.Contains(got, p.config) {
			t.Errorf("shown as %s", got)
		}
		if got := chosen.forCommand(); got != "" {
			t.Errorf("the command gets %q, and would use it in place of the file", got)
		}
	}
}

func TestChoice_forCommand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		choice choice
		want   string
	}{
		{choice{url: local.URL}, local.URL},
		{choice{url: "etcd://h", from: "--url"}, "etcd://h"},
		{choice{url: "etcd://ann:pw@h", from: urlVar}, "etcd://ann:pw@h"}, // it has it already
		{choice{url: "etcd://h", from: "/etc/stile/config"}, "etcd://h"},
		{choice{url: "etcd+unix:///run/stile/stile.sock", from: "/run/stile/stile.sock"}, "etcd+unix:///run/stile/stile.sock"},
	} {
		if got := c.choice.forCommand(); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.choice, got, c.want)
		}
	}
}
