package testservers

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A pair is a key and its value. JSON encodes them in base64, as etcd's gateway does.
type pair struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value,omitempty"`
}

// retryUntilOK repeats a request until it succeeds: a cluster that has just lost its leader returns
// errors.
func retryUntilOK(t *testing.T, e *Etcd, method string, request, reply any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), processTimeout)
	defer cancel()
	for {
		err := e.call(ctx, method, request, reply)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", method, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func put(t *testing.T, e *Etcd, key, value string) {
	t.Helper()
	retryUntilOK(t, e, "kv/put", pair{[]byte(key), []byte(value)}, &struct{}{})
}

func get(t *testing.T, e *Etcd, key string) string {
	t.Helper()
	var reply struct {
		Kvs []pair `json:"kvs"`
	}
	retryUntilOK(t, e, "kv/range", pair{Key: []byte(key)}, &reply)
	if len(reply.Kvs) == 0 {
		return ""
	}
	return string(reply.Kvs[0].Value)
}

// answers reports whether the server replies within half a second.
func answers(t *testing.T, e *Etcd) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	return e.call(ctx, "kv/range", pair{Key: []byte("anything")}, &struct{}{}) == nil
}

func TestEtcd_grantsShortLeases(t *testing.T) {
	t.Parallel()
	var lease struct {
		TTL string `json:"TTL"`
	}
	retryUntilOK(t, StartEtcd(t), "lease/grant", map[string]int{"TTL": 1}, &lease)
	if lease.TTL != "1" {
		t.Errorf("got a TTL of %q, want one second", lease.TTL)
	}
}

func TestEtcd_acceptsAdditionalFlags(t *testing.T) {
	t.Parallel()
	e := StartEtcd(t, "--max-txn-ops=1")
	ask := func(keys ...string) error {
		var ops []any
		for _, key := range keys {
			ops = append(ops, map[string]any{"request_range": pair{Key: []byte(key)}})
		}
		return e.call(t.Context(), "kv/txn", map[string]any{"success": ops}, &struct{}{})
	}
	if err := ask("a"); err != nil {
		t.Errorf("a transaction of one operation: %v", err)
	}
	if err := ask("a", "b"); err == nil || !strings.Contains(err.Error(), "too many operations") {
		t.Errorf("a transaction of two operations with --max-txn-ops=1: got %v, want an error", err)
	}
}

func TestEtcd_listensOnSocket(t *testing.T) {
	t.Parallel()
	e := StartEtcd(t)
	client := http.Client{Timeout: processTimeout, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", e.Socket())
		},
		DisableKeepAlives: true,
	}}
	put(t, e, "k", "v")
	res, err := client.Post("http://etcd/v3/kv/range", "application/json", strings.NewReader(`{"key":"aw=="}`)) // k
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(text), `"value":"dg=="`) { // v
		t.Errorf("over the socket: got %s, %v; want the value written over TCP", text, err)
	}
}

func TestEtcd_pauseAndResume(t *testing.T) {
	t.Parallel()
	e := StartEtcd(t)
	put(t, e, "k", "v")
	e.Pause()
	if answers(t, e) {
		t.Error("a paused server replied")
	}
	e.Resume()
	if got := get(t, e, "k"); got != "v" {
		t.Errorf("read %q after resuming, want %q", got, "v")
	}
}

func TestEtcd_keepsDataAcrossRestarts(t *testing.T) {
	t.Parallel()
	e := StartEtcd(t)
	for _, end := range []struct {
		exitReason string
		f          func()
	}{
		{"killed", e.Kill},
		{"stopped", e.Stop},
		{"killed while paused", func() { e.Pause(); e.Kill() }},
		{"killed by Restart", func() {}},
	} {
		put(t, e, "k", end.exitReason)
		end.f()
		e.Restart()
		if got := get(t, e, "k"); got != end.exitReason {
			t.Errorf("%s and restarted: read %q, want %q", end.exitReason, got, end.exitReason)
		}
	}
}

func TestEtcd_reportsPortInUse(t *testing.T) {
	t.Parallel()
	binary := Binary(t, "etcd")
	members, err := newMembers(1, binary, nil)
	if err != nil {
		t.Fatal(err)
	}
	closeWithTest(t, members...)
	l, err := net.Listen("tcp", members[0].client)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := launch(members); !errors.Is(err, errPortTaken) {
		t.Errorf("launching with a port in use: got %v, want errPortTaken", err)
	}
}

func TestEtcdCluster_survivesLossOfLeader(t *testing.T) {
	t.Parallel()
	c := StartEtcdCluster(t, 3, "--heartbeat-interval=100", "--election-timeout=1000") // shorter than the default, because the test waits for two elections
	put(t, c.Members()[0], "k", "v")

	first := c.Leader(t)
	first.Pause()
	second := c.Leader(t)
	if second == first {
		t.Fatalf("Leader returned %s, which is paused", first.Name())
	}
	first.Resume()

	second.Kill()
	third := c.Leader(t)
	if third == second {
		t.Fatalf("Leader returned %s, which was killed", second.Name())
	}
	second.Restart()

	for _, m := range c.Members() {
		if got := get(t, m, "k"); got != "v" {
			t.Errorf("%s: got %q, want %q", m.Name(), got, "v")
		}
	}
}

func TestLeaderIndex(t *testing.T) {
	statusOf := func(member, leader, term uint64) *etcdStatus {
		status := &etcdStatus{Leader: leader, RaftTerm: term}
		status.Header.MemberID = member
		return status
	}
	for _, c := range []struct {
		name    string
		replies []*etcdStatus
		want    int
	}{
		{"all agree", []*etcdStatus{statusOf(1, 2, 5), statusOf(2, 2, 5), statusOf(3, 2, 5)}, 1},
		{"one member does not reply", []*etcdStatus{nil, statusOf(2, 2, 5), statusOf(3, 2, 5)}, 1},
		{"the leader does not reply", []*etcdStatus{nil, statusOf(2, 1, 5), statusOf(3, 1, 5)}, -1},
		{"during an election", []*etcdStatus{nil, statusOf(2, 0, 6), statusOf(3, 0, 6)}, -1},
		{"an old leader and a new one", []*etcdStatus{statusOf(1, 1, 5), statusOf(2, 2, 6), statusOf(3, 2, 6)}, 1},
		{"a new leader and an old one", []*etcdStatus{statusOf(1, 1, 6), statusOf(2, 2, 5), statusOf(3, 1, 6)}, 0},
		{"an old leader and an election", []*etcdStatus{statusOf(1, 1, 5), statusOf(2, 0, 6), nil}, -1},
		{"no member replies", []*etcdStatus{nil, nil, nil}, -1},
	} {
		if got := leaderIndex(c.replies); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestEtcdCluster_restartsAfterAllMembersWereKilled(t *testing.T) {
	t.Parallel()
	c := StartEtcdCluster(t, 3)
	put(t, c.Members()[0], "k", "v")
	for _, m := range c.Members() {
		m.Kill()
	}
	for _, m := range c.Members() {
		m.Start() // a single member cannot become ready
	}
	for _, m := range c.Members() {
		m.AwaitReady()
	}
	if got := get(t, c.Members()[0], "k"); got != "v" {
		t.Errorf("read %q, want %q", got, "v")
	}
}
