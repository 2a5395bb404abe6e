//go:build unix

package storeurl

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/filelock"
)

// localDir sets the state directory, and returns the directory of the local server, which does not exist.
func localDir(t *testing.T) string {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	return filepath.Join(state, "stile", "local")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOpenLocal_none(t *testing.T) {
	dir := localDir(t)
	fails(t.Context(), t, "local:", "no local server runs in "+dir, "STILE_URL=local: stile ls")
	if _, err := os.Lstat(filepath.Dir(dir)); err == nil {
		t.Error("Open has created the state directory")
	}
}

func TestOpenLocal_refusesDirectory(t *testing.T) {
	t.Run("readable by its group", func(t *testing.T) {
		dir := localDir(t)
		must(t, os.MkdirAll(dir, 0o700))
		must(t, os.Chmod(dir, 0o750))
		fails(t.Context(), t, "local:", dir+" is accessible to other users", "chmod 700")
	})
	const other = 123_456 // no user of this machine
	for name, path := range map[string]string{"of another user": ".", "in a directory of another user": ".."} {
		t.Run(name, func(t *testing.T) {
			if os.Getuid() != 0 {
				t.Skip("SKIPPED: this test needs root")
			}
			dir := localDir(t)
			must(t, os.MkdirAll(dir, 0o700))
			must(t, os.Chown(filepath.Join(dir, path), other, other))
			fails(t.Context(), t, "local:", filepath.Join(dir, path)+" belongs to user 123456", "XDG_STATE_HOME")
		})
	}
}

// While the server starts, Open waits for it, but not longer than ctx.
func TestOpenLocal_canceled(t *testing.T) {
	dir := localDir(t)
	must(t, os.MkdirAll(dir, 0o700))
	starting, err := filelock.Try(filepath.Join(dir, "lock"), filelock.Exclusive)
	must(t, err)
	defer starting.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := fails(ctx, t, "local:", "gave up waiting for the local server"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want context.DeadlineExceeded", err)
	}
}

func TestOpenLocal_unresponsive(t *testing.T) {
	before := openTimeout
	openTimeout = 200 * time.Millisecond
	defer func() { openTimeout = before }()
	dir := localDir(t)
	must(t, os.MkdirAll(dir, 0o700))
	socket := filepath.Join(dir, "s")
	if len(socket) > 100 {
		t.Skip("SKIPPED: the path of the temporary directory is too long for a socket")
	}
	server, err := net.Listen("unix", socket)
	must(t, err)
	defer server.Close()
	must(t, os.Symlink(socket, filepath.Join(dir, "socket")))
	pid, err := filelock.Try(filepath.Join(dir, "pid"), filelock.Exclusive)
	must(t, err)
	defer pid.Unlock()
	must(t, os.WriteFile(filepath.Join(dir, "pid"), []byte("4321\n"), 0o600))
	err = fails(t.Context(), t, "local:", "the local server (pid 4321) runs but does not answer", "kill -CONT 4321")
	if strings.Contains(err.Error(), socket) {
		t.Errorf("the error names the socket: %v", err)
	}
}
