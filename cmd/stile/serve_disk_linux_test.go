package main_test

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
)

// onDisk makes the command run with the directory disk as a file system of its own, mounted with
// these options. Only the command sees it.
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

// requireMounts skips a test where a process cannot mount a file system for itself.
func requireMounts(m *machine) {
	m.t.Helper()
	c := m.command("version").onDisk("size=1m")
	if err := c.Start(); err != nil {
		m.t.Skipf("SKIPPED, NOT TESTED: full and read-only disks: no namespaces on this machine: %v", err)
	}
	if err := c.Wait(); err != nil {
		m.t.Skipf("SKIPPED, NOT TESTED: full and read-only disks: cannot mount a file system on this machine: %v: %s", err, c.stderr)
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

// etcd must not acknowledge a write that failed. The server ends and reports why.
func TestServe_diskBecomesFull(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	requireMounts(m)
	s := &serveCommand{command: m.command("serve", "--listen", "127.0.0.1:0", "--data", m.path("disk")).onDisk("size=60m"), log: new(logBuffer)}
	s.Cmd.Stderr = s.log
	s.spawn()
	s.awaitLog("msg=ready")
	cli := client(t, strings.TrimPrefix(s.readyValue("url"), "etcd://"))
	value := strings.Repeat("x", 1<<20)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	go func() {
		<-s.done
		cancel()
	}()
	for range 100 {
		if _, err := cli.Put(ctx, "k", value); err != nil {
			break // the server ends instead of acknowledging a failed write
		}
	}
	if code := s.exitCode(); code != 125 {
		t.Errorf("got exit code %d, want 125", code)
	}
	_, last, _ := strings.Cut(s.log.String(), "msg=ready")
	_, last, _ = strings.Cut(last, "\n")
	if strings.Count(last, "\n") != 1 || !strings.Contains(last, "the server has failed") || !strings.Contains(last, "no space left") {
		t.Errorf("got log %s, want one line about the full disk", last)
	}
}
