package child

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Much of what a command starts leaves its process group: timeout(1) in a script, setsid(1), the jobs of a shell that has
// job control. It is known by its environment, which is inherited, whoever the parent is by now.

// escaped returns the processes outside the group that have all of mark in the environment they were started with, as
// far as we may look at them.
func escaped(group int, mark []string) []int {
	if len(mark) == 0 {
		return nil
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, proc := range procs {
		pid, err := strconv.Atoi(proc.Name())
		if err != nil || !isMarked(proc.Name(), mark) {
			continue
		}
		if of, err := unix.Getpgid(pid); err == nil && of != group {
			pids = append(pids, pid)
		}
	}
	return pids
}

func isMarked(pid string, mark []string) bool {
	env, err := os.ReadFile("/proc/" + pid + "/environ") // empty once it has ended
	if err != nil {
		return false
	}
	env = append([]byte{0}, env...)
	for _, m := range mark {
		if !bytes.Contains(env, []byte("\x00"+m+"\x00")) {
			return false
		}
	}
	return true
}
