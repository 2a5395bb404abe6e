package child

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Much of what a command starts leaves its process group: timeout(1) in a script, setsid(1), the jobs of a shell that has
// job control. It is known by its environment, which is inherited, whoever the parent is by now.

// process is what /proc tells of one.
type process struct {
	pid, parent, group int
	started            uint64 // in ticks since the machine was started
	dead               bool   // it has ended, all its threads too, and waits only to be waited for
}

// processes returns all processes that can be seen.
func processes() ([]process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	all := make([]process, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := look(pid); ok {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// look returns what there is to know of a process; false if it is not there any more.
func look(pid int) (process, bool) {
	text := string(readProc(pid, "stat"))
	_, rest, ok := strings.Cut(text[strings.LastIndexByte(text, ')')+1:], " ") // its name may contain anything
	f := strings.Fields(rest)
	const state, parent, group, threads, started = 0, 1, 2, 17, 19 // see proc(5)
	if !ok || len(f) <= started {
		return process{}, false
	}
	p := process{pid: pid}
	p.parent, _ = strconv.Atoi(f[parent])
	p.group, _ = strconv.Atoi(f[group])
	p.started, _ = strconv.ParseUint(f[started], 10, 64)
	// The first thread may have ended, and the others not.
	p.dead = (f[state] == "Z" || f[state] == "X") && (f[threads] == "1" || f[threads] == "0")
	return p, true
}

// readProc reads a file about a process; what cannot be read is empty. There are as many as there are processes, and somebody
// waits for a lock meanwhile: so it does without what os.ReadFile does besides.
func readProc(pid int, file string) []byte {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/"+file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	text := make([]byte, 0, 1024)
	for {
		if len(text) == cap(text) {
			text = slices.Grow(text, len(text))
		}
		n, err := unix.Read(fd, text[len(text):cap(text)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || n <= 0:
			return text
		default:
			text = text[:len(text)+n]
		}
	}
}

// started returns when a process was started; zero if that cannot be read.
func started(pid int) uint64 {
	p, _ := look(pid)
	return p.started
}

// inGroup reports whether a process is in the command's group. Once the group is empty others may be given its number: but a
// process with that number that was not started when the command was is not the command.
func (t Tree) inGroup(p process) bool {
	return p.group == t.Group && p.started >= t.Started && (p.pid != t.Group || t.Started == 0 || p.started == t.Started)
}

// isMarked reports whether a process has the mark in the environment it was started with, as far as we may look at that.
func (t Tree) isMarked(p process) bool {
	if t.Mark == "" || p.started < t.Started {
		return false
	}
	env := readProc(p.pid, "environ") // empty once it has ended
	return bytes.HasPrefix(env, []byte(t.Mark)) || bytes.Contains(env, []byte("\x00"+t.Mark))
}

// escaped returns the processes of the tree that are not in the group.
func (t Tree) escaped() []int {
	all, err := processes()
	if err != nil || t.Mark == "" {
		return nil
	}
	var pids []int
	for _, p := range all {
		if p.group != t.Group && !p.dead && t.isMarked(p) {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// Kill kills the tree. It does not wait for it to be dead.
func (t Tree) Kill() {
	t.killGroup()
	for range 10 { // they may start others meanwhile
		pids := t.escaped()
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if len(pids) == 0 {
			return
		}
	}
}

// killGroup kills the process group, unless its number has been given to others.
func (t Tree) killGroup() {
	leader, ok := look(t.Group)
	if !ok || t.Started == 0 || leader.started == t.Started {
		_ = unix.Kill(-t.Group, unix.SIGKILL)
	}
}

// End kills the tree after the process that has started it has ended, and reports whether all of it is dead. It waits for that
// until enough says that it has been enough. reaper is the process that gets the children of those who end.
//
// It reports false whenever it cannot be sure: also if there is a process that is not known to be a part of the tree, but may
// be one that has left the group and hides its environment. Whatever outlives its parents is a child of the reaper by then: so
// that is what the reaper has got in our control group since the command was started.
func (t Tree) End(reaper int, enough func() bool) bool {
	if t.Started == 0 {
		t.Kill()
		return false
	}
	t.killGroup()
	for nothing := 0; ; {
		known, doubtful, err := t.alive(reaper)
		for _, pid := range known {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		switch {
		case err != nil || enough():
			return false
		case len(known)+len(doubtful) > 0:
			nothing = 0
			awaitEnd(append(known, doubtful...))
		case nothing > 0: // a single look may miss what was started meanwhile, by one that had ended when its turn came
			return true
		default:
			nothing++
		}
	}
}

// alive returns the processes that are left of the tree, and those that may be.
func (t Tree) alive(reaper int) (known, doubtful []int, err error) {
	all, err := processes()
	if err != nil {
		return nil, nil, err
	}
	if _, ok := look(1); !ok {
		return nil, nil, errHidden
	}
	for _, p := range all {
		switch {
		case p.dead:
		case t.inGroup(p) || t.isMarked(p):
			known = append(known, p.pid)
		case t.mayBe(p, reaper):
			doubtful = append(doubtful, p.pid)
		}
	}
	return known, doubtful, nil
}

var errHidden = errors.New("/proc does not show the processes of other users")

// mayBe reports whether a process may be a part of the tree that hides it.
func (t Tree) mayBe(p process, reaper int) bool {
	self := os.Getpid()
	if p.parent != reaper || p.pid == self || p.started < t.Started {
		return false
	}
	return bytes.Equal(readProc(p.pid, "cgroup"), readProc(self, "cgroup")) && !isWatchdog(p.pid)
}

// isWatchdog reports whether a process is another watchdog, whose stile has ended too: one must not wait for the other.
func isWatchdog(pid int) bool { return bytes.HasPrefix(readProc(pid, "cmdline"), []byte(watchdogArgs)) }

// watchdogArgs is how the arguments of package watchdog's process begin.
const watchdogArgs = "stile\x00watchdog\x00"

// awaitEnd returns when the processes have ended, or after a while: they may have started others.
func awaitEnd(pids []int) {
	until := time.Now().Add(time.Second)
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		switch {
		case errors.Is(err, unix.ESRCH):
			continue
		case err != nil: // the kernel is older than Linux 5.3
			time.Sleep(10 * time.Millisecond)
			return
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(time.Until(until).Milliseconds(), 1)))
		_ = unix.Close(fd)
	}
}
