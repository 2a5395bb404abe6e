// Package local finds this user's lock server on this machine, the one behind local:, and starts it
// in the background if it does not run.
//
// The server has a directory of its own in the user's state directory:
//
//	lock         locked shared while a process looks for the server, and exclusively while one
//	             starts or stops it
//	socket       a link to the unix socket that the server listens on
//	server.sock  that socket; beside it, with the suffix .tether, the one of package tether
//	pid          the server's process id; the server keeps the file locked as long as it runs
//	server.log   the server's log since its start
//	data/        its data
//	said-…       marks a notice that was shown once
//
// The socket is elsewhere if the path of server.sock is too long for a unix socket, or if the file
// system does not support sockets. It is then in a directory in /tmp with a random name, which
// nobody can occupy beforehand. An earlier version had it in $XDG_RUNTIME_DIR. Clients therefore
// find the socket only through the link.
package local

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
)

// URL selects the server of this package in place of a store's URL.
const URL = "local:"

// ErrNone means that no local server runs.
var ErrNone = errors.New("no local server runs")

// StateDir returns the directory for Stile's files of this user on this machine:
// $XDG_STATE_HOME/stile, usually ~/.local/state/stile. It may not exist.
func StateDir() (string, error) {
	if runtime.GOOS == "windows" {
		dir, err := os.UserCacheDir() // %LocalAppData%
		return filepath.Join(dir, "stile"), err
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "stile"), nil
	}
	home := os.Getenv("HOME")
	if home == "" { // as in the environment of a service
		u, err := user.Current()
		if err != nil {
			return "", fmt.Errorf("no state directory: HOME is not set, and %w; set HOME or XDG_STATE_HOME", err)
		}
		home = u.HomeDir
	}
	if !filepath.IsAbs(home) {
		return "", errors.New("no state directory: the home directory is unknown; set HOME or XDG_STATE_HOME")
	}
	return filepath.Join(home, ".local", "state", "stile"), nil
}

// ServerDir is the directory of a local server.
type ServerDir string

// DefaultServerDir returns the directory of the server behind local:.
func DefaultServerDir() (ServerDir, error) {
	dir, err := StateDir()
	return ServerDir(filepath.Join(dir, "local")), err
}

// Data returns the server's data directory.
func (d ServerDir) Data() string { return filepath.Join(string(d), "data") }

func (d ServerDir) lock() string { return filepath.Join(string(d), "lock") }
func (d ServerDir) link() string { return filepath.Join(string(d), "socket") }
func (d ServerDir) pid() string  { return filepath.Join(string(d), "pid") }
func (d ServerDir) log() string  { return filepath.Join(string(d), "server.log") }

// otherStore ends the errors of a local server that cannot be used.
const otherStore = "; or name a store with --url or STILE_URL"

// MarkShown reports whether it is called with this key for the first time by any process. It returns
// false if it cannot record the call.
func (d ServerDir) MarkShown(key string) bool {
	f, err := os.OpenFile(d.once(key), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

// WasShown reports whether MarkShown was called with this key.
func (d ServerDir) WasShown(key string) bool {
	_, err := os.Lstat(d.once(key))
	return err == nil
}

func (d ServerDir) once(key string) string { return filepath.Join(string(d), "said-"+key) }
