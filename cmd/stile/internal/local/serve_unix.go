//go:build unix

package local

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/cmd/stile/internal/filelock"
	"github.com/stilelock/stile/cmd/stile/internal/node"
)

// readyFD is the end of a pipe that tells who started the server that it is ready.
const readyFD = 3

// Serve is the server in the background: it listens on socket until ctx ends or, for as long as idle, nobody has been
// connected and no lease alive.
func (h Home) Serve(ctx context.Context, socket string, idle time.Duration, log *slog.Logger) error {
	closeInherited()
	n, err := node.Start(ctx, node.Config{
		Dir:      h.Data(),
		Patience: patience / 2, // for a predecessor that was told to end a moment ago
		Socket:   socket,
		Logger:   log,
	})
	if err != nil {
		return err
	}
	defer n.Close()
	log.Info("ready", "url", n.URL(), "data", n.Dir(), "pid", os.Getpid())
	tellReady()

	look := time.NewTicker(max(idle/20, time.Millisecond))
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			log.Info("stopping", "reason", context.Cause(ctx))
			return nil
		case <-n.Stopped():
			return errors.New("the server has failed")
		case <-look.C:
		}
		if n.IdleFor() < idle {
			continue
		}
		// Nobody finds us while we have the lock, or until we have ended.
		lock, err := filelock.Try(h.lock(), filelock.Exclusive)
		if err != nil {
			continue // somebody is looking for us right now
		}
		defer lock.Unlock() //nolint:revive // after the node is closed: deferred calls run last to first
		if n.IdleFor() < idle {
			lock.Unlock()
			continue
		}
		log.Info("stopping", "reason", "idle", "for", idle)
		n.Close()
		return nil
	}
}

func tellReady() {
	ready := os.NewFile(readyFD, "ready")
	if ready == nil {
		return
	}
	_, _ = ready.Write([]byte{1}) // whoever waited may have gone
	_ = ready.Close()
}

// closeInherited closes files that whoever started us had open without knowing, a lock of flock(1) or a pipe that
// somebody reads to its end, and that would stay open for as long as we run. Those opened by this program, or by Go's
// runtime, are marked to be closed when another program is run; inherited ones cannot be.
func closeInherited() {
	files, err := os.ReadDir("/dev/fd")
	if err != nil {
		return // there is no such list on this system
	}
	for _, f := range files {
		fd, err := strconv.Atoi(filepath.Base(f.Name()))
		if err != nil || fd <= readyFD {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}
