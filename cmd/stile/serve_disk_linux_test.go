package main_test

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
)

// on makes a command run where a directory, disk, is a file system of its own, made with these options. Only the command
// sees it. The test is skipped where that is not possible.
func (c *command) onDisk(options string) *command {
	c.m.t.Helper()
	const script = `mount -t tmpfs -o "$0" none disk || exit 99; exec "$@"`
	c.Args = append([]string{"sh", "-c", script, options, c.Path}, c.Args[1:]...)
	c.Path = "/bin/sh"
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := os.MkdirAll(c.m.path("disk"), 0o700); err != nil {
		c.m.t.Fatal(err)
	}
	return c
}

// requireMounts skips the test where a process may not mount a file system for itself.
func requireMounts(m *machine) {
	m.t.Helper()
	c := m.command("version").onDisk("size=1m")
	if err := c.Start(); err != nil {
		m.t.Skipf("SKIPPED, NOT TESTED: full and read-only disks: no namespaces here: %v", err)
	}
	if err := c.Wait(); err != nil {
		m.t.Skipf("SKIPPED, NOT TESTED: full and read-only disks: cannot mount here: %v: %s", err, c.stderr)
	}
}

func TestServe_fullOrReadOnlyDisk(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	requireMounts(m)
	serve := func() *command {
		return m.command("serve", "--listen", "127.0.0.1:0", "--data", m.path("disk", "data"))
	}
	serve().onDisk("size=6m").spawn().expectExit(125, m.path("disk", "data"), "no space left", "free some space", "--data")
	serve().onDisk("ro").spawn().expectExit(125, m.path("disk", "data"), "read-only file system", "--data")
}

// What etcd cannot write it must not acknowledge: the server ends, and says why.
func TestServe_diskBecomesFull(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	requireMounts(m)
	s := &serveCommand{command: m.command("serve", "--listen", "127.0.0.1:0", "--data", m.path("disk")).onDisk("size=60m"), log: new(logBuffer)}
	s.Cmd.Stderr = s.log
	s.spawn()
	s.awaitLog("msg=ready")
	cli := client(t, strings.TrimPrefix(s.readyValue("url"), "etcd://"))
	much := strings.Repeat("x", 1<<20)
	alive, end := context.WithTimeout(t.Context(), testTimeout)
	go func() {
		<-s.done
		end()
	}()
	for range 100 {
		if _, err := cli.Put(alive, "k", much); err != nil {
			break // the answer to what could not be written is that there is nobody any more
		}
	}
	if code := s.exitCode(); code != 125 {
		t.Errorf("exit code %d", code)
	}
	_, last, _ := strings.Cut(s.log.String(), "msg=ready")
	_, last, _ = strings.Cut(last, "\n")
	if strings.Count(last, "\n") != 1 || !strings.Contains(last, "the server has failed") || !strings.Contains(last, "no space left") {
		t.Errorf("said in the end: %s", last)
	}
}
