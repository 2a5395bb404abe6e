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
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/cmd/stile/internal/filelock"
	"github.com/stilelock/stile/cmd/stile/internal/tether"
)

// startTimeout limits the start of a server. A start takes a tenth of a second, and a hundred times
// that on an overloaded machine. A server that starts later is found by the next command.
const startTimeout = 30 * time.Second

// Ensure returns the server's URL in the form of package storeurl. It starts a server if none runs,
// and reports whether it did. When Ensure returns without an error, the server has accepted a
// connection or reported that it is ready. If ctx ends first, a server may still be starting.
func (d ServerDir) Ensure(ctx context.Context) (storeURL string, started bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := privateDir(string(d)); err != nil {
		return "", false, err
	}
	socket, err := d.find(ctx)
	if errors.Is(err, ErrNone) {
		started = true
		socket, err = d.start(ctx)
	}
	return urlOf(socket), started, err
}

// Find returns the server's URL. It starts no server: if none runs, the error matches [ErrNone].
func (d ServerDir) Find(ctx context.Context) (storeURL string, err error) {
	switch err := checkPrivate(string(d)); {
	case errors.Is(err, fs.ErrNotExist):
		return "", ErrNone
	case err != nil:
		return "", err
	}
	socket, err := d.find(ctx)
	return urlOf(socket), err
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
		if !d.hasEnded() {
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

// hasEnded reports whether no server has the pid file locked. A running server has, even if it
// cannot be reached.
func (d ServerDir) hasEnded() bool {
	lock, err := filelock.Try(d.pid(), filelock.Shared)
	if err != nil {
		return false
	}
	lock.Unlock()
	return true
}

func urlOf(socket string) string { return "etcd+unix://" + (&url.URL{Path: socket}).EscapedPath() }

// UnresponsiveErr returns the error for a server that accepted a connection in Ensure and has not answered
// since: it is stopped or broken.
func (d ServerDir) UnresponsiveErr() error {
	pid := d.PID()
	return fmt.Errorf("the local server (pid %s) runs but does not answer: resume it (kill -CONT %s), or kill it "+
		"(kill -9 %s) and retry; no locks are lost%s", pid, pid, pid, otherStore)
}

// PID returns the process id of the server, or of the last one if none runs; "unknown" if it cannot
// be read.
func (d ServerDir) PID() string {
	pid, err := os.ReadFile(d.pid())
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(pid))
}

// find returns the socket of the running server, or ErrNone.
func (d ServerDir) find(ctx context.Context) (string, error) {
	lock, err := d.acquire(ctx, filelock.Shared)
	if err != nil {
		return "", err
	}
	defer lock.Unlock()
	return d.lookLocked(ctx)
}

// lookLocked returns the socket of the running server, or ErrNone. The caller holds the lock.
// lookLocked updates the lock's modification time. A server checks that before it stops because it
// is idle, so a server that has just been found stays for the idle time.
func (d ServerDir) lookLocked(ctx context.Context) (string, error) {
	socket, err := os.Readlink(d.link())
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EINVAL): // EINVAL: it is not a link
		return "", ErrNone
	case err != nil:
		return "", err
	}
	// If something listens there, it is the server of another directory, of which this one is a copy, or
	// which has the same path in another container.
	if d.hasEnded() {
		return "", ErrNone
	}
	// In /tmp another user may have put a socket at the path of ours after a restart of the
	// machine. Our own server, if it runs, will listen at a new path.
	switch err := checkPrivate(filepath.Dir(socket)); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotOurs):
		return "", ErrNone
	case err != nil:
		return "", err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
		conn.Close()
		now := time.Now()
		return socket, os.Chtimes(d.lock(), now, now)
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return "", ErrNone
	case errors.Is(err, unix.EAGAIN): // it accepts no connections, and its backlog is full
		return "", d.UnresponsiveErr()
	default:
		return "", fmt.Errorf("connect to the local server: %w%s", err, otherStore)
	}
}

// start starts a server, unless another process has just started one.
func (d ServerDir) start(ctx context.Context) (string, error) {
	lock, err := d.acquire(ctx, filelock.Exclusive)
	if err != nil {
		return "", err
	}
	defer lock.Unlock()
	if socket, err := d.awaitLocked(ctx); !errors.Is(err, ErrNone) {
		return socket, err
	}
	socket, isNew, err := d.choosePath()
	if err != nil {
		return "", err
	}
	if err = d.setLink(socket); err != nil {
		err = setupError(err)
	} else {
		err = d.launch(ctx, socket)
	}
	if err != nil {
		// A server started by a process that has since been stopped may have been faster.
		if found, e := d.lookLocked(ctx); e == nil {
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
		socket, err := d.lookLocked(ctx)
		if !errors.Is(err, ErrNone) || d.hasEnded() {
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
			"directory: %s%s", d, moveDir, otherStore)
	}
	return fmt.Errorf("the local server (pid %s) runs but cannot be reached: wait until its locks are free, or stop it with "+
		"kill %s%s", pid, pid, otherStore)
}

// serverSocket is the name of the socket in the directory of its server.
const serverSocket = "server.sock"

// real is the path of the directory without symbolic links: the same for all processes.
func (d ServerDir) real() string {
	path, err := filepath.EvalSymlinks(string(d))
	if err != nil {
		return string(d)
	}
	return path
}

// choosePath returns the path for the socket of a new server, and whether a directory was created
// for it. It reuses the path of the last server if the directory still exists, because its clients
// reconnect there.
func (d ServerDir) choosePath() (socket string, isNew bool, err error) {
	last, err := os.Readlink(d.link())
	ours := err == nil && (last == filepath.Join(d.real(), serverSocket) || filepath.Base(last) == d.externalSocketName())
	if ours && checkPrivate(filepath.Dir(last)) == nil {
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
		return "", false, fmt.Errorf("cannot create a directory for the local server's socket: %w%s", err, otherStore)
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

func (d ServerDir) acquire(ctx context.Context, kind filelock.Kind) (*filelock.Lock, error) {
	lock, err := filelock.Wait(ctx, d.lock(), kind)
	switch {
	case errors.Is(err, filelock.ErrLocked):
		return nil, fmt.Errorf("the local server is being started or stopped and was not ready within %v: "+
			"see %s, and stop the process that hangs (fuser %s)%s", startTimeout, d.log(), d.lock(), otherStore)
	case err != nil:
		return nil, setupError(err)
	}
	return lock, nil
}

func (d ServerDir) setLink(socket string) error {
	next := d.link() + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(socket, next); err != nil {
		return err
	}
	return os.Rename(next, d.link())
}

// launch starts the server in the background and waits until it writes to a pipe that it is ready,
// or an error. If the server ends without writing, the pipe is closed.
func (d ServerDir) launch(ctx context.Context, socket string) error {
	program, err := Program()
	if err != nil {
		return fmt.Errorf("start the local server: %w%s", err, otherStore)
	}
	log, err := os.OpenFile(d.log(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return setupError(err)
	}
	defer log.Close()
	ready, readyIn, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()

	cmd := exec.Command(program, "serve", "--background", string(d), "--socket", socket, "--ready-fd", "3")
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
		return fmt.Errorf("start the local server: %w%s", err, otherStore)
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
		return fmt.Errorf("the local server (pid %d) was not ready within %v: try again, see %s, or stop it with kill %d%s",
			cmd.Process.Pid, startTimeout, d.log(), cmd.Process.Pid, otherStore)
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
	return fmt.Errorf("the local server did not start: %s%s", reason, otherStore)
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
	log, err := os.ReadFile(d.log())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(log)), "\n")
	last := strings.TrimPrefix(lines[len(lines)-1], "stile: ")
	if last == "" {
		return "nothing was logged to " + d.log()
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

// moveDir is the advice for a directory that cannot be used.
const moveDir = "set HOME or XDG_STATE_HOME to a writable directory"

// setupError returns the error for a file of the local server that cannot be created or used.
func setupError(err error) error {
	advice := moveDir
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		advice = "free some space on that disk, or " + moveDir
	}
	return fmt.Errorf("cannot set up the local server: %w; %s%s", err, advice, otherStore)
}

// privateDir creates dir if necessary, and checks that it is accessible to this user only.
func privateDir(dir string) error {
	err := checkPrivate(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return setupError(err)
	}
	return checkPrivate(dir)
}

// errNotOurs means that the path is not a directory of this user.
var errNotOurs = errors.New("not a directory of this user")

// notOursError is an error with details that matches errNotOurs.
type notOursError string

func (e notOursError) Error() string   { return string(e) }
func (e notOursError) Is(t error) bool { return t == errNotOurs }

// checkPrivate returns an error unless dir is a directory of this user that is accessible to nobody
// else.
func checkPrivate(dir string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return setupError(&fs.PathError{Op: "lstat", Path: dir, Err: err})
	}
	switch {
	case int(stat.Uid) != os.Getuid():
		return notOursError(fmt.Sprintf("%s belongs to %s, and this is %s: run stile as that user, or %s (sudo -H does)%s",
			dir, userName(int(stat.Uid)), userName(os.Getuid()), moveDir, otherStore))
	case stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return notOursError(fmt.Sprintf("%s is not a directory: move it away, or %s%s", dir, moveDir, otherStore))
	case stat.Mode&0o077 != 0:
		return fmt.Errorf("the directory %s is accessible to other users: make it private with chmod 700%s", dir, otherStore)
	}
	return nil
}

// userName returns a user's name, if there is one, and number.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return fmt.Sprintf("user %s (%d)", u.Username, uid)
	}
	return fmt.Sprintf("user %d", uid)
}
