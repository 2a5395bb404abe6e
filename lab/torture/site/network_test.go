//go:build linux

package site

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An endpoint is a UDP socket on a node.
type endpoint struct {
	name string
	conn *net.UDPConn
}

func newEndpoint(t *testing.T, node *Node) *endpoint {
	t.Helper()
	e := &endpoint{name: node.Name()}
	var err error
	must(t, node.inNamespace(func() { e.conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(node.IP()), Port: 7}) }))
	must(t, err)
	t.Cleanup(func() { e.conn.Close() })
	return e
}

// sendAll sends a text from every endpoint to every endpoint. Packets that a firewall drops are
// lost.
func sendAll(endpoints []*endpoint, text string) {
	for _, from := range endpoints {
		for _, to := range endpoints {
			_, _ = from.conn.WriteTo([]byte(from.name+" "+text), to.conn.LocalAddr())
		}
	}
}

// received returns the senders of the packets that arrived before "after" from all of them. The
// links keep the order of packets.
func (e *endpoint) received(t *testing.T, senders int) (names []string) {
	t.Helper()
	must(t, e.conn.SetReadDeadline(time.Now().Add(time.Minute)))
	for buf := make([]byte, 100); senders > 0; {
		n, err := e.conn.Read(buf)
		must(t, err)
		name, text, _ := strings.Cut(string(buf[:n]), " ")
		if text == "after" {
			senders--
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestNode_faults(t *testing.T) {
	network := newNetwork(t)
	a, b, c := newNode(t, network, "a"), newNode(t, network, "b"), newNode(t, network, "c")
	observer := &endpoint{name: "us"}
	var err error
	observer.conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(ObserverIP), Port: 7})
	must(t, err)
	defer observer.conn.Close()
	endpoints := []*endpoint{newEndpoint(t, a), newEndpoint(t, b), newEndpoint(t, c), observer}

	everybody := []string{"a", "b", "c", "us"}
	type reception map[string][]string // the senders that a receiver receives; by default all of them
	for _, tc := range []struct {
		name  string
		fault func() error
		want  reception
	}{
		{"no fault", func() error { return nil }, nil},
		{
			"a is cut off", func() error { return a.Cut() },
			reception{"a": {"a", "us"}, "b": {"b", "c", "us"}, "c": {"b", "c", "us"}},
		},
		{
			"a is cut off from b", func() error { return a.Cut(b) },
			reception{"a": {"a", "c", "us"}, "b": {"b", "c", "us"}},
		},
		{
			"a is cut off from b, and then from c", func() error { return errors.Join(a.Cut(b), a.Cut(c)) },
			reception{"a": {"a", "us"}, "b": {"b", "c", "us"}, "c": {"b", "c", "us"}},
		},
		{
			"a is cut off from b, and then from all", func() error { return errors.Join(a.Cut(b), a.Cut()) },
			reception{"a": {"a", "us"}, "b": {"b", "c", "us"}, "c": {"b", "c", "us"}},
		},
		{"a is cut off and healed", func() error { return errors.Join(a.Cut(), a.Heal()) }, nil},
		{"a is deaf", func() error { return a.Deafen() }, reception{"a": {"a", "us"}}},
		{"a is deaf to b", func() error { return a.Deafen(b) }, reception{"a": {"a", "c", "us"}}},
		{"a is mute", func() error { return a.Mute() }, reception{"b": {"b", "c", "us"}, "c": {"b", "c", "us"}}},
		{"a is mute to c", func() error { return a.Mute(c) }, reception{"c": {"b", "c", "us"}}},
		{
			"a is deaf to b and mute to c", func() error { return errors.Join(a.Deafen(b), a.Mute(c)) },
			reception{"a": {"a", "c", "us"}, "c": {"b", "c", "us"}},
		},
		{
			"a is deaf and b is mute", func() error { return errors.Join(a.Deafen(), b.Mute()) },
			reception{"a": {"a", "us"}, "c": {"a", "c", "us"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must(t, tc.fault())
			sendAll(endpoints, "during")
			must(t, errors.Join(a.Heal(), b.Heal(), c.Heal()))
			sendAll(endpoints, "after")
			for _, p := range endpoints {
				want := everybody
				if tc.want[p.name] != nil {
					want = tc.want[p.name]
				}
				if got := p.received(t, len(endpoints)); !slices.Equal(got, want) {
					t.Errorf("%s received from %v, want %v", p.name, got, want)
				}
			}
		})
	}
}

// If the address changed, as that of a bridge does by default, packets from servers to this process
// would be lost until they ask for the new one.
func TestNetwork_bridgeMACUnchanged(t *testing.T) {
	network := newNetwork(t)
	address := func() string {
		i, err := net.InterfaceByName(bridge)
		must(t, err)
		return i.HardwareAddr.String()
	}
	before := address()
	for range 8 {
		newNode(t, network, "n")
	}
	if after := address(); after != before {
		t.Errorf("got address %s, want %s", after, before)
	}
}

func TestCommand_runsInNode(t *testing.T) {
	network := newNetwork(t)
	node := newNode(t, network, "n")
	output, err := node.Command("ip", "-brief", "-4", "address", "show", "eth0").Output()
	if err != nil || !strings.Contains(string(output), " "+node.IP()+"/24 ") {
		t.Errorf("got addresses %s (%v), want %s", output, err, node.IP())
	}
	if err := node.Command("no-such-program").Run(); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("program that does not exist: got %v, want %v", err, exec.ErrNotFound)
	}
}

func TestCommand_processIsProgram(t *testing.T) {
	network := newNetwork(t)
	cmd := newNode(t, network, "n").Command("bash", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, network.Start(cmd))
	_, err = out.Read(make([]byte, len("ready")))
	must(t, err)
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("got exit status %d, want 7, from its signal handler", code)
	}
}

func TestPause_stopsAllThreads(t *testing.T) {
	network := newNetwork(t)
	cmd := newNode(t, network, "n").Command("sleep", "infinity")
	must(t, network.Start(cmd))
	pid := cmd.Process.Pid
	must(t, Pause(pid))
	if still, err := stopped(pid); err != nil || !still {
		t.Errorf("stopped after Pause: got %v, %v", still, err)
	}
	must(t, Resume(pid))
	eventually(t, "the process runs again", func() bool { still, err := stopped(pid); return err == nil && !still })
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if err := Pause(pid); err == nil {
		t.Error("Pause succeeded after the end of the process")
	}
	if err := Resume(pid); err == nil {
		t.Error("Resume succeeded after the end of the process")
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within three minutes: %s", what)
		}
	}
}

// alive reports whether a process has not ended.
func alive(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(text), ") Z ")
}

func TestNetwork_closeEndsEverything(t *testing.T) {
	network := newNetwork(t)
	node := newNode(t, network, "n")
	cmd := node.Command("sleep", "infinity")
	must(t, network.Start(cmd))
	must(t, Pause(cmd.Process.Pid)) // Close ends stopped processes, too
	must(t, network.Close())
	_ = cmd.Wait() // returns since the process has ended
	if alive(node.anchor.pid()) {
		t.Error("the anchor of the node still runs")
	}
	eventually(t, "there is only the loopback", func() bool {
		links, err := net.Interfaces()
		return err == nil && len(links) == 1
	})
	if err := network.Start(exec.Command("true")); err == nil {
		t.Error("Start succeeded on a closed network")
	}
	if _, err := network.Node("late"); err == nil {
		t.Error("Node succeeded on a closed network")
	}
	must(t, network.Close())
	newNetwork(t) // possible, since the other one is closed
}

// helperVar is the environment variable that makes the test program a run that will be killed.
const helperVar = "STILE_TORTURE_TEST_HELPER"

func TestMain(m *testing.M) {
	testSite, errSite = Enter()
	if os.Getenv(helperVar) != "" {
		runUntilKilled()
	}
	os.Exit(m.Run())
}

// runUntilKilled creates everything that a run creates, prints the ids of its processes, and
// blocks.
func runUntilKilled() {
	network, err := testSite.Network()
	if err != nil {
		panic(err)
	}
	cluster, err := Start(context.Background(), network, "redis", Options{Proxies: true})
	if err != nil {
		panic(err)
	}
	node, err := network.Node("w1")
	if err != nil {
		panic(err)
	}
	cmd := node.Command("sleep", "infinity")
	if err := network.Start(cmd); err != nil {
		panic(err)
	}
	server := cluster.Servers()[0]
	if err := server.Pause(); err != nil {
		panic(err)
	}
	fmt.Println(testSite.Dir(), os.Getpid(), server.Pid(), server.node.anchor.pid(), cmd.Process.Pid, node.anchor.pid())
	select {}
}

func TestSite_killedRunLeavesNothing(t *testing.T) {
	checkAvailable(t, errSite)
	_, err := exec.LookPath("redis-server")
	checkAvailable(t, err)
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), helperVar+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	fields := strings.Fields(line)
	dir, pids := fields[0], fields[1:]
	if pids[0] != strconv.Itoa(cmd.Process.Pid) {
		t.Errorf("started process %d, but process %s runs inside and does not get its signals", cmd.Process.Pid, pids[0])
	}
	files, err := os.ReadDir("/proc/" + pids[0] + "/root" + dir)
	if err != nil || len(files) == 0 {
		t.Errorf("got files %v, %v, want some", files, err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		must(t, err)
		eventually(t, "process "+text+" has ended", func() bool { return !alive(pid) })
	}
	// Its namespaces have ended with its processes, and with them its network, mounts and files.
	// None of them were ever visible here.
	if entries, err := os.ReadDir("/proc/1/root" + dir); err == nil && len(entries) > 0 {
		t.Errorf("outside, %s contains %v, want nothing", dir, entries)
	}
	if links, err := net.Interfaces(); err != nil || len(links) != 1 {
		t.Errorf("got links %v (%v), want only the loopback", links, err)
	}
}
