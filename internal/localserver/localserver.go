// Package localserver finds this user's lock server on this machine, the one behind local:. Only the
// stile command starts that server; this package is what the command and other programs have in
// common.
//
// The server has a directory of its own in the user's state directory:
//
//	lock         locked shared while a process looks for the server, and exclusively while one
//	             starts or stops it
//	socket       a link to the unix socket that the server listens on
//	server.sock  that socket; beside it, with the suffix .tether, the one of package tether of the
//	             command
//	pid          the server's process id; the server keeps the file locked as long as it runs
//	server.log   the server's log since its start
//	data/        its data
//	said-…       marks a notice that was shown once
//
// The socket is elsewhere if the path of server.sock is too long for a unix socket, or if the file
// system does not support sockets. It is then in a directory in /tmp with a random name, which
// nobody can occupy beforehand. An earlier version had it in $XDG_RUNTIME_DIR. Clients therefore
// find the socket only through the link.
package localserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/stilelock/stile/internal/filelock"
)

// ErrNone means that no local server runs.
var ErrNone = errors.New("no local server runs")

// MoveDir is the advice for a directory that cannot be used.
const MoveDir = "set HOME or XDG_STATE_HOME to a writable directory"

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

// MakeDir creates a directory in the state directory if it does not exist, for this user only, and
// checks its path as [CheckPath] does.
func MakeDir(dir string) error {
	if err := CheckPath(dir); err != nil { // first, so that nothing is created in the home of another user
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return SetupError(err)
	}
	return CheckPath(dir) // in /tmp another user may have created a part of it meanwhile
}

// Dir is the directory of a local server.
type Dir string

// DefaultDir returns the directory of the server behind local:. It may not exist.
func DefaultDir() (Dir, error) {
	dir, err := StateDir()
	return Dir(filepath.Join(dir, "local")), err
}

// LockFile returns the path of the lock.
func (d Dir) LockFile() string { return filepath.Join(string(d), "lock") }

// Link returns the path of the link to the socket.
func (d Dir) Link() string { return filepath.Join(string(d), "socket") }

// PIDFile returns the path of the file with the server's process id.
func (d Dir) PIDFile() string { return filepath.Join(string(d), "pid") }

// LogFile returns the path of the server's log.
func (d Dir) LogFile() string { return filepath.Join(string(d), "server.log") }

// PID returns the process id of the server, or of the last one if none runs; "unknown" if it cannot
// be read.
func (d Dir) PID() string {
	pid, err := os.ReadFile(d.PIDFile())
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(pid))
}

// HasEnded reports whether no server has the pid file locked. A running server has, even if it
// cannot be reached.
func (d Dir) HasEnded() bool {
	lock, err := filelock.Try(d.PIDFile(), filelock.Shared)
	if err != nil {
		return false
	}
	lock.Unlock()
	return true
}

// UnresponsiveErr returns the error for a server that accepted a connection in Find and has not
// answered since: it is stopped or broken.
func (d Dir) UnresponsiveErr() error {
	pid := d.PID()
	return fmt.Errorf("the local server (pid %s) runs but does not answer: resume it (kill -CONT %s), or kill it "+
		"(kill -9 %s) and retry; no locks are lost", pid, pid, pid)
}
