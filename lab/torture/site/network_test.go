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

// A post is a socket for datagrams on a node.
type post struct {
	name string
	conn *net.UDPConn
}

func newPost(t *testing.T, node *Node) *post {
	t.Helper()
	p := &post{name: node.Name()}
	var err error
	must(t, node.inside(func() { p.conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(node.IP()), Port: 7}) }))
	must(t, err)
	t.Cleanup(func() { p.conn.Close() })
	return p
}

// everybodySays lets every post send a text to every post. What a firewall refuses to send is lost.
func everybodySays(posts []*post, text string) {
	for _, from := range posts {
		for _, to := range posts {
			_, _ = from.conn.WriteTo([]byte(from.name+" "+text), to.conn.LocalAddr())
		}
	}
}

// heard returns what the post has heard before everybody's "after": nothing overtakes on these wires.
func (p *post) heard(t *testing.T, from int) (names []string) {
	t.Helper()
	must(t, p.conn.SetReadDeadline(time.Now().Add(time.Minute)))
	for buf := make([]byte, 100); from > 0; {
		n, err := p.conn.Read(buf)
		must(t, err)
		name, text, _ := strings.Cut(string(buf[:n]), " ")
		if text == "after" {
			from--
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestFaultsLoseWhatTheySay(t *testing.T) {
	network := newNetwork(t)
	a, b, c := newNode(t, network, "a"), newNode(t, network, "b"), newNode(t, network, "c")
	us := &post{name: "us"}
	var err error
	us.conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(ObserverIP), Port: 7})
	must(t, err)
	defer us.conn.Close()
	posts := []*post{newPost(t, a), newPost(t, b), newPost(t, c), us}

	everybody := []string{"a", "b", "c", "us"}
	type hearing map[string][]string // who hears whom; who is not in it hears everybody
	for _, tc := range []struct {
		what string
		do   func() error
		want hearing
	}{
		{"nothing is done", func() error { return nil }, nil},
		{
			"a is cut off", func() error { return a.Cut() },
			hearing{"a": {"a", "us"}, "b": {"b", "c", "us"}, "c": {"b", "c", "us"}},
		},
		{
			"a is cut off from b", func() error { return a.Cut(b) },
			hearing{"a": {"a", "c", "us"}, "b": {"b", "c", "us"}},
		},
		{
			"a is cut off from b, and then from c", func() error { return errors.Join(a.Cut(b), a.Cut(c)) },
			hearing{"a": {"a", "us"}, "b": {"b", "c", "us"}, "c": {"b", "c", "us"}},
		},
		{
			"a is cut off from b, and then from all", func() error { return errors.Join(a.Cut(b), a.Cut()) },
			hearing{"a": {"a", "us"}, "b": {"b", "c", "us"}, "c": {"b", "c", "us"}},
		},
		{"a is cut off and healed", func() error { return errors.Join(a.Cut(), a.Heal()) }, nil},
		{"a is deaf", func() error { return a.Deafen() }, hearing{"a": {"a", "us"}}},
		{"a is deaf for b", func() error { return a.Deafen(b) }, hearing{"a": {"a", "c", "us"}}},
		{"a is mute", func() error { return a.Mute() }, hearing{"b": {"b", "c", "us"}, "c": {"b", "c", "us"}}},
		{"a is mute for c", func() error { return a.Mute(c) }, hearing{"c": {"b", "c", "us"}}},
		{
			"a is deaf for b and mute for c", func() error { return errors.Join(a.Deafen(b), a.Mute(c)) },
			hearing{"a": {"a", "c", "us"}, "c": {"b", "c", "us"}},
		},
		{
			"a is deaf and b is mute", func() error { return errors.Join(a.Deafen(), b.Mute()) },
			hearing{"a": {"a", "us"}, "c": {"a", "c", "us"}},
		},
	} {
		t.Run(tc.what, func(t *testing.T) {
			must(t, tc.do())
			everybodySays(posts, "meanwhile")
			must(t, errors.Join(a.Heal(), b.Heal(), c.Heal()))
			everybodySays(posts, "after")
			for _, p := range posts {
				want := everybody
				if tc.want[p.name] != nil {
					want = tc.want[p.name]
				}
				if got := p.heard(t, len(posts)); !slices.Equal(got, want) {
					t.Errorf("%s has heard %v, want %v", p.name, got, want)
				}
			}
		})
	}
}

// Were it to change, as that of a bridge does by itself, what servers send us would be lost until they ask where we are now.
func TestOurHardwareAddressStaysWhenNodesJoin(t *testing.T) {
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
		t.Errorf("it was %s and is %s", before, after)
	}
}

func TestACommandRunsInItsNode(t *testing.T) {
	network := newNetwork(t)
	node := newNode(t, network, "n")
	said, err := node.Command("ip", "-brief", "-4", "address", "show", "eth0").Output()
	if err != nil || !strings.Contains(string(said), " "+node.IP()+"/24 ") {
		t.Errorf("its addresses are %s (%v), want %s", said, err, node.IP())
	}
	if err := node.Command("no-such-program").Run(); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a program that there is not: %v, want %v", err, exec.ErrNotFound)
	}
}

func TestTheProcessOfACommandIsTheProgram(t *testing.T) {
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
		t.Errorf("it ended with %d, want the 7 of its own handler", code)
	}
}

func TestPauseStopsAllThreads(t *testing.T) {
	network := newNetwork(t)
	cmd := newNode(t, network, "n").Command("sleep", "infinity")
	must(t, network.Start(cmd))
	pid := cmd.Process.Pid
	must(t, Pause(pid))
	if still, err := stopped(pid); err != nil || !still {
		t.Errorf("when it is paused it is stopped: %v, %v", still, err)
	}
	must(t, Resume(pid))
	eventually(t, "it runs again", func() bool { still, err := stopped(pid); return err == nil && !still })
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if err := Pause(pid); err == nil {
		t.Error("a process that there is not any more can be paused")
	}
	if err := Resume(pid); err == nil {
		t.Error("a process that there is not any more can be resumed")
	}
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after three minutes it is not so that %s", what)
		}
	}
}

// alive reports whether there is a process that has not ended.
func alive(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(text), ") Z ")
}

func TestNothingOutlivesTheNetwork(t *testing.T) {
	network := newNetwork(t)
	node := newNode(t, network, "n")
	cmd := node.Command("sleep", "infinity")
	must(t, network.Start(cmd))
	must(t, Pause(cmd.Process.Pid)) // what is stopped is to go, too
	must(t, network.Close())
	_ = cmd.Wait() // it returns because the process has ended
	if alive(node.anchor.pid()) {
		t.Error("the node's own process is there still")
	}
	eventually(t, "only the loopback is there", func() bool {
		links, err := net.Interfaces()
		return err == nil && len(links) == 1
	})
	if err := network.Start(exec.Command("true")); err == nil {
		t.Error("a closed network starts programs")
	}
	if _, err := network.Node("late"); err == nil {
		t.Error("a closed network takes nodes")
	}
	must(t, network.Close())
	newNetwork(t) // there is room for another
}

// helper is the environment variable that makes the test program be a run that is going to be killed.
const helper = "STILE_TORTURE_TEST_HELPER"

func TestMain(m *testing.M) {
	here, why = Enter()
	if os.Getenv(helper) != "" {
		beKilled()
	}
	os.Exit(m.Run())
}

// beKilled makes everything that a run makes, says which processes it has started, and waits.
func beKilled() {
	network, err := here.Network()
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
	fmt.Println(here.Dir(), os.Getpid(), server.Pid(), server.node.anchor.pid(), cmd.Process.Pid, node.anchor.pid())
	select {}
}

func TestNothingIsLeftOfARunThatIsKilled(t *testing.T) {
	need(t, why)
	_, err := exec.LookPath("redis-server")
	need(t, err)
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), helper+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	fields := strings.Fields(line)
	dir, pids := fields[0], fields[1:]
	if pids[0] != strconv.Itoa(cmd.Process.Pid) {
		t.Errorf("the process that was started is %d, and what runs inside %s: signals do not reach it", cmd.Process.Pid, pids[0])
	}
	files, err := os.ReadDir("/proc/" + pids[0] + "/root" + dir)
	if err != nil || len(files) == 0 {
		t.Errorf("its files are %v, %v: there should be some", files, err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		must(t, err)
		eventually(t, "process "+text+" has ended", func() bool { return !alive(pid) })
	}
	// Its namespaces have gone with their processes, and with them its network, mounts and files. None of them were ever ours.
	if entries, err := os.ReadDir("/proc/1/root" + dir); err == nil && len(entries) > 0 {
		t.Errorf("outside there is in %s: %v", dir, entries)
	}
	if links, err := net.Interfaces(); err != nil || len(links) != 1 {
		t.Errorf("here are the links %v (%v), want only the loopback", links, err)
	}
}
