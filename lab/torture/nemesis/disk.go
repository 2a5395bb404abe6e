//go:build linux

package nemesis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stilelock/stile/lab/torture/site"
)

// diskFaults are those that hit the disk of a server.
func diskFaults() []Fault {
	kinds, why := []string{"etcd", "etcd3", "zk", "zk3"}, "servers keep nothing on disk there"
	return []Fault{
		{
			Name:     "server-slow-disk",
			Summary:  "let a server's disk take up to a second to sync",
			kinds:    kinds,
			why:      why,
			programs: []string{"strace"},
			strike:   slowDisk,
		},
		{
			Name:    "server-full-disk",
			Summary: "leave no room on a server's disk; if it ends of that, start it again when there is",
			kinds:   kinds,
			why:     why,
			strike:  fullDisk,
		},
	}
}

func slowDisk(ctx context.Context, h *hand) error {
	server, err := h.server(ctx)
	if err != nil {
		return err
	}
	delay := time.Duration(50+h.random.IntN(950)) * time.Millisecond
	h.For = h.ttls(0.5, 2)
	h.saying("every sync takes %v longer,", delay)
	tracer, err := trace(h.world.Cluster.Network(), server.Pid(), delay)
	if err != nil {
		return err
	}
	h.heal = tracer.end
	return nil
}

// A tracer is an strace that slows a process down.
type tracer struct {
	cmd   *exec.Cmd
	said  bytes.Buffer
	ended chan struct{}
	err   error // how it ended; read it after ended
}

// trace slows the syncs of a process down, and returns when they are slow.
func trace(network *site.Network, pid int, delay time.Duration) (*tracer, error) {
	t := &tracer{ended: make(chan struct{})}
	t.cmd = exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync",
		"-e", "inject=fsync,fdatasync:delay_exit="+strconv.FormatInt(delay.Microseconds(), 10), "-p", strconv.Itoa(pid))
	t.cmd.Stderr = &t.said
	if err := network.Start(t.cmd); err != nil {
		return nil, err
	}
	go func() {
		t.err = t.cmd.Wait()
		close(t.ended)
	}()
	for end := time.Now().Add(30 * time.Second); ; {
		select {
		case <-t.ended:
			return nil, fmt.Errorf("strace has ended: %w: %s", t.err, strings.TrimSpace(t.said.String()))
		case <-time.After(time.Millisecond):
		}
		switch traced, err := tracedBy(pid, t.cmd.Process.Pid); {
		case traced:
			return t, nil
		case err != nil, time.Now().After(end):
			return nil, errors.Join(fmt.Errorf("strace has not got hold of process %d", pid), err, t.end())
		}
	}
}

// tracedBy reports whether all threads of a process are traced by another.
func tracedBy(pid, tracer int) (bool, error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return false, err
	}
	want := fmt.Sprintf("\nTracerPid:\t%d\n", tracer)
	for _, thread := range threads {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, thread.Name()))
		if !strings.Contains(string(status), want) {
			return false, nil // or the thread has just ended: look again
		}
	}
	return true, nil
}

// end lets the process go.
func (t *tracer) end() error {
	if err := t.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-t.ended:
		return nil
	case <-time.After(30 * time.Second):
		_ = t.cmd.Process.Kill()
		<-t.ended
		return errors.New("strace did not let go, and was killed")
	}
}

func fullDisk(ctx context.Context, h *hand) error {
	server, err := h.server(ctx)
	if err != nil {
		return err
	}
	h.For = h.ttls(0.5, 2)
	h.saying("no room on its disk")
	h.heal = func() error { return freeDisk(server) }
	return server.FillDisk()
}

// freeDisk makes room again, and starts the server if it has ended of that.
func freeDisk(server *site.Server) error {
	if err := server.FreeDisk(); err != nil {
		return err
	}
	if server.Running() {
		return nil
	}
	return server.Start()
}
