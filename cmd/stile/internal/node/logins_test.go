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

func TestLogins_failuresAreLogged(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "node") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	log := new(syncedBuilder)
	n := startWith(t, node.Config{
		Dir: dir, Listen: "127.0.0.1:0", Socket: filepath.Join(dir, "s"), RootPassword: secret,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
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
	if strings.Contains(log.String(), "login") { // it may say that the server is still starting
		t.Errorf("after a successful login: got log %s, want none", log)
	}
	const guess, typo = "a guess", "correct horse batter" // a password in place of the name
	for _, c := range []struct{ url, user, password, want string }{
		{n.URL(), "root", guess, "user=root from=127.0.0.1"},
		{n.URL(), typo, guess, "user=unknown from=127.0.0.1"},
		{n.SocketURL(), "root", guess, "user=root from=socket"},
	} {
		log.Reset()
		if err := login(c.url, c.user, c.password); !errors.Is(err, rpctypes.ErrAuthFailed) {
			t.Errorf("%s with a wrong password: got %v, want ErrAuthFailed", c.user, err)
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `level=WARN msg="login failed" `+c.want) ||
			strings.Contains(text, guess) || strings.Contains(text, typo) {
			t.Errorf("after a failed login: got log %q, want one line with %s", text, c.want)
		}
	}

	// Over HTTP a client cannot pretend to have another address.
	log.Reset()
	status, _, body := pageRequest{
		"POST", "/v3/auth/authenticate",
		"Content-Type: application/json|X-Forwarded-For: 192.0.2.1|Grpc-Metadata-X-Forwarded-For: 192.0.2.2", `{"name":"root","password":"a guess"}`,
	}.send(t, webClient(t, nil, false), strings.Replace(n.URL(), "etcd", "http", 1))
	if status != http.StatusBadRequest || !strings.Contains(log.String(), "user=root from=127.0.0.1") {
		t.Errorf("over HTTP: got %d %s and log %s", status, body, log)
	}
}

func TestCluster_logsLeader(t *testing.T) {
	t.Parallel()
	peers := threePeers(t, "http")
	logs := map[string]*syncedBuilder{}
	var members []node.Config
	for name := range peers {
		logs[name] = new(syncedBuilder)
		cfg := member(t, name, peers)
		cfg.Logger = slog.New(slog.NewTextHandler(logs[name], nil))
		members = append(members, cfg.WithLongWaits(electionOfThree/4))
	}
	leader := func(name string) (leader string) {
		for line := range strings.Lines(logs[name].String()) {
			if _, rest, ok := strings.Cut(line, `level=INFO msg="leader elected" leader=`); ok {
				leader, _, _ = strings.Cut(rest, " term=")
			}
		}
		return leader
	}
	await := func(name string, accept func(leader string) bool) string {
		for end := time.Now().Add(long); ; time.Sleep(time.Millisecond) {
			if l := leader(name); accept(l) {
				return l
			}
			if time.Now().After(end) {
				t.Fatalf("%s: no such leader in its log: %s", name, logs[name])
			}
		}
	}
	nodes := startCluster(t, members...)
	first := await("a", func(leader string) bool { return leader != "" })
	if peers[first] == "" {
		t.Fatalf("got leader %q, which is not a member", first)
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
