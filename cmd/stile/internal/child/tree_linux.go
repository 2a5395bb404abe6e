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

// Many descendants leave the command's process group: timeout(1) in a script, setsid(1), the jobs
// of a shell with job control. They are recognized by the environment that they inherited, even
// after their parent has changed.

// process has the fields of a process in /proc.
type process struct {
	pid, parent, group int
	started            uint64 // in ticks since the machine was started
	dead               bool   // a zombie without live threads
}

// processes returns all visible processes.
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
			if p, ok := readProcess(pid); ok {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// readProcess reads a process; false if it does not exist any more.
func readProcess(pid int) (process, bool) {
	text := string(readProc(pid, "stat"))
	_, rest, ok := strings.Cut(text[strings.LastIndexByte(text, ')')+1:], " ") // the name before it may contain any character
	f := strings.Fields(rest)
	const state, parent, group, threads, started = 0, 1, 2, 17, 19 // see proc(5)
	if !ok || len(f) <= started {
		return process{}, false
	}
	p := process{pid: pid}
	p.parent, _ = strconv.Atoi(f[parent])
	p.group, _ = strconv.Atoi(f[group])
	p.started, _ = strconv.ParseUint(f[started], 10, 64)
	// The first thread may have ended before the others.
	p.dead = (f[state] == "Z" || f[state] == "X") && (f[threads] == "1" || f[threads] == "0")
	return p, true
}

// readProc reads a file of a process; it returns an empty slice on errors. It avoids the overhead
// of os.ReadFile, because there is a file for every process, and a waiter waits for the lock
// meanwhile.
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

// started returns the start time of a process; zero if it cannot be read.
func started(pid int) uint64 {
	p, _ := readProcess(pid)
	return p.started
}

// groupEnded reports whether the command's group has ended, so that others may have got its number. A
// process id is not used again while a group has it (POSIX.1-2024, XBD 4.17).
func (t Tree) groupEnded() bool {
	if p, ok := readProcess(t.Group); ok {
		return t.Started != 0 && p.started != t.Started
	}
	return errors.Is(unix.Kill(-t.Group, 0), unix.ESRCH)
}

// isMarked reports whether the mark is in the environment that a process was started with. It is
// false if that cannot be read.
func (t Tree) isMarked(p process) bool {
	if t.Mark == "" || p.started < t.Started {
		return false
	}
	env := readProc(p.pid, "environ") // empty once it has ended
	return bytes.HasPrefix(env, []byte(t.Mark)) || bytes.Contains(env, []byte("\x00"+t.Mark))
}

// escaped returns the processes of the tree outside the group.
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

// Kill kills the tree. It does not wait until the processes are dead.
func (t Tree) Kill() {
	t.killGroup()
	for range 10 { // they may start others before they die
		pids := t.escaped()
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if len(pids) == 0 {
			return
		}
	}
}

// killGroup kills the process group, unless it has ended.
func (t Tree) killGroup() {
	if !t.groupEnded() {
		_ = unix.Kill(-t.Group, unix.SIGKILL)
	}
}

// End kills the tree after the process that started it has ended, and reports whether all of the
// tree is dead. It waits for that until giveUp returns true. reaper is the process that becomes the
// parent of orphans.
//
// End returns false whenever it is unsure: also if there is a process that may belong to the tree,
// but has left the group and hides its environment. Such a process is by then a child of the
// reaper. So all children of the reaper in our control group that were started after the command
// count as such.
func (t Tree) End(reaper int, giveUp func() bool) bool {
	if t.Started == 0 {
		t.Kill()
		return false
	}
	t.killGroup()
	ended := false // whether the group has ended; remembered, because others may get its number while End waits
	for emptyScans := 0; ; {
		all, err := processes()
		if _, ok := readProcess(1); err != nil || !ok { // /proc may not show the processes of other users
			return false
		}
		ended = ended || t.groupEnded()
		known, unsure := t.alive(all, ended, reaper)
		for _, pid := range known {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		switch {
		case giveUp():
			return false
		case len(known)+len(unsure) > 0:
			emptyScans = 0
			awaitEnd(append(known, unsure...))
		case emptyScans > 0: // one scan may miss a process whose parent started it during the scan and ended
			return true
		default:
			emptyScans++
		}
	}
}

// alive returns the processes of the tree that are alive, and those that may belong to it. If the
// command's group has ended, its number identifies nothing.
func (t Tree) alive(all []process, ended bool, reaper int) (known, unsure []int) {
	for _, p := range all {
		switch {
		case p.dead:
		case p.group == t.Group && !ended || t.isMarked(p):
			known = append(known, p.pid)
		case t.mayInclude(p, reaper):
			unsure = append(unsure, p.pid)
		}
	}
	return known, unsure
}

// mayInclude reports whether a process may belong to the tree although nothing identifies it.
func (t Tree) mayInclude(p process, reaper int) bool {
	self := os.Getpid()
	if p.parent != reaper || p.pid == self || p.started < t.Started {
		return false
	}
	return bytes.Equal(readProc(p.pid, "cgroup"), readProc(self, "cgroup")) && !isWatchdog(p.pid)
}

// isWatchdog reports whether a process is another watchdog whose stile has ended: two watchdogs
// must not wait for each other.
func isWatchdog(pid int) bool { return bytes.HasPrefix(readProc(pid, "cmdline"), []byte(watchdogArgs)) }

// watchdogArgs is the beginning of the arguments of package watchdog's process.
const watchdogArgs = "stile\x00watchdog\x00"

// awaitEnd waits until the processes have ended, but about a second at most, because they may have
// started others.
func awaitEnd(pids []int) {
	until := time.Now().Add(time.Second)
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		switch {
		case errors.Is(err, unix.ESRCH):
			continue
		case err != nil: // before Linux 5.3
			time.Sleep(10 * time.Millisecond)
			return
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(time.Until(until).Milliseconds(), 1)))
		_ = unix.Close(fd)
	}
}
