package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/stilelock/stile/cmd/stile/internal/local"
	"github.com/stilelock/stile/storeurl"
)

// A choice is the store to use, and the reason.
type choice struct {
	url  string
	from string // flag, variable or file that names the store; "" for the default, local:
	// deniedSocket is the socket of the machine's server if this user may not connect to it.
	deniedSocket string
}

// sharedPaths are where an administrator names the store for all users of a machine.
type sharedPaths struct {
	config string // file with the URL
	socket string // socket of the server
	owner  int    // user who must own them: root, except in tests
}

var shared = sharedPaths{config: "/etc/stile/config", socket: "/run/stile/stile.sock"}

// chooseStore returns the store to use for the given value of --url.
func chooseStore(flag string) (choice, error) { return shared.choose(flag) }

func (p sharedPaths) choose(flag string) (choice, error) {
	if flag != "" {
		return choice{url: flag, from: "--url"}, nil
	}
	if url := os.Getenv(urlVar); url != "" {
		return choice{url: url, from: urlVar}, nil
	}
	switch url, err := p.readConfig(); {
	case err == nil:
		return choice{url: url, from: p.config}, nil
	case !errors.Is(err, fs.ErrNotExist):
		return choice{}, fmt.Errorf("%s: %w; or name a store with --url or %s", p.config, err, urlVar)
	}
	switch err := p.checkSocket(); {
	case err == nil:
		return choice{url: socketURL(p.socket), from: p.socket}, nil
	case errors.Is(err, fs.ErrPermission):
		return choice{url: local.URL, deniedSocket: p.socket}, nil
	case !errors.Is(err, fs.ErrNotExist):
		return choice{}, fmt.Errorf("the lock server of this machine: %w; or name a store with --url or %s", err, urlVar)
	}
	return choice{url: local.URL}, nil
}

// readConfig returns the URL in the file for all users. If there is no file, the error matches
// fs.ErrNotExist.
func (p sharedPaths) readConfig() (string, error) {
	f, err := os.Open(p.config)
	if err != nil {
		return "", withoutPath(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", withoutPath(err)
	}
	if err := p.checkOwner(info, "it"); err != nil {
		return "", err
	}
	if err := p.checkDir(filepath.Dir(p.config)); err != nil {
		return "", err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return "", withoutPath(err)
	}
	// The parser's errors may quote the text, which may contain a password.
	settings := map[string]any{}
	if err := yaml.UnmarshalStrict(text, &settings); err != nil {
		return "", errors.New(`it must have one line, like "url: etcd://db1:2379"`)
	}
	for name := range settings {
		if name != "url" {
			return "", fmt.Errorf("unknown setting %q; there is only url", name)
		}
	}
	url, ok := settings["url"].(string)
	if !ok || url == "" {
		return "", errors.New(`the setting url is missing or not text; want a line like "url: etcd://db1:2379"`)
	}
	return url, nil
}

// checkSocket checks that the machine has a server for all users and that this user may connect to
// it. If there is no server, the error matches fs.ErrNotExist; if only other users may connect, it
// matches fs.ErrPermission. The server counts as present while its directory exists, so that nobody
// uses another store while it restarts.
func (p sharedPaths) checkSocket() error {
	dir := filepath.Dir(p.socket)
	info, err := os.Lstat(dir)
	if err != nil {
		return withoutPath(err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s can be written to by other users, so that anybody may listen there; chmod go-w it", dir)
	}
	if err := p.checkDir(filepath.Dir(dir)); err != nil { // then root has chosen the owner of dir
		return err
	}
	switch err := mayConnect(p.socket); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("it does not run: there is no %s; start it (systemctl start stile), or remove %s if there is to be "+
			"no server", p.socket, dir)
	case err != nil:
		return err
	}
	return nil
}

func (p sharedPaths) checkDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return withoutPath(err)
	}
	return p.checkOwner(info, dir)
}

// checkOwner checks that only root can change the named file or directory.
func (p sharedPaths) checkOwner(info fs.FileInfo, name string) error {
	switch {
	case ownerOf(info) != p.owner:
		return fmt.Errorf("%s does not belong to root, and is not used; chown root it", name)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written to by other users, and is not used; chmod go-w it", name)
	}
	return nil
}

// withoutPath returns the reason in a file system error, without the path.
func withoutPath(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// isNamedForAll reports whether a file of the machine names the store.
func (c choice) isNamedForAll() bool { return strings.HasPrefix(c.from, "/") }

// explain adds to an error of opening the store where its URL comes from, unless the user has given
// it.
func (c choice) explain(err error) error {
	if c.isNamedForAll() || c.from == urlVar {
		return fmt.Errorf("%w (the store is named by %s)", err, c.from)
	}
	return err
}

// String names the store, without a password, and the reason for the choice.
func (c choice) String() string {
	why := "because nothing names another"
	if c.from != "" {
		why = "named by " + c.from
	}
	return fmt.Sprintf("%s (%s)", c.shown(), why)
}

// shown returns the URL without secrets.
func (c choice) shown() string {
	return storeurl.Redact(c.url)
}

// forCommand returns STILE_URL for a command under a lock. It contains no password that is not
// already in the environment. It is "" if stile finds the store and its password without the
// variable.
func (c choice) forCommand() string {
	switch shown := c.shown(); {
	case c.from == urlVar:
		return c.url
	case c.isNamedForAll() && shown != c.url:
		return ""
	default:
		return strings.Replace(shown, ":***@", "@", 1) // keeps the user
	}
}

// warnings returns what is wrong with the way the store is named.
func (c choice) warnings() []string {
	if !c.isNamedForAll() || c.shown() == c.url {
		return nil
	}
	if !isOpenToOthers(c.from) {
		return nil
	}
	return []string{fmt.Sprintf("every user can read the password in %s; name a password_file in its URL, or chmod o= it", c.from)}
}

// isOpenToOthers reports whether users who are neither the owner of a file nor in its group can read, write
// or execute it. A group may be meant to read a secret, as ssl-cert in Debian. On Windows the mode of a file
// does not show who can read it.
func isOpenToOthers(file string) bool {
	info, err := os.Stat(file)
	return err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o007 != 0
}

// noticeOnce tells a person, once, that this machine has a server for other users. For a user who
// falls back to local:, a lock is not the same as theirs.
func (s Stdio) noticeOnce(c choice) {
	if c.from != "" || !s.stderrIsTerminal() {
		return
	}
	dir, err := local.DefaultServerDir()
	if err != nil {
		return
	}
	const apart = "you use a server of your own: the two do not exclude each other"
	switch {
	case c.deniedSocket != "":
		if dir.MarkShown("machine") {
			s.say(fmt.Sprintf("there is a lock server for this machine, but you may not connect to %s (are you in its group?), "+
				"and %s", c.deniedSocket, apart))
		}
	case !dir.WasShown("neighbor"):
		if user := dir.Neighbor(); user != "" && dir.MarkShown("neighbor") {
			s.say(fmt.Sprintf("%s uses a local lock server on this machine too, and %s; "+
				"to share one, see examples/serve/README.md, several users", user, apart))
		}
	}
}
