//go:build unix

package localserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/internal/filelock"
)

// Find returns the socket of the running server. It starts no server: if none runs, the error
// matches [ErrNone]. A server that was just found stays for its idle time, and then as long as a
// client is connected. While another process starts or stops the server, Find waits until ctx ends.
func (d Dir) Find(ctx context.Context) (socket string, err error) {
	if err := CheckPath(string(d)); err != nil {
		return "", err
	}
	switch err := CheckPrivate(string(d)); {
	case errors.Is(err, fs.ErrNotExist):
		return "", ErrNone
	case err != nil:
		return "", err
	}
	lock, err := d.Acquire(ctx, filelock.Shared)
	if err != nil {
		return "", err
	}
	defer lock.Unlock()
	return d.FindLocked(ctx)
}

// Acquire locks the directory.
func (d Dir) Acquire(ctx context.Context, kind filelock.Kind) (*filelock.Lock, error) {
	lock, err := filelock.Wait(ctx, d.LockFile(), kind)
	switch {
	case errors.Is(err, filelock.ErrLocked):
		return nil, fmt.Errorf("the local server is being started or stopped and was not ready in time: "+
			"see %s, and stop the process that hangs (fuser %s)", d.LogFile(), d.LockFile())
	case err != nil:
		return nil, SetupError(err)
	}
	return lock, nil
}

// FindLocked is Find for a caller that has locked the directory and checked that it is private.
// It updates the lock's modification time. A server checks that before it stops because it
// is idle, so a server that has just been found stays for the idle time.
func (d Dir) FindLocked(ctx context.Context) (string, error) {
	socket, err := os.Readlink(d.Link())
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EINVAL): // EINVAL: it is not a link
		return "", ErrNone
	case err != nil:
		return "", err
	}
	// If something listens there, it is the server of another directory, of which this one is a copy, or
	// which has the same path in another container.
	if d.HasEnded() {
		return "", ErrNone
	}
	// In /tmp another user may have put a socket at the path of ours after a restart of the
	// machine. Our own server, if it runs, will listen at a new path.
	switch err := CheckPrivate(filepath.Dir(socket)); {
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
		return socket, os.Chtimes(d.LockFile(), now, now)
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return "", ErrNone
	case errors.Is(err, unix.EAGAIN): // it accepts no connections, and its backlog is full
		return "", d.UnresponsiveErr()
	default:
		return "", fmt.Errorf("connect to the local server: %w", err)
	}
}

// SetupError returns the error for a file of a lock server that cannot be created or used.
func SetupError(err error) error {
	advice := MoveDir
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		advice = "free some space on that disk, or " + MoveDir
	}
	return fmt.Errorf("cannot set up the lock server: %w; %s", err, advice)
}

// errNotOurs means that the path is not a directory of this user.
var errNotOurs = errors.New("not a directory of this user")

// notOursError is an error with details that matches errNotOurs.
type notOursError string

func (e notOursError) Error() string   { return string(e) }
func (e notOursError) Is(t error) bool { return t == errNotOurs }

// belongsToOther returns the error for a path that belongs to another user.
func belongsToOther(path string, uid uint32) error {
	return notOursError(fmt.Sprintf("%s belongs to %s, and this is %s: run as that user or use sudo -H, or %s",
		path, UserName(int(uid)), UserName(os.Getuid()), otherDir(path)))
}

// otherDir is the advice for a path that is refused. Root is given a directory that works, because in containers HOME
// often is a directory of another user. A directory that has the refused path in it, or is below it, would not help.
func otherDir(path string) string {
	if os.Getuid() == 0 {
		if dir := filepath.Join(rootHome(), ".local", "state"); !within(dir, path) && !within(path, dir) {
			return "set XDG_STATE_HOME=" + dir
		}
	}
	return "set HOME or XDG_STATE_HOME to another directory of your own"
}

func rootHome() string {
	if u, err := user.LookupId("0"); err == nil && filepath.IsAbs(u.HomeDir) {
		return u.HomeDir
	}
	return "/root"
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// CheckPrivate returns an error unless dir is a directory of this user that is accessible to nobody
// else. If it does not exist, the error matches fs.ErrNotExist.
func CheckPrivate(dir string) error {
	stat, err := lstat(dir)
	switch {
	case err != nil:
		return SetupError(err)
	case int(stat.Uid) != os.Getuid():
		return belongsToOther(dir, stat.Uid)
	case stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return notOursError(fmt.Sprintf("%s is not a directory: move it away, or %s", dir, MoveDir))
	case stat.Mode&0o077 != 0:
		return fmt.Errorf("the directory %s is accessible to other users: make it private with chmod 700", dir)
	}
	return nil
}

// CheckPath returns an error if another user could replace the directory at the absolute path dir, or
// lead it elsewhere with a symbolic link. It follows the path from the root: each directory and each
// link must belong to this user or to root, and a directory that everybody may write to must be
// sticky, like /tmp. The groups of directories are trusted, because a home directory often is
// writable to a group that has its user as the only member. The part of the path that does not exist
// is not checked.
func CheckPath(dir string) error {
	root, err := lstat("/")
	if err != nil {
		return SetupError(err)
	}
	// The owner of / is root, whatever its number is here. A user namespace may have no number for the machine's root.
	// Then / belongs to the overflow uid, and this uid is trusted: nothing would work otherwise. If / belongs to another
	// uid, the overflow uid is refused. It stands for every user without a number, not only for root.
	trusted := func(uid uint32) bool { return uid == 0 || int(uid) == os.Getuid() || uid == root.Uid }
	at, rest := "/", strings.Split(dir, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		path := filepath.Join(at, name) // the directory itself for "" and ".", its parent for ".."
		stat, err := lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return SetupError(err)
		case !trusted(stat.Uid):
			return belongsToOther(path, stat.Uid)
		}
		switch stat.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return SetupError(err)
			}
			if links++; links > maxLinks {
				return SetupError(&fs.PathError{Op: "resolve", Path: dir, Err: unix.ELOOP})
			}
			if filepath.IsAbs(target) {
				at = "/"
			}
			rest = append(strings.Split(target, "/"), rest...)
			continue
		case unix.S_IFDIR:
			if stat.Mode&0o002 != 0 && stat.Mode&unix.S_ISVTX == 0 {
				return fmt.Errorf("every user can replace files in %s: chmod o-w or chmod +t it, or %s", path, otherDir(path))
			}
		}
		at = path
	}
	return nil
}

// maxLinks is the number of symbolic links in a path that Linux follows.
const maxLinks = 40

// lstat is unix.Lstat with the path in its errors.
func lstat(path string) (stat unix.Stat_t, err error) {
	if err := unix.Lstat(path, &stat); err != nil {
		return stat, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return stat, nil
}

// UserName returns a user's name, if there is one, and number.
func UserName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return fmt.Sprintf("user %s (%d)", u.Username, uid)
	}
	return fmt.Sprintf("user %d", uid)
}
