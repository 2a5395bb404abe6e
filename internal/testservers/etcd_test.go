package testservers

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func put(t *testing.T, cli *clientv3.Client, key, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	if _, err := cli.Put(ctx, key, value); err != nil {
		t.Fatalf("putting %s: %v", key, err)
	}
}

func get(t *testing.T, cli *clientv3.Client, key string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	r, err := cli.Get(ctx, key)
	if err != nil {
		t.Fatalf("getting %s: %v", key, err)
	}
	if len(r.Kvs) == 0 {
		return ""
	}
	return string(r.Kvs[0].Value)
}

// answers reports whether the server answers within half a second.
func answers(t *testing.T, cli *clientv3.Client) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := cli.Get(ctx, "anything")
	return err == nil
}

func TestEtcdGrantsShortLeases(t *testing.T) {
	t.Parallel()
	cli := StartEtcd(t).Client(t)
	lease, err := cli.Grant(t.Context(), 1)
	if err != nil || lease.TTL != 1 {
		t.Errorf("granted %+v, %v; want a TTL of one second", lease, err)
	}
}

func TestEtcdTakesFurtherFlags(t *testing.T) {
	t.Parallel()
	cli := StartEtcd(t, "--max-txn-ops=1").Client(t)
	_, err := cli.Txn(t.Context()).Then(clientv3.OpGet("a"), clientv3.OpGet("b")).Commit()
	if err == nil {
		t.Error("a transaction of two operations was accepted with --max-txn-ops=1")
	}
}

func TestEtcdListensOnASocket(t *testing.T) {
	t.Parallel()
	e := StartEtcd(t)
	put(t, e.Client(t), "k", "v")
	if got := get(t, newClient(t, "unix://"+e.Socket()), "k"); got != "v" {
		t.Errorf("read %q over the socket, want what was written over TCP", got)
	}
}

func TestEtcdPausesAndResumes(t *testing.T) {
	t.Parallel()
	e := StartEtcd(t)
	cli := e.Client(t)
	put(t, cli, "k", "v")
	e.Pause()
	if answers(t, cli) {
		t.Error("a paused server answered")
	}
	e.Resume()
	if got := get(t, cli, "k"); got != "v" {
		t.Errorf("read %q after resuming, want %q", got, "v")
	}
}

func TestEtcdKeepsDataAndAddressWhenRestarted(t *testing.T) {
	t.Parallel()
	e := StartEtcd(t)
	cli := e.Client(t)
	for _, end := range []struct {
		how string
		f   func()
	}{
		{"killed", e.Kill},
		{"stopped", e.Stop},
		{"killed while paused", func() { e.Pause(); e.Kill() }},
		{"killed by Restart", func() {}},
	} {
		put(t, cli, "k", end.how)
		end.f()
		e.Restart()
		if got := get(t, cli, "k"); got != end.how {
			t.Errorf("%s and restarted: read %q, want %q", end.how, got, end.how)
		}
	}
}

func TestEtcdTellsATakenPort(t *testing.T) {
	t.Parallel()
	binary := Binary(t, "etcd")
	members, err := newMembers(t, 1, binary, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
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
	cli := c.Client(t)
	put(t, cli, "k", "v")

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
		if got := get(t, m.Client(t), "k"); got != "v" {
			t.Errorf("%s has %q, want %q", m.Name(), got, "v")
		}
	}
}

func TestWhoLeads(t *testing.T) {
	says := func(member, leader, term uint64) *clientv3.StatusResponse {
		return &clientv3.StatusResponse{
			Header: &etcdserverpb.ResponseHeader{MemberId: member}, Leader: leader, RaftTerm: term,
		}
	}
	for _, c := range []struct {
		name    string
		replies []*clientv3.StatusResponse
		want    int
	}{
		{"all agree", []*clientv3.StatusResponse{says(1, 2, 5), says(2, 2, 5), says(3, 2, 5)}, 1},
		{"one does not answer", []*clientv3.StatusResponse{nil, says(2, 2, 5), says(3, 2, 5)}, 1},
		{"the leader does not answer", []*clientv3.StatusResponse{nil, says(2, 1, 5), says(3, 1, 5)}, -1},
		{"during an election", []*clientv3.StatusResponse{nil, says(2, 0, 6), says(3, 0, 6)}, -1},
		{"an old leader, a new one", []*clientv3.StatusResponse{says(1, 1, 5), says(2, 2, 6), says(3, 2, 6)}, 1},
		{"a new leader, an old one", []*clientv3.StatusResponse{says(1, 1, 6), says(2, 2, 5), says(3, 1, 6)}, 0},
		{"an old leader, an election", []*clientv3.StatusResponse{says(1, 1, 5), says(2, 0, 6), nil}, -1},
		{"nobody answers", []*clientv3.StatusResponse{nil, nil, nil}, -1},
	} {
		if got := leads(c.replies); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestEtcdClusterComesBackFromNothing(t *testing.T) {
	t.Parallel()
	c := StartEtcdCluster(t, 3)
	put(t, c.Client(t), "k", "v")
	for _, m := range c.Members() {
		m.Kill()
	}
	for _, m := range c.Members() {
		m.Start() // none can be ready alone
	}
	for _, m := range c.Members() {
		m.AwaitReady()
	}
	if got := get(t, c.Client(t), "k"); got != "v" {
		t.Errorf("read %q, want %q", got, "v")
	}
}
