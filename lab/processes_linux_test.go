package lab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/storeurl"
)

// The processes of TestProcesses_readersThatNeverStop run this test binary with these variables set.
const (
	roleVar = "STILE_LAB_ROLE" // reader or writer
	urlVar  = "STILE_LAB_URL"
	fileVar = "STILE_LAB_FILE" // what the lock protects
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleVar)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := runRole(role); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		os.Exit(1)
	}
}

// runRole runs a process until its standard input ends.
func runRole(role string) error {
	ctx := context.Background()
	conn, err := testservers.Retry(func() (*storeurl.Conn, error) { return storeurl.Open(ctx, os.Getenv(urlVar), nil) })
	if err != nil {
		return err
	}
	defer conn.Close()
	client, err := stile.New(conn.Store, &stile.Options{TTL: ttl})
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	if role == "writer" {
		return write(ctx, client.RWMutex("demo"))
	}
	return readForever(ctx, client.RWMutex("demo"))
}

// write takes the lock for each line of its input, and prints a line for each time that it had it.
func write(ctx context.Context, m *stile.RWMutex) error {
	for requests := bufio.NewScanner(os.Stdin); requests.Scan(); {
		hold, err := m.Lock(ctx)
		if err != nil {
			return err
		}
		if err := use(syscall.LOCK_EX, func() {}); err != nil {
			return err
		}
		if err := hold.Release(ctx); err != nil {
			return err
		}
		fmt.Println("wrote")
	}
	return nil
}

// readForever reads in several goroutines, and prints a line for each time that one of them had the lock.
// A reader stays until the next one is there, so this process alone keeps the lock from being free. But
// if the next one has to wait, it leaves.
func readForever(ctx context.Context, m *stile.RWMutex) error {
	ctx, stop := context.WithCancelCause(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop(io.EOF)
	}()
	var mu sync.Mutex
	next := make(chan struct{}) // closed when the next reader has the lock
	read := func() error {
		hold, err := m.RLock(ctx)
		if err != nil {
			return err
		}
		fmt.Println("read")
		mu.Lock()
		close(next)
		next = make(chan struct{})
		relieved := next
		mu.Unlock()
		err = use(syscall.LOCK_SH, func() {
			select {
			case <-relieved:
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		})
		return errors.Join(err, hold.Release(context.WithoutCancel(ctx)))
	}
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for ctx.Err() == nil {
				if err := read(); err != nil {
					stop(err)
				}
				time.Sleep(time.Millisecond) // leaves the processors to the others
			}
		})
	}
	readers.Wait()
	if err := context.Cause(ctx); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// use calls f while it holds a lock of the kernel on the protected file. It is an error if that lock is
// not free for it.
func use(how int, f func()) error {
	file, err := os.Open(os.Getenv(fileVar))
	if err != nil {
		return err
	}
	defer file.Close() // unlocks it
	if err := syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("a reader and a writer at the same time: %w", err)
	}
	f()
	return nil
}

// A child is a process in one of the roles.
type child struct {
	t     *testing.T
	name  string
	stdin io.WriteCloser
	lines atomic.Int64  // what it has printed so far
	ended chan struct{} // closed when it has ended
	err   error         // set before ended is closed
}

func startChild(t *testing.T, name, role, url, file string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"="+role, urlVar+"="+url, fileVar+"="+file)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, name: name, stdin: stdin, ended: make(chan struct{})}
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			c.lines.Add(1)
		}
		c.err = cmd.Wait()
		close(c.ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-c.ended
	})
	return c
}

const childTimeout = 4 * time.Minute

// await waits until the process has printed n lines.
func (c *child) await(n int64) {
	c.t.Helper()
	for deadline := time.Now().Add(childTimeout); c.lines.Load() < n; {
		select {
		case <-c.ended:
			c.t.Fatalf("%s ended: %v", c.name, c.err)
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s had the lock %d times, want %d within %v", c.name, c.lines.Load(), n, childTimeout)
		}
	}
}

// end ends the process.
func (c *child) end() {
	c.t.Helper()
	_ = c.stdin.Close()
	select {
	case <-c.ended:
	case <-time.After(childTimeout):
		c.t.Fatalf("%s did not end within %v", c.name, childTimeout)
	}
	if c.err != nil {
		c.t.Errorf("%s: %v", c.name, c.err)
	}
}

// Three processes read without a pause, and a writer in a fourth gets in nevertheless, again and again.
// So do the readers after it.
// Promise: P7
// Bug: redisson #5379
func TestProcesses_readersThatNeverStop(t *testing.T) {
	for _, b := range backends {
		if b.name == "Redlock" {
			continue // has no readers
		}
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			url, file := b.url(t), filepath.Join(t.TempDir(), "protected")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			var readers []*child
			for i := range 3 {
				readers = append(readers, startChild(t, fmt.Sprintf("reader %d", i), "reader", url, file))
			}
			awaitReaders := func() {
				t.Helper()
				for _, r := range readers {
					r.await(r.lines.Load() + 10)
				}
			}
			writer := startChild(t, "the writer", "writer", url, file)
			for round := range int64(5) {
				awaitReaders()
				if _, err := io.WriteString(writer.stdin, "\n"); err != nil {
					t.Fatal(err)
				}
				writer.await(round + 1)
			}
			awaitReaders()
			for _, c := range append(readers, writer) {
				c.end()
			}
		})
	}
}
