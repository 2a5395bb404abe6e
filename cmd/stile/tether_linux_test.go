package main_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	lib "github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/storeurl"
)

// holderVar makes the test program a holder. Its value is the lock's name.
const holderVar = "STILE_TEST_HOLDER"

// holdTethered is a Go program with a lock. It holds the lock until it is killed or stdin ends; then it
// exits without a release.
func holdTethered(url, name string) {
	client, err := openClient(context.Background(), url, &storeurl.Options{Tethered: true})
	if err == nil {
		_, err = client.Mutex(name).Lock(context.Background())
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// openClient opens a client with a TTL that no test waits for.
func openClient(ctx context.Context, url string, opts *storeurl.Options) (*lib.Client, error) {
	opened, err := testservers.Retry(func() (*storeurl.Conn, error) { return storeurl.Open(ctx, url, opts) })
	if err != nil {
		return nil, err
	}
	return lib.New(opened.Store, &lib.Options{TTL: lib.MaxTTL})
}

// localURL starts the machine's local server if necessary, and returns the URL of its socket.
func (m *machine) localURL() string {
	m.t.Helper()
	m.stile("ls", "--url", "local:").expectExit(0)
	return "etcd+unix://" + m.socketLink()
}

// holder is a running Go program that holds a lock.
type holder struct {
	*exec.Cmd
	t     testing.TB
	stdin io.Closer
}

// startHolder starts a holder and waits until it holds the lock.
func startHolder(t testing.TB, url, name string) *holder {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holderVar+"="+name, "STILE_URL="+url)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &holder{cmd, t, stdin}
	t.Cleanup(h.kill)
	if text, err := bufio.NewReader(stdout).ReadString('\n'); text != "held\n" {
		t.Fatalf("holder of %s: %q, %v", name, text, err)
	}
	return h
}

// die kills the process, and leaves a zombie, which the server can still find: on a busy machine it
// may receive the declaration of the session only after the death.
func (h *holder) die() { _ = h.Process.Kill() }

func (h *holder) kill() {
	_ = h.Process.Kill()
	_ = h.Wait()
}

// acquire waits for a lock in this process, and releases it.
func acquire(t testing.TB, client *lib.Client, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	hold, err := client.Mutex(name).Lock(ctx)
	if err != nil {
		t.Fatalf("lock %s: %v", name, err)
	}
	if err := hold.Release(ctx); err != nil {
		t.Error(err)
	}
}

// newClient returns a client that is closed when the test ends.
func newClient(t testing.TB, url string) *lib.Client {
	t.Helper()
	client, err := openClient(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(context.WithoutCancel(t.Context())) })
	return client
}

// The next waiter is admitted although the TTL is longer than this test may take.
//
// Promise: P4
func TestTether_killedProcess(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	url := m.localURL()
	client := newClient(t, url)
	for name, end := range map[string]func(h *holder){
		"killed": (*holder).die,
		"exited": func(h *holder) { _ = h.stdin.Close() },
	} {
		h := startHolder(t, url, name)
		next := m.runCommand("--url", "local:", name, "--", "true").spawn()
		eventually(t, "a waiter", func() bool { return waiters(t, client, name) == 1 })
		end(h)
		next.expectExit(0)
	}
}

// waiters returns the number of waiters for a lock.
func waiters(t testing.TB, client *lib.Client, name string) int {
	t.Helper()
	l, err := client.Line(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return len(l.Waiters)
}

// The death of a stile run, a stile hold and their watchdogs ends no session at once: what they keep the lock
// for may live on. Neither does a holder that is stopped lose its lock.
//
// Promise: P1
func TestTether_othersKeepLock(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	url := m.localURL()
	m.setenv("STILE_URL", "local:")
	client := newClient(t, url)

	run := m.start("touch started; exec sleep 1000", "--ttl", longTTL, "run")
	kill(t, awaitWatchdog(t, run.Process.Pid), syscall.SIGKILL)
	run.signal(syscall.SIGKILL)
	hold, _ := m.hold("--ttl", longTTL, "hold")
	hold.signal(syscall.SIGKILL)
	stopped := startHolder(t, url, "stopped")
	pause(t, stopped.Process.Pid)

	killed := startHolder(t, url, "killed")
	killed.die()
	acquire(t, client, "killed") // the server has noticed that death, which was later
	for _, name := range []string{"run", "hold", "stopped"} {
		if l, err := client.Line(t.Context(), name); err != nil || len(l.Holders) != 1 {
			t.Errorf("lock %s has holders %+v, %v; want one", name, l.Holders, err)
		}
	}
}

// Clients find the sockets again after their files were removed.
func TestTether_socketRemoved(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	url := m.localURL()
	client := newClient(t, url)
	before := startHolder(t, url, "before")
	socket, err := os.Readlink(m.socketLink())
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{socket + ".tether", socket} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the sockets", func() bool { return exists(socket) && exists(socket+".tether") })
	for name, h := range map[string]*holder{"before": before, "after": startHolder(t, url, "after")} {
		h.die()
		acquire(t, client, name)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// median returns the median and the maximum in milliseconds.
func median(took []time.Duration) (mid, most float64) {
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return ms(took[len(took)/2]), ms(took[len(took)-1])
}

// BenchmarkCrash measures the time from kill -9 of the holder until the next client, in another process, has
// the lock, with the local server.
func BenchmarkCrash(b *testing.B) {
	for _, c := range []struct {
		name  string
		start func(m *machine, url, name string) (pid int)
	}{
		{"tethered", func(m *machine, url, name string) int { return startHolder(b, url, name).Process.Pid }},
		{"run", func(m *machine, _, name string) int {
			run := m.start("touch started; exec sleep 1000", "--url", "local:", "--ttl", longTTL, name)
			awaitWatchdog(m.t, run.Process.Pid)
			return run.Process.Pid
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			m := newMachine(b)
			url := m.localURL()
			client := newClient(b, url)
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				name := fmt.Sprint("lock", i)
				pid := c.start(m, url, name)
				admitted := make(chan time.Time)
				go func() {
					hold, err := client.Mutex(name).Lock(context.Background())
					admitted <- time.Now()
					if err == nil {
						_ = hold.Release(context.Background())
					}
				}()
				for waiters(b, client, name) == 0 {
					time.Sleep(10 * time.Millisecond)
				}
				began := time.Now()
				_ = syscall.Kill(pid, syscall.SIGKILL)
				took = append(took, (<-admitted).Sub(began))
			}
			mid, most := median(took)
			b.ReportMetric(mid, "ms/median")
			b.ReportMetric(most, "ms/max")
			b.ReportMetric(0, "ns/op")
		})
	}
}
