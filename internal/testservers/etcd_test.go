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

// A pair is a key and its value, as etcd's JSON has them: in base64.
type pair struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value,omitempty"`
}

// persist makes a request until it is answered: a cluster that has just lost its leader refuses.
func persist(t *testing.T, e *Etcd, method string, request, reply any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
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
	persist(t, e, "kv/put", pair{[]byte(key), []byte(value)}, &struct{}{})
}

func get(t *testing.T, e *Etcd, key string) string {
	t.Helper()
	var reply struct {
		Kvs []pair `json:"kvs"`
	}
	persist(t, e, "kv/range", pair{Key: []byte(key)}, &reply)
	if len(reply.Kvs) == 0 {
		return ""
	}
	return string(reply.Kvs[0].Value)
}

// answers reports whether the server answers within half a second.
func answers(t *testing.T, e *Etcd) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	return e.call(ctx, "kv/range", pair{Key: []byte("anything")}, &struct{}{}) == nil
}

func TestEtcdGrantsShortLeases(t *testing.T) {
	t.Parallel()
	var lease struct {
		TTL string `json:"TTL"`
	}
	persist(t, StartEtcd(t), "lease/grant", map[string]int{"TTL": 1}, &lease)
	if lease.TTL != "1" {
		t.Errorf("granted a TTL of %q, want one second", lease.TTL)
	}
}

func TestEtcdTakesFurtherFlags(t *testing.T) {
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
		t.Errorf("a transaction of two operations with --max-txn-ops=1: %v", err)
	}
}

func TestEtcdListensOnASocket(t *testing.T) {
	t.Parallel()
	e := StartEtcd(t)
	client := http.Client{Timeout: longEnough, Transport: &http.Transport{
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
		t.Errorf("over the socket it says %s, %v; want what was written over TCP", text, err)
	}
}

func TestEtcdPausesAndResumes(t *testing.T) {
	t.Parallel()
	e := StartEtcd(t)
	put(t, e, "k", "v")
	e.Pause()
	if answers(t, e) {
		t.Error("a paused server answered")
	}
	e.Resume()
	if got := get(t, e, "k"); got != "v" {
		t.Errorf("read %q after resuming, want %q", got, "v")
	}
}

func TestEtcdKeepsDataAndAddressWhenRestarted(t *testing.T) {
	t.Parallel()
	e := StartEtcd(t)
	for _, end := range []struct {
		how string
		f   func()
	}{
		{"killed", e.Kill},
		{"stopped", e.Stop},
		{"killed while paused", func() { e.Pause(); e.Kill() }},
		{"killed by Restart", func() {}},
	} {
		put(t, e, "k", end.how)
		end.f()
		e.Restart()
		if got := get(t, e, "k"); got != end.how {
			t.Errorf("%s and restarted: read %q, want %q", end.how, got, end.how)
		}
	}
}

func TestEtcdTellsATakenPort(t *testing.T) {
	t.Parallel()
	binary := Binary(t, "etcd")
	members, err := newMembers(1, binary, nil)
	if err != nil {
		t.Fatal(err)
	}
	bind(t, members...)
	l, err := net.Listen("tcp", members[0].client)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := launch(members); !errors.Is(err, errPortTaken) {
		t.Errorf("launching at a taken port: %v", err)
	}
}

func TestEtcdClusterSurvivesItsLeader(t *testing.T) {
	t.Parallel()
	c := StartEtcdCluster(t, 3, "--heartbeat-interval=100", "--election-timeout=1000") // it elects twice
	put(t, c.Members()[0], "k", "v")

	first := c.Leader(t)
	first.Pause()
	second := c.Leader(t)
	if second == first {
		t.Fatalf("%s is paused and still said to lead", first.Name())
	}
	first.Resume()

	second.Kill()
	third := c.Leader(t)
	if third == second {
		t.Fatalf("%s is dead and said to lead", second.Name())
	}
	second.Restart()

	for _, m := range c.Members() {
		if got := get(t, m, "k"); got != "v" {
			t.Errorf("%s has %q, want %q", m.Name(), got, "v")
		}
	}
}

func TestWhoLeads(t *testing.T) {
	says := func(member, leader, term uint64) *etcdStatus {
		status := &etcdStatus{Leader: leader, RaftTerm: term}
		status.Header.MemberID = member
		return status
	}
	for _, c := range []struct {
		name    string
		replies []*etcdStatus
		want    int
	}{
		{"all agree", []*etcdStatus{says(1, 2, 5), says(2, 2, 5), says(3, 2, 5)}, 1},
		{"one does not answer", []*etcdStatus{nil, says(2, 2, 5), says(3, 2, 5)}, 1},
		{"the leader does not answer", []*etcdStatus{nil, says(2, 1, 5), says(3, 1, 5)}, -1},
		{"during an election", []*etcdStatus{nil, says(2, 0, 6), says(3, 0, 6)}, -1},
		{"an old leader, a new one", []*etcdStatus{says(1, 1, 5), says(2, 2, 6), says(3, 2, 6)}, 1},
		{"a new leader, an old one", []*etcdStatus{says(1, 1, 6), says(2, 2, 5), says(3, 1, 6)}, 0},
		{"an old leader, an election", []*etcdStatus{says(1, 1, 5), says(2, 0, 6), nil}, -1},
		{"nobody answers", []*etcdStatus{nil, nil, nil}, -1},
	} {
		if got := leads(c.replies); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestEtcdClusterComesBackFromNothing(t *testing.T) {
	t.Parallel()
	c := StartEtcdCluster(t, 3)
	put(t, c.Members()[0], "k", "v")
	for _, m := range c.Members() {
		m.Kill()
	}
	for _, m := range c.Members() {
		m.Start() // none can be ready alone
	}
	for _, m := range c.Members() {
		m.AwaitReady()
	}
	if got := get(t, c.Members()[0], "k"); got != "v" {
		t.Errorf("read %q, want %q", got, "v")
	}
}
