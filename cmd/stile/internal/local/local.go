// Package local finds the lock server of this user on this machine, the one behind local:, and starts it in the
// background if it does not run.
//
// What the server is known by is a directory, its home, in the user's state directory:
//
//	lock        locked, shared, by who looks for the server, and alone by who starts it and by the server when it ends
//	socket      a link to the unix socket the server listens on
//	pid         the process id of the server, which has the file locked for as long as it runs
//	server.log  what the server has said since it was started
//	data/       its data
//
// The socket itself is elsewhere, where a socket may be: in the runtime directory of whoever started the server. That
// is not the same for all: a login has one that a cron job has not. So it is always found by the link.
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
