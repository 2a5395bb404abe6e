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
)

// patience is how long a server may take to start. It takes a tenth of a second, and a hundred times that on a machine with
// too much to do. A server that starts later than that is found by the next command.
const patience = 30 * time.Second

// Ensure returns the URL of the server, as package storeurl understands it. If none runs it starts one, and tells. When
// Ensure returns, a server has taken a connection, or said that it is ready; if ctx ends first one may be on its way.
func (h Home) Ensure(ctx context.Context) (storeURL string, started bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := privateDir(string(h)); err != nil {
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
	switch err := checkPrivate(string(h)); {
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
// every second, and less often after starts that have failed: there may be many who keep the server. Keep calls failed with
// the reason why the server has failed, or cannot be started again, once for each reason.
func (h Home) Keep(ctx context.Context, failed func(error)) {
	const often, seldom = time.Second, 10 * time.Second
	reported := make(map[string]bool)
	report := func(err error) {
		if err != nil && ctx.Err() == nil && !reported[err.Error()] {
			reported[err.Error()] = true
			failed(err)
		}
	}
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
		report(h.failure()) // before the log is overwritten
		pause = min(2*pause, seldom)
		_, _, err := h.Ensure(ctx)
		if err == nil {
			pause = often
		}
		report(err)
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
	return fmt.Errorf("the local server (pid %s) runs but does not answer: resume it (kill -CONT %s), or kill it "+
		"(kill -9 %s) and retry; no locks are lost%s", pid, pid, pid, elsewhere)
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
	// In /tmp another user can have put a socket where ours was before a restart of the machine. The server of ours that
	// runs now, if there is one, listens in a new place soon.
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
		return socket, os.Chtimes(h.lock(), now, now)
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return "", ErrNone
	case errors.Is(err, unix.EAGAIN): // it takes no connections, and too many wait for that
		return "", h.Silent()
	default:
		return "", fmt.Errorf("reach the local server: %w%s", err, elsewhere)
	}
}

// start starts a server, unless another process has done so meanwhile.
func (h Home) start(ctx context.Context) (string, error) {
	lock, err := h.locked(ctx, filelock.Exclusive)
	if err != nil {
		return "", err
	}
	defer lock.Unlock()
	if socket, err := h.await(ctx); !errors.Is(err, ErrNone) {
		return socket, err
	}
	socket, isNew, err := h.place()
	if err != nil {
		return "", err
	}
	if err = h.setLink(socket); err != nil {
		err = noPlace(err)
	} else {
		err = h.launch(ctx, socket)
	}
	if err != nil {
		// A server whose starter was stopped may have been on its way, and be faster.
		if found, e := h.look(ctx); e == nil {
			return found, nil
		}
		if isNew {
			h.removeDirOf(socket)
		}
		return "", err
	}
	return socket, nil
}

// await returns the socket of the server that runs, or ErrNone if none does. One that runs and cannot be reached is
// still starting, about to end, or about to notice that its socket was removed: it is waited for.
func (h Home) await(ctx context.Context) (string, error) {
	for deadline := time.Now().Add(patience / 2); ; {
		socket, err := h.look(ctx)
		if !errors.Is(err, ErrNone) || h.hasEnded() {
			return socket, err
		}
		if time.Now().After(deadline) {
			return "", h.unreachable()
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// unreachable is the error for a server that runs and cannot be reached.
func (h Home) unreachable() error {
	pid := h.PID()
	n, err := strconv.Atoi(pid)
	if err != nil || errors.Is(unix.Kill(n, 0), unix.ESRCH) {
		return fmt.Errorf("the local server in %s runs on another machine, or in another container, that shares this "+
			"directory: %s%s", h, moveHome, elsewhere)
	}
	return fmt.Errorf("the local server (pid %s) runs but cannot be reached: wait until its locks are free, or end it with "+
		"kill %s%s", pid, pid, elsewhere)
}

// serverSocket is the name of the socket in the home of its server.
const serverSocket = "server.sock"

// real is the path of the home without symbolic links: the same for all processes.
func (h Home) real() string {
	path, err := filepath.EvalSymlinks(string(h))
	if err != nil {
		return string(h)
	}
	return path
}

// place returns the path where a server listens that this process starts, and whether a directory was made for it. It
// is that of the last server if its directory is still there: clients that were connected look for the next one there.
func (h Home) place() (socket string, isNew bool, err error) {
	last, err := os.Readlink(h.link())
	ours := err == nil && (last == filepath.Join(h.real(), serverSocket) || filepath.Base(last) == h.socketElsewhere())
	if ours && checkPrivate(filepath.Dir(last)) == nil {
		return last, false, nil
	}
	return h.newPlace()
}

// newPlace is place without regard to the last server.
func (h Home) newPlace() (socket string, isNew bool, err error) {
	socket = filepath.Join(h.real(), serverSocket)
	if len(socket) < len(unix.RawSockaddrUnix{}.Path) && h.hasSockets() { // the address ends with a zero
		return socket, false, nil
	}
	dir, err := os.MkdirTemp("/tmp", "stile-")
	if err != nil {
		return "", false, fmt.Errorf("cannot make a directory for the local server's socket: %w%s", err, elsewhere)
	}
	return filepath.Join(dir, h.socketElsewhere()), true, nil
}

// socketElsewhere is the name of a socket that is not in its home. It is another for each home: the home may be a copy,
// with a link to the socket of the original.
func (h Home) socketElsewhere() string {
	sum := sha256.Sum256([]byte(h.real()))
	return fmt.Sprintf("local-%x.sock", sum[:6])
}

// hasSockets reports whether the file system of the home has sockets, by trying one.
func (h Home) hasSockets() bool {
	path := filepath.Join(h.real(), "try.sock") // not longer than serverSocket
	_ = os.Remove(path)                         // left by a process that was killed here
	l, err := net.Listen("unix", path)
	if err != nil {
		return false
	}
	defer l.Close() // which removes it
	conn, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// removeDirOf removes the directory that was made for a socket, if it is empty.
func (h Home) removeDirOf(socket string) {
	if dir := filepath.Dir(socket); dir != h.real() {
		_ = os.Remove(dir)
	}
}

func (h Home) locked(ctx context.Context, kind filelock.Kind) (*filelock.Lock, error) {
	lock, err := filelock.Wait(ctx, h.lock(), kind)
	switch {
	case errors.Is(err, filelock.ErrLocked):
		return nil, fmt.Errorf("the local server is being started or stopped, and has not been ready for %v: "+
			"see %s, and end what is stuck: fuser %s%s", patience, h.log(), h.lock(), elsewhere)
	case err != nil:
		return nil, noPlace(err)
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
		return noPlace(err)
	}
	defer log.Close()
	ready, readyIn, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()

	cmd := exec.Command(self, "serve", "--background", string(h), "--socket", socket, "--ready-fd", "3")
	cmd.Dir = "/" // it must not keep a file system busy
	// Without STILE_NAME and the like it is no part of the command of a stile run around us, and not stopped with it.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return !inherits(v) })
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

// inherits reports whether the server gets a variable of our environment. It outlives us, and serves others: secrets of
// its first user are no business of it.
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

// hasFailed is how the error of a server begins that could not go on.
const hasFailed = "the server has failed: "

// failure is the error of the last server; nil if that was told to end, or killed.
func (h Home) failure() error {
	if reason, ok := strings.CutPrefix(h.logTail(), hasFailed); ok {
		return fmt.Errorf("the local server has failed: %s", reason)
	}
	return nil
}

// moveHome tells what to do about a home that cannot be used.
const moveHome = "set HOME or XDG_STATE_HOME to a writable directory"

// noPlace is the error for a file of the local server that cannot be made or used.
func noPlace(err error) error {
	advice := moveHome
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		advice = "free space on that disk, or " + moveHome
	}
	return fmt.Errorf("cannot set up the local server: %w; %s%s", err, advice, elsewhere)
}

// privateDir makes sure that dir is there and ours alone.
func privateDir(dir string) error {
	err := checkPrivate(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return noPlace(err)
	}
	return checkPrivate(dir)
}

// errNotOurs means that the path does not lead to a directory of this user.
var errNotOurs = errors.New("not a directory of this user")

// notOursError is an errNotOurs that says more.
type notOursError string

func (e notOursError) Error() string   { return string(e) }
func (e notOursError) Is(t error) bool { return t == errNotOurs }

// checkPrivate reports what is wrong with a directory that should be ours, with nobody else let in.
func checkPrivate(dir string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return noPlace(&fs.PathError{Op: "lstat", Path: dir, Err: err})
	}
	switch {
	case int(stat.Uid) != os.Getuid():
		return notOursError(fmt.Sprintf("%s belongs to %s, and this is %s: run stile as that user, or %s (sudo -H does)%s",
			dir, userName(int(stat.Uid)), userName(os.Getuid()), moveHome, elsewhere))
	case stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return notOursError(fmt.Sprintf("%s should be a directory and is not: move it away, or %s%s", dir, moveHome, elsewhere))
	case stat.Mode&0o077 != 0:
		return fmt.Errorf("the directory %s is accessible to other users: make it private with chmod 700%s", dir, elsewhere)
	}
	return nil
}

// userName names a user for people: by name, if there is one, and number.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return fmt.Sprintf("user %s (%d)", u.Username, uid)
	}
	return fmt.Sprintf("user %d", uid)
}
