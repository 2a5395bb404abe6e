package node_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile/cmd/stile/internal/node"
	"github.com/stilelock/stile/cmd/stile/internal/node/testcert"
	"github.com/stilelock/stile/internal/testservers"
)

const secret = "correct horse battery"

// userClient connects with a user and a password.
func userClient(t *testing.T, n *node.Node, user, password string) *clientv3.Client {
	t.Helper()
	cli, err := clientv3.New(clientv3.Config{
		Endpoints: []string{strings.TrimPrefix(n.URL(), "etcd://")}, Username: user, Password: password,
		DialTimeout: long, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Close() })
	return cli
}

func TestUsers_requiredWithRootPassword(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startWith(t, node.Config{Dir: dir, RootPassword: secret})
	if _, err := client(t, n.URL()).Put(t.Context(), "k", "v"); !errors.Is(err, rpctypes.ErrUserEmpty) {
		t.Errorf("without a user: got %v, want %v", err, rpctypes.ErrUserEmpty)
	}
	rootClient := userClient(t, n, "root", secret)
	for _, err := range []error{
		second(rootClient.UserAdd(t.Context(), "ann", "anns")),
		second(rootClient.RoleAdd(t.Context(), "jobs")),
		second(rootClient.RoleGrantPermission(t.Context(), "jobs", "jobs/", clientv3.GetPrefixRangeEnd("jobs/"),
			clientv3.PermissionType(clientv3.PermReadWrite))),
		second(rootClient.UserGrantRole(t.Context(), "ann", "jobs")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ann := userClient(t, n, "ann", "anns")
	if _, err := ann.Put(t.Context(), "jobs/a", "v"); err != nil {
		t.Errorf("ann, allowed: %v", err)
	}
	if _, err := ann.Put(t.Context(), "other", "v"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("ann, not allowed: got %v, want %v", err, rpctypes.ErrPermissionDenied)
	}

	// The next start finds authentication enabled.
	n.Close()
	var log strings.Builder
	warnings := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	n = startWith(t, node.Config{Dir: dir, RootPassword: secret, Logger: warnings})
	if got, err := userClient(t, n, "root", secret).Get(t.Context(), "jobs/a"); err != nil || got.Count != 1 {
		t.Errorf("after a restart: got %v, %v; want one key", got, err)
	}
	if log.Len() > 0 {
		t.Errorf("after a restart: got warnings %s, want none", &log)
	}

	// Another password is ignored, with a warning.
	n.Close()
	n = startWith(t, node.Config{Dir: dir, RootPassword: "new", Logger: warnings})
	if _, err := userClient(t, n, "root", secret).Get(t.Context(), "jobs/a"); err != nil {
		t.Errorf("with the old password: %v", err)
	}
	if !strings.Contains(log.String(), "stays unchanged") || !strings.Contains(log.String(), "etcdctl user passwd") {
		t.Errorf("with another password: got log %s, want a warning", &log)
	}

	// Without a password in the configuration, users stay required.
	n.Close()
	n = startWith(t, node.Config{Dir: dir})
	if _, err := client(t, n.URL()).Put(t.Context(), "k", "v"); !errors.Is(err, rpctypes.ErrUserEmpty) {
		t.Errorf("without a user, after a start without a password: got %v, want %v", err, rpctypes.ErrUserEmpty)
	}
}

func TestUsers_existingRootGetsPassword(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startWith(t, node.Config{Dir: dir})
	if _, err := client(t, n.URL()).UserAdd(t.Context(), "root", "old"); err != nil {
		t.Fatal(err)
	}
	n.Close()
	n = startWith(t, node.Config{Dir: dir, RootPassword: secret})
	if _, err := userClient(t, n, "root", secret).Put(t.Context(), "k", "v"); err != nil {
		t.Error(err)
	}
}

func TestUsers_certificate(t *testing.T) {
	t.Parallel()
	ca := testcert.NewAuthority(t)
	own := ca.Issue("server", testcert.Spec{Hosts: loopbackHosts})
	admin, ann := ca.Issue("root", testcert.Spec{CommonName: "root"}), ca.Issue("ann", testcert.Spec{CommonName: "ann"})
	n := startWith(t, node.Config{
		TLS: node.TLS{Cert: own.Cert, Key: own.Key, ClientCA: ca.File}, RootPassword: secret,
	})
	if _, err := secureClient(t, n, ca.Client(&admin)).Put(t.Context(), "k", "v"); err != nil {
		t.Errorf("root by certificate: %v", err)
	}
	if _, err := secureClient(t, n, ca.Client(&ann)).Put(t.Context(), "k", "v"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("unknown user by certificate: got %v, want %v", err, rpctypes.ErrPermissionDenied)
	}
}

func TestIdleFor_users(t *testing.T) {
	t.Parallel()
	n := startWith(t, node.Config{RootPassword: secret})
	cli := userClient(t, n, "root", secret)
	lease, err := cli.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	cli.Close()
	time.Sleep(20 * time.Millisecond) // long enough for IdleFor to be positive
	if idle := n.IdleFor(); idle > 0 {
		t.Errorf("idle for %v with a lease alive", idle)
	}
	cli = userClient(t, n, "root", secret)
	if _, err := cli.Revoke(t.Context(), lease.ID); err != nil {
		t.Fatal(err)
	}
	cli.Close()
	for end := time.Now().Add(long); n.IdleFor() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never idle after all clients have gone")
		}
	}
}

// second returns the error of a call with two results.
func second[T any](_ T, err error) error { return err }

// A client that connects before users are set up is refused too.
func TestUsers_noClientBeforeRequired(t *testing.T) {
	t.Parallel()
	address := testservers.FreeAddress(t)
	cli := client(t, "etcd://"+address)
	required := make(chan error, 1)
	go func() {
		for {
			// The error is a refused connection, then that of the gate, and at last that a user is
			// required.
			if _, err := cli.Put(t.Context(), "k", "v"); err == nil || errors.Is(err, rpctypes.ErrUserEmpty) || t.Context().Err() != nil {
				required <- err
				return
			}
		}
	}()
	startWith(t, node.Config{Listen: address, RootPassword: secret})
	if err := <-required; !errors.Is(err, rpctypes.ErrUserEmpty) {
		t.Errorf("an anonymous client got %v, want it refused until it gets %v", err, rpctypes.ErrUserEmpty)
	}
}

// etcd cannot store such a password.
func TestUsers_passwordTooLong(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	long := strings.Repeat("ä", 36) + "x" // 73 bytes
	refused(t, node.Config{Dir: dir, Listen: "127.0.0.1:0", RootPassword: long}, "--root-password-file", "longer than 72 bytes")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data directory was created: %v", err)
	}
	n := startWith(t, node.Config{Dir: dir, RootPassword: long[:72]})
	if _, err := userClient(t, n, "root", long[:72]).Put(t.Context(), "k", "v"); err != nil {
		t.Errorf("with 72 bytes: %v", err)
	}
}

func TestUsers_http(t *testing.T) {
	t.Parallel()
	n := startWith(t, node.Config{RootPassword: secret})
	ask := func(path, token, body string) (status int, fields map[string]any) {
		t.Helper()
		headers := "Content-Type: application/json"
		if token != "" {
			headers += "|Authorization: " + token
		}
		status, _, text := pageRequest{"POST", path, headers, body}.
			send(t, webClient(t, nil, false), strings.Replace(n.URL(), "etcd", "http", 1))
		if err := json.Unmarshal([]byte(text), &fields); err != nil {
			t.Fatalf("%s: %s: %v", path, text, err)
		}
		return status, fields
	}
	if status, fields := ask("/v3/lease/grant", "", `{"TTL":"600"}`); status != http.StatusBadRequest {
		t.Errorf("without a user: got %d %v, want it refused", status, fields)
	}
	_, login := ask("/v3/auth/authenticate", "", `{"name":"root","password":"`+secret+`"}`)
	token, _ := login["token"].(string)
	_, lease := ask("/v3/lease/grant", token, `{"TTL":"600"}`)
	id, _ := lease["ID"].(string)
	if status, fields := ask("/v3/lock/lock", token, `{"name":"ZGVtbw==","lease":"`+id+`"}`); status != http.StatusOK || id == "" {
		t.Errorf("root with lease %q: got %d %v, want 200", id, status, fields)
	}
	keys, err := userClient(t, n, "root", secret).Get(t.Context(), "demo/", clientv3.WithPrefix())
	if err != nil || keys.Count != 1 {
		t.Errorf("got keys %v, %v; want one", keys, err)
	}
}
