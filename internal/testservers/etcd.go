package testservers

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Etcd is an etcd server process, single or a member of an [EtcdCluster].
//
// It does not fsync its data. This loses nothing when the process is killed, and saves tests from
// waiting for the disk.
type Etcd struct {
	t      testing.TB // the test that owns the server, or nil
	name   string
	binary string
	dir    string // data, log and socket
	flags  []string

	client, peer, health string // addresses
	secure               bool   // clients use TLS

	process *process // the last one started
}

// StartEtcd starts an etcd of one member, waits until it is ready, and stops it when the test ends.
//
// The heartbeat interval is 130 ms and the election timeout 650 ms, the longest with which etcd
// grants a TTL of 1 s. With shorter intervals, a leader on a busy machine misses heartbeats, and
// does not renew leases until it has confirmed its leadership. flags are additional flags of the
// program and override the defaults. With --cert-file among them, clients use TLS.
func StartEtcd(t testing.TB, flags ...string) *Etcd {
	t.Helper()
	e, err := NewEtcd(flags...)
	Check(t, err)
	e.t = t
	closeWithTest(t, e)
	return e
}

// NewEtcd is [StartEtcd] for a server that belongs to no test.
func NewEtcd(flags ...string) (*Etcd, error) {
	flags = append([]string{"--heartbeat-interval=130", "--election-timeout=650"}, flags...)
	members, err := startMembers(1, flags)
	if err != nil {
		return nil, err
	}
	return members[0], nil
}

// startMembers starts a cluster of n members and waits until all are ready.
func startMembers(n int, flags []string) ([]*Etcd, error) {
	binary, err := pinned("etcd")
	if err != nil {
		return nil, err
	}
	// Another process may take a port before etcd listens on it: then start over.
	for attempt := 1; ; attempt++ {
		members, err := newMembers(n, binary, flags)
		if err == nil {
			err = launch(members)
		}
		if err == nil {
			return members, nil
		}
		again := attempt < 5 && errors.Is(err, errPortTaken)
		if !again {
			err = fmt.Errorf("%w\n%s", err, logs(members))
		}
		if err := errors.Join(err, closeAll(members)); !again {
			return nil, err
		}
	}
}

// newMembers prepares n members. The caller must close the returned members also after an error.
func newMembers(n int, binary string, flags []string) (members []*Etcd, err error) {
	var initial []string
	for i := range n {
		e := &Etcd{name: fmt.Sprintf("m%d", i+1), binary: binary}
		// t.TempDir contains the test's name and may exceed the length limit of unix socket paths.
		if e.dir, err = os.MkdirTemp("", "etcd"); err != nil {
			return members, err
		}
		members = append(members, e)
		for _, f := range flags {
			e.secure = e.secure || strings.HasPrefix(strings.TrimLeft(f, "-"), "cert-file")
		}
		for _, addr := range []*string{&e.client, &e.peer, &e.health} {
			if *addr, err = NewAddress(); err != nil {
				return members, err
			}
		}
		initial = append(initial, e.name+"=http://"+e.peer)
	}
	for _, e := range members {
		e.flags = append(e.baseFlags(strings.Join(initial, ","), members[0].dir), flags...)
	}
	return members, nil
}

func (e *Etcd) baseFlags(initialCluster, token string) []string {
	client, listen := "http://"+e.client, "http://"+e.client+",unix://"+e.Socket()
	if e.secure {
		client, listen = "https://"+e.client, "https://"+e.client
	}
	return []string{
		"--name=" + e.name,
		"--data-dir=" + e.DataDir(),
		"--listen-client-urls=" + listen,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=http://" + e.peer,
		"--initial-advertise-peer-urls=http://" + e.peer,
		"--listen-metrics-urls=http://" + e.health, // health checks need neither certificate nor user
		"--initial-cluster=" + initialCluster,
		"--initial-cluster-token=" + token, // the same for all members, unique for each cluster
		"--log-format=console",
		"--unsafe-no-fsync",
	}
}

// launch starts the members and waits until all are ready.
func launch(members []*Etcd) error {
	for _, e := range members {
		if err := e.start(); err != nil {
			return err
		}
	}
	for _, e := range members {
		if err := e.awaitReady(); err != nil {
			return err
		}
	}
	return nil
}

// Close kills the process and removes its data.
func (e *Etcd) Close() error {
	var err error
	if e.process.running() {
		err = e.process.kill()
	}
	return errors.Join(err, os.RemoveAll(e.dir))
}

// Log returns the end of the server's log.
func (e *Etcd) Log() string {
	return fmt.Sprintf("end of the log of etcd %s at %s:\n%s", e.name, e.client, tail(e.log(), 6<<10))
}

// Endpoint returns the address for clients, as host:port. It never changes.
func (e *Etcd) Endpoint() string { return e.client }

// Socket returns the path of the unix socket for clients. There is none if clients use TLS.
func (e *Etcd) Socket() string { return filepath.Join(e.dir, "sock") }

// DataDir returns the member's data directory. It may be copied and replaced while the process is
// not running.
func (e *Etcd) DataDir() string { return filepath.Join(e.dir, "data") }

// Name returns the member's name: "m1", "m2" and so on.
func (e *Etcd) Name() string { return e.name }

// Pause suspends the process with SIGSTOP until [Etcd.Resume]. Its connections stay open.
func (e *Etcd) Pause() {
	e.must("pause", e.process.pause())
}

// Resume continues a paused process.
func (e *Etcd) Resume() {
	e.must("resume", e.process.resume())
}

// Kill kills the process with SIGKILL, also if it is paused, and waits until it is gone. Its data
// stays.
func (e *Etcd) Kill() {
	e.must("kill", e.process.kill())
}

// Stop shuts the process down with SIGTERM and waits until it is gone. With connected clients this
// takes up to 7 s. Its data stays.
func (e *Etcd) Stop() {
	e.must("stop", e.process.terminate())
}

// Start starts the process again after Kill or Stop, with the same data and addresses. It does not
// wait until the server is ready, because a member cannot become ready without a majority. See
// [Etcd.AwaitReady].
func (e *Etcd) Start() {
	if e.process.running() {
		e.must("start", errors.New("already running"))
	}
	e.must("start", e.start())
}

// AwaitReady waits until the server answers a linearizable read, which needs a leader and a
// majority. The test fails after three minutes.
func (e *Etcd) AwaitReady() {
	e.must("wait for", e.awaitReady())
}

// Restart kills the process if it is running, starts it again with the same data and addresses, and
// waits until it is ready.
func (e *Etcd) Restart() {
	if e.process.running() {
		e.Kill()
	}
	e.Start()
	e.AwaitReady()
}

func (e *Etcd) must(what string, err error) {
	if err != nil {
		must(e.t, fmt.Errorf("cannot %s etcd %s: %w", what, e.name, err))
	}
}

func (e *Etcd) start() (err error) {
	e.process, err = startProcess(e.binary, e.flags, e.log())
	return err
}

func (e *Etcd) log() string { return filepath.Join(e.dir, "log") }

var errPortTaken = errors.New("another process is using the port")

// awaitReady polls, because etcd does not notify clients when it is ready.
func (e *Etcd) awaitReady() error {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	// Tests may fill the disk or corrupt a member on purpose.
	url := "http://" + e.health + "/health?exclude=NOSPACE&exclude=CORRUPT"
	var last error
	for end := time.Now().Add(processTimeout); time.Now().Before(end); {
		res, err := client.Get(url)
		switch {
		case err != nil:
			last = err
		case res.Body.Close() == nil && res.StatusCode == http.StatusOK:
			return nil
		default:
			last = errors.New(res.Status)
		}
		select {
		case <-e.process.done:
			if strings.Contains(tail(e.log(), 16<<10), "address already in use") {
				return fmt.Errorf("etcd %s: %w", e.name, errPortTaken)
			}
			return fmt.Errorf("etcd %s has exited: %s", e.name, e.process.exitReason())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("etcd %s is not ready after %v: %w", e.name, processTimeout, last)
}
