package node_test

import (
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile/cmd/stile/internal/node"
)

func TestFailedLoginsAreLogged(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "node") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	said := new(syncedBuilder)
	n := startWith(t, node.Config{
		Dir: dir, Listen: "127.0.0.1:0", Socket: filepath.Join(dir, "s"), RootPassword: secret,
		Logger: slog.New(slog.NewTextHandler(said, nil)),
	})
	login := func(url, user, password string) error {
		cli, err := clientv3.New(clientv3.Config{
			Endpoints: []string{strings.TrimPrefix(strings.TrimPrefix(url, "etcd://"), "etcd+")}, DialTimeout: long, Logger: zap.NewNop(),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer cli.Close()
		_, err = cli.Authenticate(t.Context(), user, password)
		return err
	}
	if err := login(n.URL(), "root", secret); err != nil {
		t.Fatal(err)
	}
	if said.String() != "" {
		t.Errorf("said of a login: %s", said)
	}
	const guess, typo = "a guess", "correct horse batter" // typed where the name belongs
	for _, c := range []struct{ url, user, password, want string }{
		{n.URL(), "root", guess, "user=root from=127.0.0.1"},
		{n.URL(), typo, guess, "user=unknown from=127.0.0.1"},
		{n.SocketURL(), "root", guess, "user=root from=socket"},
	} {
		said.Reset()
		if err := login(c.url, c.user, c.password); !errors.Is(err, rpctypes.ErrAuthFailed) {
			t.Errorf("%s with a guess: %v", c.user, err)
		}
		if text := said.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `level=WARN msg="login failed" `+c.want) ||
			strings.Contains(text, guess) || strings.Contains(text, typo) {
			t.Errorf("said of a failed login: %q, want %s", text, c.want)
		}
	}

	// Over HTTP nobody can pass for another.
	said.Reset()
	status, _, body := pageRequest{
		"POST", "/v3/auth/authenticate",
		"Content-Type: application/json|X-Forwarded-For: 192.0.2.1|Grpc-Metadata-X-Forwarded-For: 192.0.2.2", `{"name":"root","password":"a guess"}`,
	}.send(t, webClient(t, nil, false), strings.Replace(n.URL(), "etcd", "http", 1))
	if status != http.StatusBadRequest || !strings.Contains(said.String(), "user=root from=127.0.0.1") {
		t.Errorf("over HTTP: %d %s; said: %s", status, body, said)
	}
}

func TestMembersLogWhoLeads(t *testing.T) {
	t.Parallel()
	peers := threePeers(t, "http")
	said := map[string]*syncedBuilder{}
	var members []node.Config
	for name := range peers {
		said[name] = new(syncedBuilder)
		cfg := member(t, name, peers)
		cfg.Logger = slog.New(slog.NewTextHandler(said[name], nil))
		members = append(members, cfg.WithLongWaits(electionOfThree/4))
	}
	leader := func(name string) (leader string) {
		for line := range strings.Lines(said[name].String()) {
			if _, rest, ok := strings.Cut(line, `level=INFO msg="leader elected" leader=`); ok {
				leader, _, _ = strings.Cut(rest, " term=")
			}
		}
		return leader
	}
	await := func(name string, what func(leader string) bool) string {
		for end := time.Now().Add(long); ; time.Sleep(time.Millisecond) {
			if l := leader(name); what(l) {
				return l
			}
			if time.Now().After(end) {
				t.Fatalf("%s says: %s", name, said[name])
			}
		}
	}
	nodes := startCluster(t, members...)
	first := await("a", func(leader string) bool { return leader != "" })
	if peers[first] == "" {
		t.Fatalf("%q leads, which is none of them", first)
	}
	nodes[first].Close()
	for name := range peers {
		if name != first {
			await(name, func(leader string) bool { return leader != "" && leader != first })
		}
	}
}

// syncedBuilder is a strings.Builder for a log.
type syncedBuilder struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncedBuilder) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncedBuilder) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *syncedBuilder) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Reset()
}
