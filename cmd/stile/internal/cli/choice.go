package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/stilelock/stile/cmd/stile/internal/local"
	"github.com/stilelock/stile/storeurl"
)

// A choice is the store to use, and why.
type choice struct {
	url  string
	from string // what names it: the flag, the variable or a file; empty if nothing does, and it is local:
	// barred is the socket of this machine's server, if there is one and this user may not connect to it.
	barred string
}

// sharedPlaces is where an administrator names the store of all users of a machine.
type sharedPlaces struct {
	config string // a file with the URL
	socket string // of the server
	owner  int    // the user who must own them: root, but for tests
}

var shared = sharedPlaces{config: "/etc/stile/config", socket: "/run/stile/stile.sock"}

// chooseStore returns the store to use when the flag --url is as given.
func chooseStore(flag string) (choice, error) { return shared.choose(flag) }

func (p sharedPlaces) choose(flag string) (choice, error) {
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
		return choice{url: local.URL, barred: p.socket}, nil
	case !errors.Is(err, fs.ErrNotExist):
		return choice{}, fmt.Errorf("the lock server of this machine: %w; or name a store with --url or %s", err, urlVar)
	}
	return choice{url: local.URL}, nil
}

// readConfig returns the URL in the file for all users. If there is no file the error matches fs.ErrNotExist.
func (p sharedPlaces) readConfig() (string, error) {
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
	// Errors of the parser may repeat a part of the text, and that may be a password.
	settings := map[string]any{}
	if err := yaml.UnmarshalStrict(text, &settings); err != nil {
		return "", errors.New(`it should have one line, like "url: etcd://db1:2379", and has something else`)
	}
	for name := range settings {
		if name != "url" {
			return "", fmt.Errorf("unknown setting %q; there is only url", name)
		}
	}
	url, ok := settings["url"].(string)
	if !ok || url == "" {
		return "", errors.New(`the setting url is missing or no text; want a line like "url: etcd://db1:2379"`)
	}
	return url, nil
}

// checkSocket checks that the machine has a server for all users, and that this one may connect to it. If there is none the
// error matches fs.ErrNotExist, and if another user may connect, but not this one, fs.ErrPermission. As long as the
// directory is there the server is chosen: while it is started again, nobody may begin to lock elsewhere.
func (p sharedPlaces) checkSocket() error {
	dir := filepath.Dir(p.socket)
	info, err := os.Lstat(dir)
	if err != nil {
		return withoutPath(err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s should be a directory and is not", dir)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s can be written to by other users, so that anybody may listen there; chmod go-w it", dir)
	}
	if err := p.checkDir(filepath.Dir(dir)); err != nil { // then the owner of dir was chosen by root
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

func (p sharedPlaces) checkDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return withoutPath(err)
	}
	return p.checkOwner(info, dir)
}

// checkOwner checks that only root can change a file or a directory, called name.
func (p sharedPlaces) checkOwner(info fs.FileInfo, name string) error {
	switch {
	case ownerOf(info) != p.owner:
		return fmt.Errorf("%s does not belong to root, and is not used; chown root it", name)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written to by other users, and is not used; chmod go-w it", name)
	}
	return nil
}

// withoutPath returns the reason in an error of the file system.
func withoutPath(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// isNamedForAll reports whether a file of the machine names the store, and not this user.
func (c choice) isNamedForAll() bool { return strings.HasPrefix(c.from, "/") }

// explain says in an error of opening the store where its URL comes from, if the user has not given it.
func (c choice) explain(err error) error {
	if c.isNamedForAll() || c.from == urlVar {
		return fmt.Errorf("%w (the store is named by %s)", err, c.from)
	}
	return err
}

// String names the store without a password, and why it is used.
func (c choice) String() string {
	why := "because nothing names another"
	if c.from != "" {
		why = "named by " + c.from
	}
	return fmt.Sprintf("%s (%s)", c.shown(), why)
}

// shown is the URL as it can be shown to people.
func (c choice) shown() string {
	if strings.HasPrefix(c.url, local.URL) {
		return c.url
	}
	return storeurl.Redact(c.url)
}

// forCommand is the value of STILE_URL for a command under a lock. It has no password that is not in the environment
// already; it is empty if stile finds the store, with its password, without the variable.
func (c choice) forCommand() string {
	switch shown := c.shown(); {
	case c.from == urlVar:
		return c.url
	case c.isNamedForAll() && shown != c.url:
		return ""
	default:
		return strings.Replace(shown, ":***@", "@", 1) // the user stays
	}
}

// warnings says what is wrong with how the store is named.
func (c choice) warnings() []string {
	if !c.isNamedForAll() || c.shown() == c.url {
		return nil
	}
	if info, err := os.Stat(c.from); err != nil || info.Mode().Perm()&0o004 == 0 {
		return nil
	}
	return []string{fmt.Sprintf("every user can read the password in %s; name a password_file in its URL, or chmod o= it", c.from)}
}

// remarkOnce tells a person, once, that others of this machine use another server. For who falls back to local: a lock is
// not what the same lock is for them.
func (s Stdio) remarkOnce(c choice) {
	if c.from != "" || !s.hasReader() {
		return
	}
	home, err := local.DefaultHome()
	if err != nil {
		return
	}
	const apart = "you use a server of your own: the two do not exclude each other"
	switch {
	case c.barred != "":
		if home.Once("machine") {
			s.say(fmt.Sprintf("there is a lock server for this machine, but you may not connect to %s (are you in its group?), "+
				"and %s", c.barred, apart))
		}
	case !home.WasOnce("neighbor"):
		if user := home.Neighbor(); user != "" && home.Once("neighbor") {
			s.say(fmt.Sprintf("%s uses a local lock server on this machine too, and %s; "+
				"to share one, see docs/cli.md, several users", user, apart))
		}
	}
}
