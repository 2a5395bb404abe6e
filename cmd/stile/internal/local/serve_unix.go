//go:build unix && !lean

package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/cmd/stile/internal/inherited"
	"github.com/stilelock/stile/cmd/stile/internal/node"
	"github.com/stilelock/stile/internal/filelock"
	"github.com/stilelock/stile/internal/localserver"
)

// Serve runs the server of the background process. It listens on socket until ctx ends or until,
// for the duration idle, no process has looked for it, no client has been connected and no lease
// has existed. It writes to the inherited file ready that it is ready, or the error; a negative
// ready means that nobody waits for that.
func (d ServerDir) Serve(ctx context.Context, socket string, idle time.Duration, ready int, log *slog.Logger) error {
	inherited.Close(ready)
	claim, err := d.claim(ctx, socket)
	if err != nil {
		notify(ready, err.Error())
		return err
	}
	defer claim.Unlock()
	n, listening, err := d.open(ctx, socket, log)
	if err != nil {
		notify(ready, err.Error())
		return err
	}
	defer n.Close()
	log.Info("ready", "url", n.URL(), "data", n.Dir(), "pid", os.Getpid())
	notify(ready, readyReply)

	look := time.NewTicker(max(min(idle/20, socketCheckInterval), time.Millisecond))
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			log.Info("stopping", "reason", context.Cause(ctx))
			d.end(n, socket)
			return nil
		case <-n.Stopped():
			return fmt.Errorf(failedPrefix+"%w", n.Err())
		case <-look.C:
			if n.IdleFor() >= idle && d.retire(n, socket, idle) {
				log.Info("stopped", "reason", "idle for "+idle.String())
				return nil
			}
			if isAt(socket, listening) {
				continue
			}
			newSocket, info, err := d.listenAgain(n, socket)
			switch {
			case err == nil:
				socket, listening = newSocket, info
				log.Info("socket was removed; listening again", "url", urlOf(socket))
			case n.IdleFor() > 0:
				log.Info("stopped", "reason", "clients cannot reach "+socket+" any more")
				return nil
			}
		}
	}
}

// socketCheckInterval is how often a server checks that its socket still exists. Programs that
// clean up may remove it.
const socketCheckInterval = 2 * time.Second

// listenAgain restores the socket after it was removed. It listens at the same path, or at a new
// one if the directory is gone or now belongs to another user, and sets the link.
func (d ServerDir) listenAgain(n *node.Node, socket string) (string, fs.FileInfo, error) {
	isNew := false
	if localserver.CheckPrivate(filepath.Dir(socket)) != nil {
		var err error
		if socket, isNew, err = d.newPath(); err != nil {
			return "", nil, err
		}
	}
	listening, err := d.listenAt(n, socket)
	if err != nil && isNew {
		d.removeDirOf(socket)
	}
	return socket, listening, err
}

func (d ServerDir) listenAt(n *node.Node, socket string) (fs.FileInfo, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	listening, err := os.Lstat(socket)
	if err == nil {
		err = d.setLink(socket)
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	n.ServeAlso(l)
	return listening, nil
}

// claim makes this process the only server of its directory and writes its process id there. It waits
// for a predecessor, which may be stopping, or about to notice that it cannot be reached.
func (d ServerDir) claim(ctx context.Context, socket string) (*filelock.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout/3)
	defer cancel()
	last := false // one last try after the timeout: this process may have been stopped meanwhile
	lock, err := filelock.Try(d.PIDFile(), filelock.Exclusive)
	for errors.Is(err, filelock.ErrLocked) {
		if listens(socket) { // nothing did when this process was started
			return nil, errors.New("another server was started at the same time")
		}
		if last {
			pid := d.PID()
			return nil, fmt.Errorf("another server (pid %s) is running", pid)
		}
		time.Sleep(10 * time.Millisecond)
		last = ctx.Err() != nil
		lock, err = filelock.Try(d.PIDFile(), filelock.Exclusive)
	}
	if err != nil {
		return nil, localserver.SetupError(err)
	}
	if err := writePID(d.PIDFile()); err != nil {
		lock.Unlock()
		return nil, localserver.SetupError(err)
	}
	return lock, nil
}

// writePID writes this process's id to a file that exists.
func writePID(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, os.Getpid())
	return cmp.Or(err, f.Close())
}

// listens reports whether a process listens on socket. It also counts if it hangs and its backlog
// is full.
func listens(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err == nil {
		conn.Close()
	}
	return err == nil || errors.Is(err, unix.EAGAIN)
}

// open starts the server, and returns the file info of its socket.
func (d ServerDir) open(ctx context.Context, socket string, log *slog.Logger) (*node.Node, fs.FileInfo, error) {
	// node.Start would remove the socket of another program, for example of a server in another
	// container in which the directory has the same path.
	if listens(socket) {
		return nil, nil, fmt.Errorf("another program listens on %s: stop it, or %s", socket, localserver.MoveDir)
	}
	n, err := node.Start(ctx, node.Config{Dir: d.Data(), MoveDir: localserver.MoveDir, Socket: socket, Logger: log})
	if err != nil {
		return nil, nil, err
	}
	listening, err := os.Lstat(socket)
	if err != nil {
		n.Close()
		return nil, nil, err
	}
	return n, listening, nil
}

// isAt reports whether path is still the same file.
func isAt(path string, was fs.FileInfo) bool {
	is, err := os.Lstat(path)
	return err == nil && os.SameFile(is, was)
}

// retire closes the server, unless a process is looking for it or has done so within idle. It holds
// the lock, so no process finds the server while it stops.
func (d ServerDir) retire(n *node.Node, socket string, idle time.Duration) bool {
	lock, err := filelock.Try(d.LockFile(), filelock.Exclusive)
	if err != nil {
		return false
	}
	defer lock.Unlock()
	info, err := os.Stat(d.LockFile())
	if err == nil && time.Since(info.ModTime()) < idle || n.IdleFor() < idle {
		return false
	}
	n.Close()
	d.removeDirOf(socket)
	return true
}

// end closes the server when it was not idle. While clients are connected, the directory of the
// socket stays: they will look for the next server there, and another user must not be able to take
// the path.
func (d ServerDir) end(n *node.Node, socket string) {
	needed := n.IdleFor() == 0
	n.Close()
	if needed {
		return
	}
	if lock, err := filelock.Try(d.LockFile(), filelock.Exclusive); err == nil { // if it is locked, the next server is starting
		d.removeDirOf(socket)
		lock.Unlock()
	}
}

// notify writes text to the pipe fd and closes it. The reader may have ended.
func notify(fd int, text string) {
	if fd < 0 {
		return
	}
	pipe := os.NewFile(uintptr(fd), "ready")
	_, _ = pipe.WriteString(text)
	_ = pipe.Close()
}
