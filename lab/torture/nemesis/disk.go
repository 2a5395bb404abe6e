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

// diskFaults returns the faults of a server's disk.
func diskFaults() []Fault {
	kinds, reason := []string{"etcd", "etcd3", "zk", "zk3"}, "its servers keep nothing on disk"
	return []Fault{
		{
			Name:     "server-slow-disk",
			Summary:  "make each sync of a server's disk take up to a second longer",
			kinds:    kinds,
			reason:   reason,
			programs: []string{"strace"},
			strike:   slowDisk,
		},
		{
			Name:    "server-full-disk",
			Summary: "fill a server's disk; a server that ends because of that is restarted when there is space again",
			kinds:   kinds,
			reason:  reason,
			strike:  fullDisk,
		},
	}
}

func slowDisk(ctx context.Context, st *striker) error {
	server, err := st.pickServer(ctx)
	if err != nil {
		return err
	}
	delay := time.Duration(50+st.random.IntN(950)) * time.Millisecond
	st.Duration = st.randomTTLs(0.5, 2)
	st.describe("every sync takes %v longer,", delay)
	strace, err := slowSyncs(st.world.Cluster.Network(), server.Pid(), delay)
	if err != nil {
		return err
	}
	st.heal = strace.detach
	return nil
}

// A straceProcess is an strace that slows down a process.
type straceProcess struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan struct{}
	err    error // the error of Wait; set before ended is closed
}

// slowSyncs delays each sync of a process, and returns when the delay is effective.
func slowSyncs(network *site.Network, pid int, delay time.Duration) (*straceProcess, error) {
	t := &straceProcess{ended: make(chan struct{})}
	t.cmd = exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync",
		"-e", "inject=fsync,fdatasync:delay_exit="+strconv.FormatInt(delay.Microseconds(), 10), "-p", strconv.Itoa(pid))
	t.cmd.Stderr = &t.stderr
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
			return nil, fmt.Errorf("strace has ended: %w: %s", t.err, strings.TrimSpace(t.stderr.String()))
		case <-time.After(time.Millisecond):
		}
		switch traced, err := tracedBy(pid, t.cmd.Process.Pid); {
		case traced:
			return t, nil
		case err != nil, time.Now().After(end):
			return nil, errors.Join(fmt.Errorf("strace did not attach to process %d", pid), err, t.detach())
		}
	}
}

// tracedBy reports whether tracer, a process id or 0 for none, is the tracer of all threads of pid.
func tracedBy(pid, tracer int) (bool, error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return false, err
	}
	want := fmt.Sprintf("\nTracerPid:\t%d\n", tracer)
	for _, thread := range threads {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, thread.Name()))
		if !strings.Contains(string(status), want) {
			return false, nil // or the thread has just ended; the caller looks again
		}
	}
	return true, nil
}

// detach ends the strace, which detaches from the process.
func (t *straceProcess) detach() error {
	if err := t.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-t.ended:
		return nil
	case <-time.After(30 * time.Second):
		_ = t.cmd.Process.Kill()
		<-t.ended
		return errors.New("strace did not detach, and was killed")
	}
}

func fullDisk(ctx context.Context, st *striker) error {
	server, err := st.pickServer(ctx)
	if err != nil {
		return err
	}
	st.Duration = st.randomTTLs(0.5, 2)
	st.describe("disk full")
	st.heal = func() error { return freeDisk(server) }
	return server.FillDisk()
}

// freeDisk frees the disk, and starts the server if it has ended because of the full disk.
func freeDisk(server *site.Server) error {
	if err := server.FreeDisk(); err != nil {
		return err
	}
	if server.Running() {
		return nil
	}
	return server.Start()
}
