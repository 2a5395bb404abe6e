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
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/cmd/stile/internal/tether"
	"github.com/stilelock/stile/internal/filelock"
	"github.com/stilelock/stile/internal/localserver"
	"github.com/stilelock/stile/internal/patience"
)

// startTimeout limits the start of a server. A start takes a tenth of a second, and a hundred times
// that on an overloaded machine. A server that starts later is found by the next command.
const startTimeout = patience.Factor * 30 * time.Second

// Ensure returns the server's URL in the form of package storeurl. It starts a server if none runs,
// and reports whether it did. When Ensure returns without an error, the server has accepted a
// connection or reported that it is ready. If ctx ends first, a server may still be starting.
func (d ServerDir) Ensure(ctx context.Context) (storeURL string, started bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := privateDir(string(d.Dir)); err != nil {
		return "", false, OrOtherStore(err)
	}
	socket, err := d.Find(ctx)
	if errors.Is(err, localserver.ErrNone) {
		started = true
		socket, err = d.start(ctx)
	}
	return urlOf(socket), started, OrOtherStore(err)
}

// KeepRunning restarts the server whenever it has ended, until ctx ends: without it, its holds and waiters
// would be lost. The server ends with the service or the login that started it if the system ends
// all processes of these. KeepRunning checks every second, and less often after failed starts,
// because many processes may keep the same server. It calls failed with the reason of a failure of
// the server, or of a restart, once for each reason.
func (d ServerDir) KeepRunning(ctx context.Context, failed func(error)) {
	const minInterval, maxInterval = time.Second, 10 * time.Second
	reported := make(map[string]bool)
	report := func(err error) {
		if err != nil && ctx.Err() == nil && !reported[err.Error()] {
			reported[err.Error()] = true
			failed(err)
		}
	}
	for pause := minInterval; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if !d.HasEnded() {
			pause = minInterval
			continue
		}
		report(d.failure()) // before Ensure truncates the log
		pause = min(2*pause, maxInterval)
		_, _, err := d.Ensure(ctx)
		if err == nil {
			pause = minInterval
		}
		report(err)
	}
}

func urlOf(socket string) string { return "etcd+unix://" + (&url.URL{Path: socket}).EscapedPath() }

// start starts a server, unless another process has just started one.
func (d ServerDir) start(ctx context.Context) (string, error) {
	lock, err := d.Acquire(ctx, filelock.Exclusive)
	if err != nil {
		return "", err
	}
	defer lock.Unlock()
	if socket, err := d.awaitLocked(ctx); !errors.Is(err, localserver.ErrNone) {
		return socket, err
	}
	socket, isNew, err := d.choosePath()
	if err != nil {
		return "", err
	}
	if err = d.setLink(socket); err != nil {
		err = localserver.SetupError(err)
	} else {
		err = d.launch(ctx, socket)
	}
	if err != nil {
		// A server started by a process that has since been stopped may have been faster.
		if found, e := d.FindLocked(ctx); e == nil {
			return found, nil
		}
		if isNew {
			d.removeDirOf(socket)
		}
		return "", err
	}
	return socket, nil
}

// awaitLocked returns the socket of the running server, or ErrNone if none runs. A running server
// that cannot be reached is starting, stopping, or about to notice that its socket was removed;
// awaitLocked waits for it. The caller holds the lock.
func (d ServerDir) awaitLocked(ctx context.Context) (string, error) {
	for deadline := time.Now().Add(startTimeout / 2); ; {
		socket, err := d.FindLocked(ctx)
		if !errors.Is(err, localserver.ErrNone) || d.HasEnded() {
			return socket, err
		}
		if time.Now().After(deadline) {
			return "", d.unreachable()
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// unreachable returns the error for a running server that cannot be reached.
func (d ServerDir) unreachable() error {
	pid := d.PID()
	n, err := strconv.Atoi(pid)
	if err != nil || errors.Is(unix.Kill(n, 0), unix.ESRCH) {
		return fmt.Errorf("the local server in %s runs on another machine, or in another container, that shares this "+
			"directory: %s", d.Dir, localserver.MoveDir)
	}
	return fmt.Errorf("the local server (pid %s) runs but cannot be reached: wait until its locks are free, or stop it with "+
		"kill %s", pid, pid)
}

// serverSocket is the name of the socket in the directory of its server.
const serverSocket = "server.sock"

// real is the path of the directory without symbolic links: the same for all processes.
func (d ServerDir) real() string {
	path, err := filepath.EvalSymlinks(string(d.Dir))
	if err != nil {
		return string(d.Dir)
	}
	return path
}

// choosePath returns the path for the socket of a new server, and whether a directory was created
// for it. It reuses the path of the last server if the directory still exists, because its clients
// reconnect there.
func (d ServerDir) choosePath() (socket string, isNew bool, err error) {
	last, err := os.Readlink(d.Link())
	ours := err == nil && (last == filepath.Join(d.real(), serverSocket) || filepath.Base(last) == d.externalSocketName())
	if ours && localserver.CheckPrivate(filepath.Dir(last)) == nil {
		return last, false, nil
	}
	return d.newPath()
}

// newPath is choosePath without regard to the last server.
func (d ServerDir) newPath() (socket string, isNew bool, err error) {
	socket = filepath.Join(d.real(), serverSocket)
	if len(socket+tether.Suffix) < len(unix.RawSockaddrUnix{}.Path) && d.hasSockets() { // the address ends with a zero byte
		return socket, false, nil
	}
	dir, err := os.MkdirTemp("/tmp", "stile-")
	if err != nil {
		return "", false, fmt.Errorf("cannot create a directory for the local server's socket: %w", err)
	}
	return filepath.Join(dir, d.externalSocketName()), true, nil
}

// externalSocketName returns the name of a socket outside the directory. It is different for each directory,
// because one may be a copy with a link to the socket of the original.
func (d ServerDir) externalSocketName() string {
	sum := sha256.Sum256([]byte(d.real()))
	return fmt.Sprintf("local-%x.sock", sum[:6])
}

// hasSockets reports whether the file system of the directory supports sockets. It creates one to find
// out.
func (d ServerDir) hasSockets() bool {
	path := filepath.Join(d.real(), "try.sock") // not longer than serverSocket
	_ = os.Remove(path)                         // left by a process killed at this point
	l, err := net.Listen("unix", path)
	if err != nil {
		return false
	}
	defer l.Close() // removes the file
	conn, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// removeDirOf removes the directory of a socket outside the server's directory, if it is empty.
func (d ServerDir) removeDirOf(socket string) {
	if dir := filepath.Dir(socket); dir != d.real() {
		_ = os.Remove(dir)
	}
}

func (d ServerDir) setLink(socket string) error {
	next := d.Link() + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(socket, next); err != nil {
		return err
	}
	return os.Rename(next, d.Link())
}

// launch starts the server in the background and waits until it writes to a pipe that it is ready,
// or an error. If the server ends without writing, the pipe is closed.
func (d ServerDir) launch(ctx context.Context, socket string) error {
	program, err := Program()
	if err != nil {
		return fmt.Errorf("start the local server: %w", err)
	}
	log, err := os.OpenFile(d.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return localserver.SetupError(err)
	}
	defer log.Close()
	ready, readyIn, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()

	cmd := exec.Command(program, "serve", "--background", string(d.Dir), "--socket", socket, "--ready-fd", "3")
	cmd.Dir = "/" // do not keep a file system busy
	// Without variables like STILE_NAME, the server is no part of the command of an enclosing stile
	// run, and is not stopped with it.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return !inherits(v) })
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{readyIn} // becomes file 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	readyIn.Close() // only the server's copy stays open, so the pipe ends with the server
	if err != nil {
		return fmt.Errorf("start the local server: %w", err)
	}
	ended := make(chan struct{})
	go func() { // usually the server outlives this process
		defer close(ended)
		_ = cmd.Wait()
	}()

	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	reply, err := io.ReadAll(ready)
	switch {
	case string(reply) == readyReply:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("the local server (pid %d) was not ready within %v: try again, see %s, or stop it with kill %d",
			cmd.Process.Pid, startTimeout, d.LogFile(), cmd.Process.Pid)
	}
	// Until the process has ended it has the pid file locked, as a running server has.
	select {
	case <-ended:
	case <-ctx.Done():
	}
	reason := string(reply)
	if reason == "" {
		reason = d.logTail()
	}
	return fmt.Errorf("the local server did not start: %s", reason)
}

// inherits reports whether the server inherits an environment variable. It outlives this process
// and serves others, so it must not get the secrets of its first user.
func inherits(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	switch name {
	case "PATH", "HOME", "TMPDIR", "TZ", "LANG":
		return true
	case "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK": // the Go runtime's
		return true
	}
	return strings.HasPrefix(name, "LC_") || strings.HasPrefix(name, "XDG_")
}

// readyReply is what the server writes to the pipe when it is ready.
const readyReply = "ready"

// logTail returns the last line of the server's log.
func (d ServerDir) logTail() string {
	log, err := os.ReadFile(d.LogFile())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(log)), "\n")
	last := strings.TrimPrefix(lines[len(lines)-1], "stile: ")
	if last == "" {
		return "nothing was logged to " + d.LogFile()
	}
	return last
}

// failedPrefix begins the error of a server that failed while it ran.
const failedPrefix = "the server has failed: "

// failure returns the error of the last server; nil if it was stopped in order or killed.
func (d ServerDir) failure() error {
	if reason, ok := strings.CutPrefix(d.logTail(), failedPrefix); ok {
		return fmt.Errorf("the local server has failed: %s", reason)
	}
	return nil
}

// privateDir creates dir if necessary, and checks that it is accessible to this user only.
func privateDir(dir string) error {
	if err := localserver.MakeDir(dir); err != nil {
		return err
	}
	return localserver.CheckPrivate(dir)
}
