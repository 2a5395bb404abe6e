package node_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/stilelock/stile/cmd/stile/internal/node"
)

// The server's process has a client of its own: the user root, if there are users.
func TestClient_isRoot(t *testing.T) {
	t.Parallel()
	for _, password := range []string{"", secret} {
		n := startWith(t, node.Config{Dir: t.TempDir(), RootPassword: password})
		if got := n.UsersRequired(); got != (password != "") {
			t.Errorf("users required: got %v with the password %q", got, password)
		}
		cli, err := n.Client()
		if err != nil {
			t.Fatal(err)
		}
		defer cli.Close()
		if _, err := cli.Put(t.Context(), "k", "v"); err != nil {
			t.Errorf("with the password %q: %v", password, err)
		}
		if _, err := cli.UserList(t.Context()); err != nil {
			t.Errorf("a request that only root may make, with the password %q: %v", password, err)
		}
		n.Close()                                                    // with an open client
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the client may wait for a connection
		if _, err := cli.Get(ctx, "k"); err == nil {
			t.Error("the client reads after the server was closed")
		}
		cancel()
	}
}

// If root has another password, the client is refused, and the log says where the attempt came from.
func TestClient_otherPassword(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startWith(t, node.Config{Dir: dir, RootPassword: secret}).Close()
	var log lockedBuffer
	n := startWith(t, node.Config{Dir: dir, RootPassword: "another", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	_, err := n.Client()
	if !errors.Is(err, rpctypes.ErrAuthFailed) || !strings.Contains(err.Error(), "--root-password-file") ||
		strings.Contains(err.Error(), "another") {
		t.Errorf("got %v, want %v with the flag and without the password", err, rpctypes.ErrAuthFailed)
	}
	if text := log.String(); !strings.Contains(text, `from="this process"`) || strings.Contains(text, "another") {
		t.Errorf("the log does not say where the login came from: %s", text)
	}
}

// lockedBuffer collects what is logged.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
