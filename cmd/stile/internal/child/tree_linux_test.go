package child

import (
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// startGroup starts a shell in a new process group with a child, and returns both.
func startGroup(t *testing.T) (leader *exec.Cmd, member int) {
	t.Helper()
	// The shell writes when its child exists, and then waits for it.
	leader = exec.Command("sh", "-c", "sleep 1000 & echo $!; wait")
	leader.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := leader.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := leader.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Kill(-leader.Process.Pid, unix.SIGKILL)
		_ = leader.Wait()
	})
	if _, err := fmt.Fscan(stdout, &member); err != nil {
		t.Fatal(err)
	}
	return leader, member
}

func isAlive(pid int) bool {
	p, ok := readProcess(pid)
	return ok && !p.dead
}

// noReaper is the parent of no process that these tests start, nor of orphans of other tests.
const noReaper = 0

func TestTree_endKillsGroup(t *testing.T) {
	leader, member := startGroup(t)
	tree := Tree{Group: leader.Process.Pid, Started: started(leader.Process.Pid)}
	if !tree.End(noReaper, func() bool { return false }) {
		t.Error("got false, want true: all processes are dead")
	}
	if isAlive(leader.Process.Pid) || isAlive(member) {
		t.Error("a process of the group is alive")
	}
}

// A group that has the number of a command's earlier group is left alone, with all its members.
func TestTree_endSparesGroupOfOthers(t *testing.T) {
	leader, member := startGroup(t)
	earlier := Tree{Group: leader.Process.Pid, Started: started(leader.Process.Pid) - 1}
	if !earlier.End(noReaper, func() bool { return false }) {
		t.Error("got false, want true: no process of the tree exists")
	}
	if !isAlive(leader.Process.Pid) || !isAlive(member) {
		t.Error("a process of another group was killed")
	}
}

// When the group has ended, its number may belong to others whose first process has ended too.
func TestTree_forgetsGroup(t *testing.T) {
	const number, other = 1 << 30, 1<<30 + 1 // no such processes exist
	tree := Tree{Group: number, Started: 100}
	member := process{pid: other, parent: 1, group: number, started: 101}
	if known, _ := tree.alive([]process{member}, 0); !slices.Equal(known, []int{other}) {
		t.Errorf("got %d, want the member of the command's group, whose first process has ended", known)
	}
	member.dead = true
	if known, _ := tree.alive([]process{member}, 0); len(known) > 0 {
		t.Errorf("got %d, want no dead process", known)
	}
	member.dead = false
	if known, _ := tree.alive([]process{member}, 0); !slices.Equal(known, []int{other}) {
		t.Errorf("got %d, want the member: a process that was not reaped keeps the number in use", known)
	}
	if known, _ := tree.alive(nil, 0); len(known) > 0 {
		t.Errorf("got %d, want nothing", known)
	}
	if known, _ := tree.alive([]process{member}, 0); len(known) > 0 {
		t.Errorf("got %d, want nothing: the group had ended, so this one is of others", known)
	}
}
