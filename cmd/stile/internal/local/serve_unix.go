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

// Serve is the server in the background: it listens on socket until ctx ends or, for as long as idle, nobody has looked
// for it or been connected and no lease been alive. When it is ready it writes a byte to the file ready, which it has
// inherited; if ready is negative it tells nobody.
func (h Home) Serve(ctx context.Context, socket string, idle time.Duration, ready int, log *slog.Logger) error {
	closeInherited(ready)
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
	if ready >= 0 {
		tell(ready)
	}

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
			if n.IdleFor() >= idle && h.retire(n, idle) {
				log.Info("stopped", "reason", "idle for "+idle.String())
				return nil
			}
		}
	}
}

// retire closes the server, unless somebody looks for it at this moment or has done so lately. Nobody finds it before
// it has ended.
func (h Home) retire(n *node.Node, idle time.Duration) bool {
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
	return true
}

// tell writes a byte for who waits on the other end of a pipe. They may have gone.
func tell(fd int) {
	pipe := os.NewFile(uintptr(fd), "ready")
	_, _ = pipe.Write([]byte{1})
	_ = pipe.Close()
}

// closeInherited closes files that whoever started us had open without knowing, a lock of flock(1) or a pipe that
// somebody reads to its end, and that would stay open for as long as we run. Those opened by this program, or by Go's
// runtime, are marked to be closed when another program is run; inherited ones cannot be.
func closeInherited(keep int) {
	files, err := os.ReadDir("/dev/fd")
	if err != nil {
		return // there is no such list on this system
	}
	for _, f := range files {
		fd, err := strconv.Atoi(filepath.Base(f.Name()))
		if err != nil || fd <= 2 || fd == keep {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}
