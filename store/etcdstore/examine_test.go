package etcdstore_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// examinedTTL is the TTL for which the tests examine servers.
const examinedTTL = 15 * time.Second

// examinedStore returns a store that gets pages of members without TLS. shift is by how much the clocks of
// the members are ahead.
func examinedStore(t *testing.T, cli *clientv3.Client, prefix string, shift func() time.Duration) *etcdstore.Store {
	t.Helper()
	st, err := etcdstore.New(cli, &etcdstore.Options{
		Prefix: prefix,
		Pages: func(ctx context.Context, endpoint, path string) (*http.Response, error) {
			get, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+strings.TrimPrefix(endpoint, "http://")+path, nil)
			if err != nil {
				return nil, err
			}
			answer, err := http.DefaultTransport.RoundTrip(get)
			if err == nil && shift != nil {
				date, e := http.ParseTime(answer.Header.Get("Date"))
				if e != nil {
					return nil, e
				}
				answer.Header.Set("Date", date.Add(shift()).UTC().Format(http.TimeFormat))
			}
			return answer, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// examined returns the findings about a store.
func examined(t *testing.T, st *etcdstore.Store) []store.Finding {
	t.Helper()
	found, err := st.Examine(t.Context(), examinedTTL)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// expectFinding checks that there is exactly one finding with this id, with this severity and text.
func expectFinding(t *testing.T, found []store.Finding, id string, severity store.Severity, text string) {
	t.Helper()
	var with []store.Finding
	for _, f := range found {
		if f.ID == id {
			with = append(with, f)
		}
	}
	if len(with) != 1 || with[0].Severity != severity || !strings.Contains(with[0].What, text) {
		t.Errorf("got %+v for %s, want one finding that is %v and contains %q", with, id, severity, text)
		return
	}
	if f := with[0]; (f.Advice == "") != (severity == store.Fine) || severity == store.Risk && f.Promise == "" {
		t.Errorf("finding without advice or promise: %+v", f)
	}
}

// A server without problems. What depends on the speed of the machine is not checked. Its version is read;
// the rule about versions is tested in package examine and below.
func TestExamine_fine(t *testing.T) {
	t.Parallel()
	found := examined(t, examinedStore(t, server(t).Client(t), "", nil))
	for id, text := range map[string]string{
		"etcd-imitation": "it is an etcd", "etcd-proxy": "no etcd grpc-proxy", "etcd-clusters": "one cluster",
		"etcd-quorum": "one member", "etcd-version": "etcd 3.7.", "etcd-alarm": "no alarm", "etcd-quota": "less than 80 %",
		"etcd-compaction": "revisions", "etcd-rights": "may read and write",
	} {
		expectFinding(t, found, id, store.Fine, text)
	}
	for _, f := range found {
		if f.ID == "etcd-metrics" {
			t.Errorf("got %+v", f)
		}
	}
}

// Versions that have known bugs cannot be had here, so the rule is tested by itself.
func TestExamine_versions(t *testing.T) {
	for version, want := range map[string]store.Severity{
		"3.4.30": store.Risk, "3.5.0": store.Risk, "3.5.12": store.Risk, "3.5.23": store.Risk, "3.6.4": store.Risk, "3.6.5": store.Risk,
		"3.5.24": store.Attention, "3.6.6": store.Attention, "3.7.0": store.Attention,
		"3.5.33": store.Fine, "3.6.14": store.Fine, "3.7.3": store.Fine, "3.8.0-alpha.0": store.Fine,
	} {
		if got := etcdstore.JudgeVersion(version); got.Severity != want {
			t.Errorf("%s: got %+v", version, got)
		}
	}
	if got := etcdstore.JudgeVersion("3.5.12").What; !strings.Contains(got, "#15247") {
		t.Errorf("got %q, want the bug of old leaders that revoke leases", got)
	}
}

func TestExamine_proxy(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	for name, advertised := range map[string]string{"": "", "advertised": "127.0.0.1:23790"} {
		address := testservers.FreeAddress(t)
		proxy := exec.Command(testservers.Binary(t, "etcd"), "grpc-proxy", "start", "--endpoints="+e.Endpoint(),
			"--listen-addr="+address, "--advertise-client-url="+advertised)
		if err := proxy.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = proxy.Process.Kill()
			_ = proxy.Wait()
		})
		cli := connect(t, address)
		eventually(t, "the proxy answers", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := cli.Get(ctx, "x")
			return err == nil
		})
		t.Log(name)
		expectFinding(t, examined(t, newStore(t, cli, "")), "etcd-proxy", store.Risk, "grpc-proxy")
	}
}

// imitation answers as kine does: it fills in only the revision in the headers (k3s-io/kine,
// pkg/server/limited.go). kine itself is not among the test servers.
type imitation struct {
	pb.UnimplementedKVServer
}

func (imitation) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: 7}}, nil
}

func TestExamine_imitation(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pb.RegisterKVServer(s, imitation{})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	expectFinding(t, examined(t, newStore(t, connect(t, l.Addr().String()), "")), "etcd-imitation", store.Risk, "kine")
}

func TestExamine_twoClusters(t *testing.T) {
	t.Parallel()
	cli := connect(t, startEtcd(t).Endpoint(), startEtcd(t).Endpoint())
	expectFinding(t, examined(t, newStore(t, cli, "")), "etcd-clusters", store.Risk, "2 clusters")
}

// A member that is down is found, also if the URL names only another one.
func TestExamine_quorum(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3)
	leader := cluster.Leader(t)
	one := newStore(t, connect(t, leader.Endpoint()), "")
	expectFinding(t, examined(t, one), "etcd-quorum", store.Fine, "all 3 members answer; 1 may fail")
	others := slices.DeleteFunc(cluster.Members(), func(m *testservers.Etcd) bool { return m == leader })
	others[0].Kill()
	expectFinding(t, examined(t, one), "etcd-quorum", store.Attention, "1 of 3 members do not answer here; if 1 more fail")
	all := newStore(t, connect(t, cluster.Endpoints()...), "")
	found := examined(t, all)
	expectFinding(t, found, "etcd-quorum", store.Attention, "1 of 3 members")
	expectFinding(t, found, "etcd-answer", store.Attention, "does not answer")
}

func TestExamine_evenNumber(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 2)
	expectFinding(t, examined(t, newStore(t, connect(t, cluster.Endpoints()...), "")), "etcd-quorum", store.Attention, "2 members tolerate no more failures than 1")
}

func TestExamine_leaderChanges(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3)
	cli := connect(t, cluster.Endpoints()...)
	leaderOf := func() (id uint64, endpoint string) {
		for _, e := range cluster.Endpoints() {
			status, err := cli.Status(t.Context(), e)
			if err == nil && status.Leader == status.Header.MemberId {
				return status.Leader, e
			}
		}
		return 0, ""
	}
	for range 4 {
		var old uint64
		eventually(t, "there is a leader that hands over", func() bool {
			id, endpoint := leaderOf()
			if id == 0 {
				return false
			}
			list, err := cli.MemberList(t.Context())
			if err != nil {
				return false
			}
			i := slices.IndexFunc(list.Members, func(m *pb.Member) bool { return m.ID != id })
			at := connect(t, endpoint)
			_, err = at.MoveLeader(t.Context(), list.Members[i].ID)
			old = id
			return err == nil
		})
		eventually(t, "another member leads", func() bool { id, _ := leaderOf(); return id != 0 && id != old })
	}
	found := examined(t, examinedStore(t, connect(t, cluster.Endpoints()...), "", nil))
	if !slices.ContainsFunc(found, func(f store.Finding) bool {
		return f.ID == "etcd-leader" && f.Severity == store.Attention && strings.Contains(f.What, "the leader has changed")
	}) {
		t.Errorf("got %+v", found)
	}
}

// The real disk is not slow, so the limit is.
func TestExamine_fsync(t *testing.T) {
	t.Parallel()
	e := startEtcd(t, "--unsafe-no-fsync=false")
	cli := e.Client(t)
	for i := range 120 {
		if _, err := cli.Put(t.Context(), "x", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	st := examinedStore(t, cli, "", nil)
	st.SetExamineLimits(time.Nanosecond, math.MaxInt64, 100)
	expectFinding(t, examined(t, st), "etcd-fsync", store.Attention, "takes longer than 1ns")
	st.SetExamineLimits(time.Hour, math.MaxInt64, 100)
	expectFinding(t, examined(t, st), "etcd-fsync", store.Fine, "99 % of the writes")
}

func TestQuantile(t *testing.T) {
	page := []string{
		`# TYPE h histogram`, `h_bucket{le="0.001"} 98`, `h_bucket{le="+Inf"} 200`, `h_bucket{le="0.002"} 198`, `h_sum 1`, `h_count 200`, `i_bucket{le="0"} 7`,
	}
	for q, want := range map[float64]float64{0.4: 0.001, 0.99: 0.002, 0.999: math.Inf(1)} {
		if got, n := etcdstore.Quantile(page, "h", q); got != want || n != 200 {
			t.Errorf("%v: got %v of %v, want %v", q, got, n, want)
		}
	}
}

func TestExamine_compaction(t *testing.T) {
	t.Parallel()
	cli := startEtcd(t).Client(t)
	var last int64
	for range 20 {
		put, err := cli.Put(t.Context(), "x", "y")
		if err != nil {
			t.Fatal(err)
		}
		last = put.Header.Revision
	}
	st := newStore(t, cli, "")
	st.SetExamineLimits(time.Hour, 20, 100)
	expectFinding(t, examined(t, st), "etcd-compaction", store.Attention, "none of 21 revisions")
	if _, err := cli.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	expectFinding(t, examined(t, st), "etcd-compaction", store.Fine, "are removed")
}

func TestExamine_quota(t *testing.T) {
	t.Parallel()
	cli := startEtcd(t, "--quota-backend-bytes=16777216").Client(t)
	for i := range 30 {
		if _, err := cli.Put(t.Context(), fmt.Sprint(i), strings.Repeat("x", 300_000)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the member has counted the data", func() bool { // it does so when it commits to its file
		status, err := cli.Status(t.Context(), cli.Endpoints()[0])
		return err == nil && status.DbSize > 8<<20
	})
	st := newStore(t, cli, "")
	st.SetExamineLimits(time.Hour, math.MaxInt64, 30)
	expectFinding(t, examined(t, st), "etcd-quota", store.Attention, "% of the quota is used")
}

func TestExamine_alarms(t *testing.T) {
	t.Parallel()
	cli := startEtcd(t).Client(t)
	st := newStore(t, cli, "")
	status, err := cli.Status(t.Context(), cli.Endpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	alarms := pb.NewMaintenanceClient(cli.ActiveConnection())
	raise := func(alarm pb.AlarmType) {
		t.Helper()
		request := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: alarm, MemberID: status.Header.MemberId}
		if _, err := alarms.Alarm(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	raise(pb.AlarmType_NOSPACE)
	expectFinding(t, examined(t, st), "etcd-alarm", store.Attention, "NOSPACE")
	raise(pb.AlarmType_CORRUPT)
	expectFinding(t, examined(t, st), "etcd-alarm", store.Risk, "CORRUPT")
}

// Missing rights are found, and nothing is written to find out.
func TestExamine_rights(t *testing.T) {
	t.Parallel()
	e := startEtcdWithAuth(t)
	as := func(prefix string) []store.Finding {
		cli := connectWith(t, clientv3.Config{
			Endpoints: []string{e.Endpoint()}, Username: "app", Password: "secret-of-app", DialTimeout: testTimeout,
		})
		return examined(t, examinedStore(t, cli, prefix, nil))
	}
	found := as("app/")
	expectFinding(t, found, "etcd-rights", store.Fine, `"app/"`)
	expectFinding(t, found, "etcd-quorum", store.Fine, "one member")
	expectFinding(t, as("other/"), "etcd-rights", store.Attention, `may not read and write the keys that begin with "other/.stile/" and "other/"`)
	found = as("")
	expectFinding(t, found, "etcd-rights", store.Attention, `".stile/"`)
	expectFinding(t, found, "etcd-compaction", store.Attention, "may not read beside its locks")

	root := connectWith(t, clientv3.Config{
		Endpoints: []string{e.Endpoint()}, Username: "root", Password: "rootpw", DialTimeout: testTimeout,
	})
	all, err := root.Get(t.Context(), "\x00", clientv3.WithFromKey())
	if err != nil || len(all.Kvs) > 0 || all.Header.Revision != 1 {
		t.Errorf("the examination has written: %v, %v", all, err)
	}
}

func TestExamine_roundTrip(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	proxy.Delay(100 * time.Millisecond)
	found, err := newStore(t, connect(t, proxy.Addr()), "").Examine(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	expectFinding(t, found, "etcd-round-trip", store.Attention, "more than a tenth of the TTL")
}

// The clock of a member that is set forward during the examination. The member is real, and the Date of its
// pages is changed on the way.
func TestExamine_clockRate(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	begin := time.Now()
	st := examinedStore(t, server(t).Client(t), "", func() time.Duration {
		asked.Add(1)
		return time.Since(begin) // twice as fast
	})
	found := examined(t, st)
	if !slices.ContainsFunc(found, func(f store.Finding) bool { return f.ID == "etcd-clock-rate" && f.Severity == store.Risk }) {
		t.Errorf("got %+v", found)
	}
	if asked.Load() == 0 {
		t.Error("the test has changed no date")
	}
}

// Without pages, and with pages that cannot be read.
func TestExamine_pages(t *testing.T) {
	t.Parallel()
	cli := server(t).Client(t)
	for _, f := range examined(t, newStore(t, cli, "")) {
		if f.ID == "etcd-metrics" || f.ID == "etcd-fsync" {
			t.Errorf("without pages: got %+v", f)
		}
	}
	st, err := etcdstore.New(cli, &etcdstore.Options{Pages: func(context.Context, string, string) (*http.Response, error) {
		return &http.Response{Status: "403 Forbidden", StatusCode: http.StatusForbidden, Body: http.NoBody}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	expectFinding(t, examined(t, st), "etcd-metrics", store.Attention, "403 Forbidden")
}
