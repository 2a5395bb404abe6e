package main_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
)

func TestServe_configFile(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	listen, health := testservers.FreeAddress(t), testservers.FreeAddress(t)
	file := m.write("stile.yaml", `
# A comment.
listen: `+listen+`
data: `+m.path("data")+`
health: `+health+`
insecure: false
name: a
peers:
  a: http://`+testservers.FreeAddress(t)+`
`, 0o600)
	s := m.serve("--config-file", file)
	if s.readyValue("url") != "etcd://"+listen || s.readyValue("health") != "http://"+health || s.readyValue("data") != m.path("data") {
		t.Errorf("the ready line does not have the values of the file: %s", s.log)
	}
	m.expectFree(s.readyValue("url"), "demo")
	s.kill()

	other := testservers.FreeAddress(t)
	s = m.serve("--listen", other, "--config-file", file)
	if s.readyValue("url") != "etcd://"+other {
		t.Errorf("--listen does not override the file: %s", s.log)
	}
}

// Other users must not read a password in the file, nor the server's key. A group may: a key in Debian
// belongs to the group ssl-cert.
func TestServe_warnsOfOpenSecrets(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	const withPassword, without = "url: etcd://ann:verysecret@127.0.0.1:1\n", "url: etcd://127.0.0.1:1\n"
	for name, c := range map[string]struct {
		config string
		mode   os.FileMode
		key    os.FileMode
		args   []string
		flags  []string // of which there are warnings
	}{
		"private":                 {withPassword, 0o600, 0o600, nil, nil},
		"readable by the group":   {withPassword, 0o640, 0o640, nil, nil},
		"config file":             {withPassword, 0o604, 0o640, nil, []string{"--config-file"}},
		"key":                     {withPassword, 0o640, 0o604, nil, []string{"--tls-key"}},
		"both":                    {withPassword, 0o644, 0o644, nil, []string{"--tls-key", "--config-file"}},
		"no password":             {without, 0o644, 0o640, nil, nil},
		"password in the command": {without, 0o644, 0o640, []string{"--url", "etcd://ann:verysecret@127.0.0.1:1"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := m.forSubtest(t)
			dir := t.TempDir()
			config, key := filepath.Join(dir, "stile.yaml"), filepath.Join(dir, "key.pem")
			for file, with := range map[string]struct {
				text string
				mode os.FileMode
			}{config: {c.config, c.mode}, key: {"no key", c.key}} {
				if err := os.WriteFile(file, []byte(with.text), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(file, with.mode); err != nil {
					t.Fatal(err)
				}
			}
			server := m.stile(append([]string{"serve", "--config-file", config, "--tls-cert", key, "--tls-key", key}, c.args...)...)
			log := server.stderr.String()
			for flag, file := range map[string]string{"--config-file": config, "--tls-key": key} {
				want := 0
				if slices.Contains(c.flags, flag) {
					want = 1
				}
				if got := strings.Count(log, "other users; chmod o= it\" flag="+flag+" file="+file); got != want {
					t.Errorf("%d warnings of %s, want %d: %s", got, flag, want, log)
				}
			}
			if strings.Contains(log, "verysecret") {
				t.Errorf("the log has the password: %s", log)
			}
		})
	}
}

func TestServe_invalidConfigFile(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.command("serve", "--config-file", m.path("missing")).spawn().expectExit(125, "--config-file", m.path("missing"), "no such file")
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"unknown key":         {"listn: 127.0.0.1:0", []string{`"listn"`, "the settings are", "listen", "tls-client-ca"}},
		"hidden flag":         {"background: /tmp", []string{`"background"`, "the settings are"}},
		"config-file":         {"config-file: x", []string{`"config-file"`, "the settings are"}},
		"duplicate key":       {"listen: 127.0.0.1:1\nlisten: 127.0.0.1:2", []string{"listen", "already"}},
		"no value":            {"listen:", []string{"listen", "no value"}},
		"number":              {"listen: 2379", []string{"listen", "2379", "quotation marks"}},
		"invalid value":       {"listen: here", []string{`"here"`, "--listen", "host:port"}},
		"invalid boolean":     {"insecure: perhaps", []string{"insecure", `"perhaps"`, "true or false"}},
		"invalid list":        {"peers: [a]", []string{"peers", `"a"`, "NAME=URL"}},
		"not a mapping":       {"- listen", []string{"listen: 127.0.0.1:2379"}},
		"not YAML":            {"listen: [", []string{"listen: 127.0.0.1:2379"}},
		"number in a mapping": {"peers: {a: 5}", []string{"peers", "5", "quotation marks"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := m.forSubtest(t)
			file := m.write(strings.ReplaceAll(name, " ", "-")+".yaml", c.text, 0o600)
			m.command("serve", "--data", m.path(strings.ReplaceAll(name, " ", "-")), "--config-file", file).spawn().
				expectExit(125, append(c.want, func() []string {
					if name == "invalid value" { // the same error as on the command line, without the file's name
						return nil
					}
					return []string{file}
				}()...)...)
		})
	}
}

// All keys of the example in examples/serve exist, including those that are commented out.
func TestServe_exampleConfigFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "serve", "stile.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	m.serve("--config-file", m.write("as-it-is.yaml", string(text), 0o600),
		"--listen", "127.0.0.1:0", "--socket", m.path("run", "s"), "--health", "127.0.0.1:0", "--data", m.path("data"))

	var all, seen []string
	for line := range strings.Lines(string(text)) {
		setting, commented := strings.CutPrefix(line, "#")
		if commented && strings.HasPrefix(setting, " ") && !strings.HasPrefix(setting, "  ") {
			continue // prose
		}
		if key, _, ok := strings.Cut(setting, ":"); ok && !strings.HasPrefix(key, " ") {
			if slices.Contains(seen, key) {
				continue // another suggestion for the same key
			}
			seen = append(seen, key)
		}
		all = append(all, setting)
	}
	// The server fails at the first file that does not exist. All keys are accepted by then.
	m.command("serve", "--config-file", m.write("all.yaml", strings.Join(all, ""), 0o600)).spawn().
		expectExit(125, "--root-password-file", "no such file")
}
