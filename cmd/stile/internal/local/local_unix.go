//go:build unix

package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/cmd/stile/internal/filelock"
)

// patience is how long a server may take to start. It takes a tenth of a second, and a hundred times that on a machine with
// too much to do. A server that starts later than that is found by the next command.
const patience = 30 * time.Second

// Ensure returns the URL of the server, as package storeurl understands it. If none runs it starts one, and tells. When
// Ensure returns, a server has taken a connection, or said that it is ready; if ctx ends first one may be on its way.
func (h Home) Ensure(ctx context.Context) (storeURL string, started bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := privateDir(string(h), moveHome); err != nil {
		return "", false, err
	}
	socket, err := h.find(ctx)
	if errors.Is(err, ErrNone) {
		started = true
		socket, err = h.start(ctx)
	}
	return urlOf(socket), started, err
}

// Find returns the URL of the server. If none runs it starts none, and the error matches [ErrNone].
func (h Home) Find(ctx context.Context) (storeURL string, err error) {
	switch err := checkPrivate(string(h), moveHome); {
	case errors.Is(err, fs.ErrNotExist):
		return "", ErrNone
	case err != nil:
		return "", err
	}
	socket, err := h.find(ctx)
	return urlOf(socket), err
}

// Keep starts the server again when it has ended, until ctx ends. What is held or waited for would be lost with it, and
// it ends with the service or the login that has started it if the system ends all that such a one leaves behind. It looks
// every second, and less often after starts that have failed: there may be many who keep the server.
func (h Home) Keep(ctx context.Context) {
	const often, seldom = time.Second, 10 * time.Second
	for pause := often; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if !h.hasEnded() {
			pause = often
			continue
		}
		pause = min(2*pause, seldom)
		if _, _, err := h.Ensure(ctx); err == nil { // otherwise who uses the server hears from the store that it is not there
			pause = often
		}
	}
}

// hasEnded reports whether no server has the file with its process id locked. One that runs has, even if nobody can reach it.
func (h Home) hasEnded() bool {
	lock, err := filelock.Try(h.pid(), filelock.Shared)
	if err != nil {
		return false
	}
	lock.Unlock()
	return true
}

func urlOf(socket string) string { return "etcd+unix://" + (&url.URL{Path: socket}).EscapedPath() }

// Silent is the error for a server that Ensure has found, and that has answered nothing since: it was stopped, or
// something is wrong with it.
func (h Home) Silent() error {
	pid := h.PID()
	return fmt.Errorf("the local server (pid %s) runs but does not answer: let it go on with kill -CONT %s, "+
		"or end it with kill -9 %s and run this again; its locks stay%s", pid, pid, pid, elsewhere)
}

// PID is the process id of the server that runs, or was the last to run; "unknown" if it cannot be read.
func (h Home) PID() string {
	pid, err := os.ReadFile(h.pid())
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(pid))
}

// find returns the socket of a server that runs, or ErrNone.
func (h Home) find(ctx context.Context) (string, error) {
	lock, err := h.locked(ctx, filelock.Shared)
	if err != nil {
		return "", err
	}
	defer lock.Unlock()
	return h.look(ctx)
}

// look is for who has the lock. It leaves its time on the lock, which a server that is about to end for idleness looks
// at: so one that has answered stays for as long as it stays idle, and can be relied on after the lock is let go.
func (h Home) look(ctx context.Context) (string, error) {
	socket, err := os.Readlink(h.link())
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EINVAL): // EINVAL: it is no link
		return "", ErrNone
	case err != nil:
		return "", err
	}
	// Then whoever listens there is the server of another home: this one is a copy of that, or has the same path in another
	// container.
	if h.hasEnded() {
		return "", ErrNone
	}
	// In /tmp everybody can put a socket where ours was before a reboot.
	switch err := checkPrivate(filepath.Dir(socket), moveSocket); {
	case errors.Is(err, fs.ErrNotExist):
		return "", ErrNone
	case err != nil:
		return "", err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
		conn.Close()
		now := time.Now()
		return socket, os.Chtimes(h.lock(), now, now)
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return "", ErrNone
	case errors.Is(err, unix.EAGAIN): // it takes no connections, and too many wait for that
		return "", h.Silent()
	default:
		return "", fmt.Errorf("reach the local server: %w%s", err, elsewhere)
	}
}

// start starts a server, unless somebody else has done so meanwhile.
func (h Home) start(ctx context.Context) (string, error) {
	lock, err := h.locked(ctx, filelock.Exclusive)
	if err != nil {
		return "", err
	}
	defer lock.Unlock()
	if socket, err := h.look(ctx); !errors.Is(err, ErrNone) {
		return socket, err
	}
	socket := h.socket()
	if err := checkSocket(socket); err != nil {
		return "", err
	}
	if err := privateDir(filepath.Dir(socket), moveSocket); err != nil {
		return "", err
	}
	if err := h.setLink(socket); err != nil {
		return "", noPlace(err, moveHome)
	}
	if err := h.launch(ctx, socket); err != nil {
		// Another may have been faster, which was on its way when whoever had started it was stopped.
		if found, e := h.look(ctx); e == nil {
			return found, nil
		}
		return "", err
	}
	return socket, nil
}

// runtimeDir is where the socket of a server goes that this process starts: $XDG_RUNTIME_DIR/stile or, if that is not a
// directory of this user, as after su(1), a directory of our own in /tmp.
func runtimeDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && isOurs(dir) {
		return filepath.Join(dir, "stile")
	}
	return fmt.Sprintf("/tmp/stile-%d", os.Getuid())
}

// socket is where a server listens that this process starts. The name is another for each home, by whatever path that is
// known: two may have the runtime directory in common, and each has to find its own server there. It is where the last
// server was, if that is possible: there those look for it who are still connected to that, as they believe.
func (h Home) socket() string {
	home, err := filepath.EvalSymlinks(string(h))
	if err != nil {
		home = string(h)
	}
	sum := sha256.Sum256([]byte(home))
	name := fmt.Sprintf("local-%x.sock", sum[:6])
	last, err := os.Readlink(h.link())
	if err == nil && filepath.Base(last) == name && checkPrivate(filepath.Dir(last), moveSocket) == nil {
		return last
	}
	return filepath.Join(runtimeDir(), name)
}

func isOurs(dir string) bool {
	var stat unix.Stat_t
	return unix.Stat(dir, &stat) == nil && stat.Mode&unix.S_IFMT == unix.S_IFDIR && int(stat.Uid) == os.Getuid()
}

func (h Home) locked(ctx context.Context, kind filelock.Kind) (*filelock.Lock, error) {
	lock, err := filelock.Wait(ctx, h.lock(), kind)
	switch {
	case errors.Is(err, filelock.ErrLocked):
		return nil, fmt.Errorf("the local server is being started or stopped, and has not been ready for %v: "+
			"see %s, and end what is stuck: fuser %s%s", patience, h.log(), h.lock(), elsewhere)
	case err != nil:
		return nil, noPlace(err, moveHome)
	}
	return lock, nil
}

func (h Home) setLink(socket string) error {
	next := h.link() + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(socket, next); err != nil {
		return err
	}
	return os.Rename(next, h.link())
}

// launch starts the server in the background and waits until it says on a pipe that it is ready, or what is wrong. If
// it ends without a word, so does the pipe.
func (h Home) launch(ctx context.Context, socket string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start the local server: %w%s", err, elsewhere)
	}
	log, err := os.OpenFile(h.log(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return noPlace(err, moveHome)
	}
	defer log.Close()
	ready, readyIn, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()

	cmd := exec.Command(self, "serve", "--background", string(h), "--socket", socket, "--ready-fd", "3")
	cmd.Dir = "/" // it must not keep a file system busy
	// Nor is it part of the command of a stile run that this may be running under, and that it would be stopped with.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "STILE_") })
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{readyIn} // becomes file 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	readyIn.Close() // the server's copy remains, so that the pipe ends with the server
	if err != nil {
		return fmt.Errorf("start the local server: %w%s", err, elsewhere)
	}
	go cmd.Wait() //nolint:errcheck // the server outlives us; this is for the case that it does not

	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	said, err := io.ReadAll(ready)
	switch {
	case string(said) == readyWord:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("the local server (pid %d) has not been ready for %v: try again, see %s, or end it with kill %d%s",
			cmd.Process.Pid, patience, h.log(), cmd.Process.Pid, elsewhere)
	case len(said) > 0:
		return fmt.Errorf("the local server did not start: %s%s", said, elsewhere)
	default:
		return fmt.Errorf("the local server did not start: %s%s", h.logTail(), elsewhere)
	}
}

// readyWord is what the server says on the pipe when it is ready.
const readyWord = "ready"

// logTail is the last that the server has said.
func (h Home) logTail() string {
	log, err := os.ReadFile(h.log())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(log)), "\n")
	last := strings.TrimPrefix(lines[len(lines)-1], "stile: ")
	if last == "" {
		return "it has said nothing in " + h.log()
	}
	return last
}

// What to do about a directory that cannot be used.
const (
	moveHome   = "set HOME or XDG_STATE_HOME to another directory"
	moveSocket = "set XDG_RUNTIME_DIR to another directory"
)

// noPlace is the error for a directory or a file that cannot be written.
func noPlace(err error, instead string) error {
	return fmt.Errorf("no place for the local server: %w; make room there, or %s%s", err, instead, elsewhere)
}

// privateDir makes sure that dir is there and ours alone.
func privateDir(dir, instead string) error {
	err := checkPrivate(dir, instead)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return noPlace(err, instead)
	}
	return checkPrivate(dir, instead)
}

// checkPrivate reports what is wrong with a directory that should be ours, with nobody else let in.
func checkPrivate(dir, instead string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return noPlace(&fs.PathError{Op: "lstat", Path: dir, Err: err}, instead)
	}
	switch {
	case int(stat.Uid) != os.Getuid():
		return fmt.Errorf("%s belongs to user %d, and this is user %d: remove it, or %s%s",
			dir, stat.Uid, os.Getuid(), instead, elsewhere)
	case stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s should be a directory and is not: remove it, or %s%s", dir, instead, elsewhere)
	case stat.Mode&0o077 != 0:
		return fmt.Errorf("the directory %s is open to others: make it private with chmod 700%s", dir, elsewhere)
	}
	return nil
}

// checkSocket reports a path that is too long for a unix socket.
func checkSocket(path string) error {
	if most := len(unix.RawSockaddrUnix{}.Path) - 1; len(path) > most {
		return fmt.Errorf("the path of the local server's socket, %s, has %d bytes, and the system allows %d: "+
			"set XDG_RUNTIME_DIR to a shorter one%s", path, len(path), most, elsewhere)
	}
	return nil
}
