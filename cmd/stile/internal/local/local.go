// Package local finds the lock server of this user on this machine, the one behind local:, and starts it in the
// background if it does not run.
//
// The server belongs to a directory, its home, in the user's state directory:
//
//	lock         locked, shared, while a process looks for the server, and alone while one starts or ends it
//	socket       a link to the unix socket that the server listens on
//	server.sock  that socket
//	pid          the process id of the server, which keeps the file locked for as long as it runs
//	server.log   what the server has logged since it was started
//	data/        its data
//	said-…       what a person was told once
//
// The socket is elsewhere if the path of server.sock does not fit into the address of a unix socket, or if the file
// system has no sockets: then it is in a directory in /tmp with a random name, which nobody can occupy beforehand. An
// earlier version had it in $XDG_RUNTIME_DIR. So clients find it by the link, and nothing else.
package local

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
)

// URL stands for the server of this package where the URL of a store is asked for.
const URL = "local:"

// ErrNone means that no local server runs.
var ErrNone = errors.New("no local server runs")

// StateDir is where Stile keeps what belongs to the user on this machine: $XDG_STATE_HOME/stile, usually
// ~/.local/state/stile. It need not be there.
func StateDir() (string, error) {
	if runtime.GOOS == "windows" {
		dir, err := os.UserCacheDir() // %LocalAppData%
		return filepath.Join(dir, "stile"), err
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "stile"), nil
	}
	home := os.Getenv("HOME")
	if home == "" { // services have none in their environment
		u, err := user.Current()
		if err != nil {
			return "", fmt.Errorf("no place to keep data: HOME is not set, and %w; set HOME or XDG_STATE_HOME", err)
		}
		home = u.HomeDir
	}
	if !filepath.IsAbs(home) {
		return "", errors.New("no place to keep data: the home directory is unknown; set HOME or XDG_STATE_HOME")
	}
	return filepath.Join(home, ".local", "state", "stile"), nil
}

// Home is the directory of a local server.
type Home string

// DefaultHome is the home of the server behind local:.
func DefaultHome() (Home, error) {
	dir, err := StateDir()
	return Home(filepath.Join(dir, "local")), err
}

// Data is the server's data directory.
func (h Home) Data() string { return filepath.Join(string(h), "data") }

func (h Home) lock() string { return filepath.Join(string(h), "lock") }
func (h Home) link() string { return filepath.Join(string(h), "socket") }
func (h Home) pid() string  { return filepath.Join(string(h), "pid") }
func (h Home) log() string  { return filepath.Join(string(h), "server.log") }

// elsewhere ends the error of somebody for whom there is no local server.
const elsewhere = "; or name a store with --url or STILE_URL"

// Once reports whether it is the first time that this is called with this key, in any process. It returns false if that
// cannot be remembered.
func (h Home) Once(key string) bool {
	f, err := os.OpenFile(h.once(key), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

// WasOnce reports whether Once has been called with this key.
func (h Home) WasOnce(key string) bool {
	_, err := os.Lstat(h.once(key))
	return err == nil
}

func (h Home) once(key string) string { return filepath.Join(string(h), "said-"+key) }
