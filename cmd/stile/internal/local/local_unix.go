//go:build unix

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/cmd/stile/internal/filelock"
)

// patience is how long a server may take to start. It takes a tenth of a second.
const patience = 10 * time.Second

// Ensure returns the URL of the server, as package storeurl understands it. If none runs it starts one, and tells. When
// Ensure returns, a server has answered; if ctx ends first one may be on its way.
func (h Home) Ensure(ctx context.Context) (storeURL string, started bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := privateDir(string(h)); err != nil {
		return "", false, err
	}
	socket, err := h.find(ctx)
	if errors.Is(err, errNoServer) {
		started = true
		socket, err = h.start(ctx)
	}
	return "etcd+unix://" + (&url.URL{Path: socket}).EscapedPath(), started, err
}

var errNoServer = errors.New("no server")

// find returns the socket of a server that runs, or errNoServer.
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
	if errors.Is(err, fs.ErrNotExist) {
		return "", errNoServer
	} else if err != nil {
		return "", err
	}
	// In /tmp everybody can put a socket where ours was before a reboot.
	if err := checkPrivate(filepath.Dir(socket)); errors.Is(err, fs.ErrNotExist) {
		return "", errNoServer
	} else if err != nil {
		return "", err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
		conn.Close()
		now := time.Now()
		return socket, os.Chtimes(h.lock(), now, now)
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return "", errNoServer
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
	if socket, err := h.look(ctx); !errors.Is(err, errNoServer) {
		return socket, err
	}
	socket := filepath.Join(runtimeDir(), "local.sock")
	if err := checkSocket(socket); err != nil {
		return "", err
	}
	if err := privateDir(filepath.Dir(socket)); err != nil {
		return "", err
	}
	if err := h.setLink(socket); err != nil {
		return "", err
	}
	return socket, h.launch(ctx, socket)
}

func (h Home) locked(ctx context.Context, kind filelock.Kind) (*filelock.Lock, error) {
	lock, err := filelock.Wait(ctx, h.lock(), kind)
	if errors.Is(err, filelock.ErrLocked) {
		return nil, fmt.Errorf("the local server is being started or stopped, and has not been ready for %v: "+
			"see %s%s", patience, h.log(), elsewhere)
	}
	return lock, err
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

// launch starts the server in the background and waits until it says that it is ready, which it does with one byte on
// a pipe. If it ends instead, so does the pipe.
func (h Home) launch(ctx context.Context, socket string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start the local server: %w%s", err, elsewhere)
	}
	log, err := os.OpenFile(h.log(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	ready, readyIn, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()

	cmd := exec.Command(self, "serve", "--background", string(h), "--socket", socket, "--ready-fd", "3")
	cmd.Dir = "/" // it must not keep a file system busy
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
	_, err = io.ReadFull(ready, make([]byte, 1))
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case ctx.Err() != nil:
		return fmt.Errorf("the local server (pid %d) has not been ready for %v: %s%s",
			cmd.Process.Pid, patience, h.logTail(), elsewhere)
	default:
		return fmt.Errorf("the local server did not start: %s%s", h.logTail(), elsewhere)
	}
}

// logTail is the last that the server has said.
func (h Home) logTail() string {
	log, err := os.ReadFile(h.log())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(log)), "\n")
	return strings.TrimPrefix(lines[len(lines)-1], "stile: ")
}

// privateDir makes sure that dir is there and ours alone.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("no place for the local server: %w; set HOME, XDG_STATE_HOME and XDG_RUNTIME_DIR to "+
			"directories that can be written to%s", err, elsewhere)
	}
	return checkPrivate(dir)
}

// checkPrivate reports what is wrong with a directory that should be ours, with nobody else let in.
func checkPrivate(dir string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s should be a directory and is not: remove it%s", dir, elsewhere)
	case int(stat.Uid) != os.Getuid():
		return fmt.Errorf("the directory %s belongs to user %d, and this is user %d: remove it%s",
			dir, stat.Uid, os.Getuid(), elsewhere)
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
