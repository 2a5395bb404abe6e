//go:build unix

package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/cmd/stile/internal/filelock"
	"github.com/stilelock/stile/cmd/stile/internal/inherited"
	"github.com/stilelock/stile/cmd/stile/internal/node"
)

// Serve is the server in the background: it listens on socket until ctx ends or, for as long as idle, nobody has looked
// for it or been connected and no lease been alive. It says that it is ready, or why it cannot be, to the file ready,
// which it has inherited; if ready is negative it tells nobody.
func (h Home) Serve(ctx context.Context, socket string, idle time.Duration, ready int, log *slog.Logger) error {
	inherited.Close(ready)
	claim, err := h.claim(ctx, socket)
	if err != nil {
		tell(ready, err.Error())
		return err
	}
	defer claim.Unlock()
	n, listening, err := h.open(ctx, socket, log)
	if err != nil {
		tell(ready, err.Error())
		return err
	}
	defer n.Close()
	log.Info("ready", "url", n.URL(), "data", n.Dir(), "pid", os.Getpid())
	tell(ready, readyWord)

	look := time.NewTicker(max(min(idle/20, attention), time.Millisecond))
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			log.Info("stopping", "reason", context.Cause(ctx))
			h.end(n, socket)
			return nil
		case <-n.Stopped():
			return fmt.Errorf(hasFailed+"%w", n.Err())
		case <-look.C:
			if n.IdleFor() >= idle && h.retire(n, socket, idle) {
				log.Info("stopped", "reason", "idle for "+idle.String())
				return nil
			}
			if isAt(socket, listening) {
				continue
			}
			again, at, err := h.listenAgain(n, socket)
			switch {
			case err == nil:
				socket, listening = again, at
				log.Info("socket was removed; listening again", "url", urlOf(socket))
			case n.IdleFor() > 0:
				log.Info("stopped", "reason", "nobody can reach "+socket+" anymore")
				return nil
			}
		}
	}
}

// attention is how often a server looks whether its socket is still there. Programs that clean up may remove it.
const attention = 2 * time.Second

// listenAgain is for a server whose socket was removed. It listens in the same place, or in a new one if the directory
// is gone or belongs to another user by now, and sets the link.
func (h Home) listenAgain(n *node.Node, socket string) (string, fs.FileInfo, error) {
	isNew := false
	if checkPrivate(filepath.Dir(socket)) != nil {
		var err error
		if socket, isNew, err = h.newPlace(); err != nil {
			return "", nil, err
		}
	}
	listening, err := h.listenAt(n, socket)
	if err != nil && isNew {
		h.removeDirOf(socket)
	}
	return socket, listening, err
}

func (h Home) listenAt(n *node.Node, socket string) (fs.FileInfo, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	listening, err := os.Lstat(socket)
	if err == nil {
		err = h.setLink(socket)
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	n.ServeAlso(l)
	return listening, nil
}

// claim makes this process the only server of its home, the one whose process id can be read there. A predecessor that
// was told to end a moment ago, or has noticed that nobody can reach it, is waited for.
func (h Home) claim(ctx context.Context, socket string) (*filelock.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, patience/3)
	defer cancel()
	last := false // the time is up, and this is the last try: a process that stood still meanwhile gets one too
	lock, err := filelock.Try(h.pid(), filelock.Exclusive)
	for errors.Is(err, filelock.ErrLocked) {
		if listens(socket) { // nobody did when this process was started
			return nil, errors.New("another one has been faster")
		}
		if last {
			pid := h.PID()
			return nil, fmt.Errorf("another one (pid %s) is running", pid)
		}
		time.Sleep(10 * time.Millisecond)
		last = ctx.Err() != nil
		lock, err = filelock.Try(h.pid(), filelock.Exclusive)
	}
	if err != nil {
		return nil, noPlace(err)
	}
	if err := os.WriteFile(h.pid(), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		lock.Unlock()
		return nil, noPlace(err)
	}
	return lock, nil
}

// listens reports whether somebody accepts connections at socket, or would if it did not hang: too many wait for that.
func listens(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err == nil {
		conn.Close()
	}
	return err == nil || errors.Is(err, unix.EAGAIN)
}

// open starts the server, and returns what its socket is known by.
func (h Home) open(ctx context.Context, socket string, log *slog.Logger) (*node.Node, fs.FileInfo, error) {
	// It would be taken from whoever listens there: a server in another container, say, whose home has the same path.
	if listens(socket) {
		return nil, nil, fmt.Errorf("another program listens on %s: end it, or %s", socket, moveHome)
	}
	n, err := node.Start(ctx, node.Config{Dir: h.Data(), MoveDir: moveHome, Socket: socket, Logger: log})
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

// isAt reports whether path is the file it was.
func isAt(path string, was fs.FileInfo) bool {
	is, err := os.Lstat(path)
	return err == nil && os.SameFile(is, was)
}

// retire closes the server, unless somebody looks for it at this moment or has done so lately. Nobody finds it before
// it has ended.
func (h Home) retire(n *node.Node, socket string, idle time.Duration) bool {
	lock, err := filelock.Try(h.lock(), filelock.Exclusive)
	if err != nil {
		return false
	}
	defer lock.Unlock()
	info, err := os.Stat(h.lock())
	if err == nil && time.Since(info.ModTime()) < idle || n.IdleFor() < idle {
		return false
	}
	n.Close()
	h.removeDirOf(socket)
	return true
}

// end closes the server for another reason than idleness. While clients are connected, the directory of the socket stays:
// they look for the next server there, and another user must not get that place.
func (h Home) end(n *node.Node, socket string) {
	needed := n.IdleFor() == 0
	n.Close()
	if needed {
		return
	}
	if lock, err := filelock.Try(h.lock(), filelock.Exclusive); err == nil { // or else the next server is on its way
		h.removeDirOf(socket)
		lock.Unlock()
	}
}

// tell writes a word for who waits on the other end of a pipe, and closes it. They may have gone.
func tell(fd int, word string) {
	if fd < 0 {
		return
	}
	pipe := os.NewFile(uintptr(fd), "ready")
	_, _ = pipe.WriteString(word)
	_ = pipe.Close()
}
