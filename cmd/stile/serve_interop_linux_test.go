package main_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/stilelock/stile/internal/testservers"
)

// Any etcd client that locks on stile serve excludes stile run under the same name, and waits for
// it.

// expectHeld checks that stile run -n does not acquire the lock.
func (m *machine) expectHeld(url, name string) {
	m.t.Helper()
	m.run("--url", url, "-n", name, "--", "true").expectExit(75, name)
}

// expectFree checks that stile run acquires the lock.
func (m *machine) expectFree(url, name string) {
	m.t.Helper()
	m.run("--url", url, name, "--", "true").expectExit(0)
}

// awaitEntries waits until the line of a lock has n entries.
func awaitEntries(t *testing.T, cli *clientv3.Client, name string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d entries of lock %s", n, name), func() bool { return len(entries(t, cli, name)) == n })
}

// exists reports whether a file exists in the home directory.
func (m *machine) exists(name string) bool {
	_, err := os.Stat(m.path(name))
	return err == nil
}

func TestServe_etcdctlLock(t *testing.T) {
	t.Parallel()
	etcdctl := testservers.Binary(t, "etcdctl")
	m, s := newMachine(t), serve(t)
	cli := s.client(t)

	lock := exec.Command(etcdctl, "--endpoints", s.endpoint(), "lock", "--ttl", longTTL, "demo", "--", "sh", "-c", "touch got; "+endableScript)
	lock.Dir, lock.Env = m.dir, m.vars
	if err := lock.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Process.Kill() }()
	eventually(t, "etcdctl holding the lock", func() bool { return m.exists("got") })
	m.expectHeld(s.url, "demo")
	m.endScript()
	if err := lock.Wait(); err != nil {
		t.Errorf("etcdctl lock: %v", err)
	}
	m.expectFree(s.url, "demo")

	os.Remove(m.path("got"))
	holder := m.start(endableScript, "--url", s.url, "demo")
	lock = exec.Command(etcdctl, "--endpoints", s.endpoint(), "lock", "--ttl", longTTL, "demo", "--", "touch", m.path("got"))
	if err := lock.Start(); err != nil {
		t.Fatal(err)
	}
	awaitEntries(t, cli, "demo", 2)
	if m.exists("got") {
		t.Error("etcdctl got the lock while stile run held it")
	}
	m.endScript()
	if err := lock.Wait(); err != nil || !m.exists("got") {
		t.Errorf("etcdctl lock after stile run: %v", err)
	}
	holder.expectExit(0)
}

func TestServe_concurrencyMutex(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	cli := s.client(t)
	session, err := concurrency.NewSession(cli, concurrency.WithTTL(60))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, "demo")
	if err := mutex.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.expectHeld(s.url, "demo")
	if err := mutex.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.expectFree(s.url, "demo")

	holder := m.start(endableScript, "--url", s.url, "demo")
	if err := mutex.TryLock(t.Context()); err != concurrency.ErrLocked {
		t.Errorf("TryLock while stile run holds the lock: got %v, want %v", err, concurrency.ErrLocked)
	}
	got := make(chan error)
	go func() { got <- mutex.Lock(t.Context()) }()
	awaitEntries(t, cli, "demo", 2)
	select {
	case err := <-got:
		t.Errorf("Lock returned %v while stile run held it", err)
	default:
	}
	m.endScript()
	if err := <-got; err != nil {
		t.Error(err)
	}
	holder.expectExit(0)
}

func TestServe_jsonGateway(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	cli := s.client(t)
	g := gateway{t, "http://" + s.endpoint(), &http.Client{Timeout: testTimeout}}

	lease := g.must("/v3/lease/grant", map[string]any{"TTL": "600"})["ID"]
	key := g.must("/v3/lock/lock", map[string]any{"name": toBase64("demo"), "lease": lease})["key"]
	if decoded, err := base64.StdEncoding.DecodeString(fmt.Sprint(key)); err != nil || !strings.HasPrefix(string(decoded), "demo/") {
		t.Errorf("got key %s, %v, want the prefix demo/", decoded, err)
	}
	m.expectHeld(s.url, "demo")
	g.must("/v3/lock/unlock", map[string]any{"key": key})
	m.expectFree(s.url, "demo")

	holder := m.start(endableScript, "--url", s.url, "demo")
	type answer struct {
		fields map[string]any
		err    error
	}
	got := make(chan answer)
	go func() {
		fields, err := g.post("/v3/lock/lock", map[string]any{"name": toBase64("demo"), "lease": lease})
		got <- answer{fields, err}
	}()
	awaitEntries(t, cli, "demo", 2)
	select {
	case a := <-got:
		t.Errorf("/v3/lock/lock answered %v while stile run held it", a)
	default:
	}
	m.endScript()
	a := <-got
	if a.err != nil {
		t.Fatal(a.err)
	}
	holder.expectExit(0)
	m.expectHeld(s.url, "demo")
	g.must("/v3/lease/revoke", map[string]any{"ID": lease})
	m.expectFree(s.url, "demo")
}

func toBase64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// gateway is a client of a server's JSON gateway, like programs in other languages.
type gateway struct {
	t    *testing.T
	base string
	web  *http.Client
}

func (g gateway) post(path string, body map[string]any) (map[string]any, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	resp, err := g.web.Post(g.base+path, "application/json", strings.NewReader(string(text)))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	fields := map[string]any{}
	if err := json.NewDecoder(resp.Body).Decode(&fields); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %v", path, resp.Status, fields)
	}
	return fields, nil
}

func (g gateway) must(path string, body map[string]any) map[string]any {
	g.t.Helper()
	fields, err := g.post(path, body)
	if err != nil {
		g.t.Fatal(err)
	}
	return fields
}

// SIGKILL of the server loses nothing: holders keep their locks, lines keep their order, and tokens
// keep increasing.
func TestServe_locksSurviveKill(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	args := []string{"--listen", testservers.FreeAddress(t), "--data", m.path("data")}
	s := m.serve(args...)
	url := s.readyValue("url")
	const ttl = 90 * time.Second // 4/10 of it must be enough for a restart on a busy machine

	cli := client(t, strings.TrimPrefix(url, "etcd://"))
	lease, err := cli.Grant(t.Context(), 600) // no process renews this lease
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cli.Put(t.Context(), fmt.Sprintf("nightly/%x", lease.ID), "", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	holder := m.start(endableScript+"; echo $STILE_TOKEN", "--url", url, "--ttl", ttl.String(), "demo")
	waiter := m.runCommand("--url", url, "--ttl", ttl.String(), "demo", "--", "sh", "-c", "echo $STILE_TOKEN").spawn()
	awaitEntries(t, cli, "demo", 2)
	before := entries(t, cli, "demo")

	s.kill()
	down := time.Now()
	m.serve(args...)
	t.Logf("the server was down for %v", time.Since(down))
	if after := entries(t, cli, "demo"); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("after the restart: got entries %v, want %v", after, before)
	}
	m.expectHeld(url, "nightly")

	awaitRenewal(t, cli, "demo", sessionEnd(t, cli, "demo")) // without it the hold would be lost at the end of the TTL
	m.endScript()
	holder.expectExit(0)
	waiter.expectExit(0)
	var first, next int64
	if _, err := fmt.Sscan(holder.stdout.String(), &first); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(waiter.stdout.String(), &next); err != nil {
		t.Fatal(err)
	}
	if next <= first {
		t.Errorf("got token %d after the restart, want more than %d", next, first)
	}
}
