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

// Etcd is an etcd server, the only one or a member of an [EtcdCluster], in a process of its own.
//
// It does not sync its data to disk: a killed process loses nothing by that, and tests do not wait for the disk.
type Etcd struct {
	t      testing.TB // the test that it belongs to; nil if it belongs to none
	name   string
	binary string
	dir    string // data, log and socket
	flags  []string

	client, peer, health string // addresses
	secure               bool   // clients speak TLS

	process *process // the last one started
}

// StartEtcd starts an etcd of one member, waits until it answers and stops it when the test ends.
//
// It beats every 130 ms with elections after 650 ms, which are the longest with which the smallest TTL it grants is one
// second: on a busy machine a leader that beats more often is late, and renews no leases until it has asked whether it
// leads. flags are further flags of the program, which win over those given here. With --cert-file among them clients
// speak TLS.
func StartEtcd(t testing.TB, flags ...string) *Etcd {
	t.Helper()
	e, err := NewEtcd(flags...)
	Check(t, err)
	e.t = t
	bind(t, e)
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

// startMembers starts n members that know each other and waits until all of them answer.
func startMembers(n int, flags []string) ([]*Etcd, error) {
	binary, err := pinned("etcd")
	if err != nil {
		return nil, err
	}
	// Another process may take a port between our looking and etcd's listening: then begin again.
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

// newMembers prepares members. Those that it returns beside an error have to be closed too.
func newMembers(n int, binary string, flags []string) (members []*Etcd, err error) {
	var initial []string
	for i := range n {
		e := &Etcd{name: fmt.Sprintf("m%d", i+1), binary: binary}
		// The path of a unix socket has little room, less than the name of a test may take in t.TempDir.
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
		"--listen-metrics-urls=http://" + e.health, // so that we need neither certificate nor user to look
		"--initial-cluster=" + initialCluster,
		"--initial-cluster-token=" + token, // the same for all members, another for every cluster
		"--log-format=console",
		"--unsafe-no-fsync",
	}
}

// launch starts the members and waits until all of them answer.
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

// Close ends the process and removes its data.
func (e *Etcd) Close() error {
	var err error
	if e.process.running() {
		err = e.process.kill()
	}
	return errors.Join(err, os.RemoveAll(e.dir))
}

// Log returns what the server logged last.
func (e *Etcd) Log() string {
	return fmt.Sprintf("etcd %s at %s logged last:\n%s", e.name, e.client, tail(e.log(), 6<<10))
}

// Endpoint returns the address that clients connect to, as host:port. It never changes.
func (e *Etcd) Endpoint() string { return e.client }

// Socket returns the path of the unix socket on which it listens too, unless clients speak TLS.
func (e *Etcd) Socket() string { return filepath.Join(e.dir, "sock") }

// DataDir returns the directory that has the member's data. They may be copied and replaced while it does not run.
func (e *Etcd) DataDir() string { return filepath.Join(e.dir, "data") }

// Name returns the member's name: "m1", "m2" and so on.
func (e *Etcd) Name() string { return e.name }

// Pause stops the process where it is (SIGSTOP) until [Etcd.Resume]. Its connections stay open.
func (e *Etcd) Pause() {
	e.must("pause", e.process.pause())
}

// Resume lets a paused process go on.
func (e *Etcd) Resume() {
	e.must("resume", e.process.resume())
}

// Kill ends the process with SIGKILL, paused or not, and returns when it is gone. Its data stay.
func (e *Etcd) Kill() {
	e.must("kill", e.process.kill())
}

// Stop makes the process shut down in order and returns when it is gone. With clients still connected that takes up
// to seven seconds. Its data stay.
func (e *Etcd) Stop() {
	e.must("stop", e.process.terminate())
}

// Start starts the process again after Kill or Stop, with the same data and addresses, and returns without waiting
// until it answers: what a member alone cannot do while the others are down. See [Etcd.AwaitReady].
func (e *Etcd) Start() {
	if e.process.running() {
		e.must("start", errors.New("it is running already"))
	}
	e.must("start", e.start())
}

// AwaitReady returns when the server answers a linearizable read, which needs a leader and a majority. After
// minutes without an answer the test fails.
func (e *Etcd) AwaitReady() {
	e.must("wait for", e.awaitReady())
}

// Restart kills the process if it runs, starts it again with the same data and addresses and waits until it answers
// a linearizable read.
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

var errPortTaken = errors.New("a port has been taken by somebody else")

// awaitReady polls, because etcd has no event for "able to serve".
func (e *Etcd) awaitReady() error {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	// A full disk or a corrupt member is what a test may be about.
	url := "http://" + e.health + "/health?exclude=NOSPACE&exclude=CORRUPT"
	var last error
	for end := time.Now().Add(longEnough); time.Now().Before(end); {
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
			return fmt.Errorf("etcd %s has ended: %s", e.name, e.process.how())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("etcd %s is not ready after %v: %w", e.name, longEnough, last)
}
