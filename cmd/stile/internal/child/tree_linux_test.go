package child

import (
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// noReaper is the parent of no process.
const noReaper = -1

// startGroup starts a shell in a new process group with a child, and returns both.
func startGroup(t *testing.T) (leader *exec.Cmd, member int) {
	t.Helper()
	leader = exec.Command("sh", "-c", "sleep 1000 & echo $!; wait")
	leader.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := leader.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := leader.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = leader.Wait() })
	if _, err := fmt.Fscan(stdout, &member); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, pid := range []int{leader.Process.Pid, member} {
			if p, _ := readProcess(pid); p.group == leader.Process.Pid {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	})
	return leader, member
}

func treeOf(leader *exec.Cmd) Tree {
	return Tree{Group: leader.Process.Pid, Started: started(leader.Process.Pid)}
}

func isAlive(pid int) bool {
	p, ok := readProcess(pid)
	return ok && !p.dead
}

// end calls End, which never gives up if it is broken.
func end(t *testing.T, tree Tree) bool {
	t.Helper()
	if !isAlive(1) {
		t.Skip("SKIPPED, NOT TESTED: /proc hides processes of other users")
	}
	deadline := time.Now().Add(time.Minute)
	return tree.End(noReaper, func() bool { return time.Now().After(deadline) })
}

func TestTree_endKillsGroup(t *testing.T) {
	leader, member := startGroup(t)
	if !end(t, treeOf(leader)) {
		t.Error("got false, want true: all processes are dead")
	}
	if isAlive(leader.Process.Pid) || isAlive(member) {
		t.Error("a process of the group is alive")
	}
}

// A later group that has got the number of the command's group is spared.
func TestTree_endSparesLaterGroup(t *testing.T) {
	leader, member := startGroup(t)
	earlier := treeOf(leader)
	earlier.Started--
	if !end(t, earlier) {
		t.Error("got false, want true: no process of the tree exists")
	}
	if !isAlive(leader.Process.Pid) || !isAlive(member) {
		t.Error("a process of the later group was killed")
	}
}

// The later group's first process may have ended, so End remembers that the command's group has ended.
func TestTree_aliveAfterGroupEnded(t *testing.T) {
	tree := Tree{Group: 1 << 30, Started: 100} // no such process exists
	all := []process{{pid: 1<<30 + 1, parent: 1, group: tree.Group, started: 101}}
	if known, _ := tree.alive(all, false, noReaper); !slices.Equal(known, []int{1<<30 + 1}) {
		t.Errorf("got %d, want the member of the group", known)
	}
	if known, unsure := tree.alive(all, true, noReaper); len(known)+len(unsure) > 0 {
		t.Errorf("got %d and %d, want nothing: the member belongs to others", known, unsure)
	}
}

func TestTree_groupEnded(t *testing.T) {
	leader, member := startGroup(t)
	tree := treeOf(leader)
	if tree.groupEnded() {
		t.Error("with all processes: got true")
	}
	earlier := Tree{Group: tree.Group, Started: tree.Started - 1}
	if !earlier.groupEnded() {
		t.Error("with a process that has the number since: got false")
	}
	if err := unix.Kill(leader.Process.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for isAlive(leader.Process.Pid) {
		time.Sleep(time.Millisecond)
	}
	if tree.groupEnded() {
		t.Error("with a dead leader that was not waited for: got true")
	}
	_ = leader.Wait() // returns the signal as an error
	if !isAlive(member) || tree.groupEnded() {
		t.Error("without the leader: got true")
	}
	// A member that is an orphan is waited for by others, perhaps never.
	leader = exec.Command("sleep", "1000")
	leader.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := leader.Start(); err != nil {
		t.Fatal(err)
	}
	tree = treeOf(leader)
	_ = leader.Process.Kill()
	_ = leader.Wait()
	if !tree.groupEnded() {
		t.Error("without any process: got false")
	}
}
