//go:build unix

package fileguard_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/fileguard"
	"github.com/stilelock/stile/guard/guardtest"
)

// The test program is also a writer: it writes its token into a file, when it is told to.
const writerVar = "STILE_TEST_WRITER"

func TestMain(m *testing.M) {
	if path := os.Getenv(writerVar); path != "" {
		write(path, os.Args[1], os.Args[2])
		return
	}
	os.Exit(m.Run())
}

// write is a writer with a token. It says "ready" and waits for a line, before its write or within it.
func write(path, text, where string) {
	token, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(err)
	}
	pause := func() {
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	}
	if where == "before" {
		pause()
		err = fileguard.WriteFile(context.Background(), path, []byte(text), 0o600, token)
	} else {
		err = fileguard.Do(context.Background(), path, token, func() error {
			pause()
			return os.WriteFile(path, []byte(text), 0o600)
		})
	}
	if errors.Is(err, guard.ErrStale) {
		fmt.Println("stale")
		return
	}
	fmt.Println(err)
}

type writer struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin *os.File
	out   *bufio.Scanner
}

// startWriter starts a writer, and returns when it is ready.
func startWriter(t *testing.T, path string, token uint64, where string) *writer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{t: t, cmd: exec.CommandContext(t.Context(), self, strconv.FormatUint(token, 10), where)}
	w.cmd.Env = append(os.Environ(), writerVar+"="+path)
	w.cmd.Stderr = os.Stderr
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.cmd.Stdin, w.stdin = read, write
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.out = bufio.NewScanner(out)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read.Close()
	t.Cleanup(func() {
		write.Close()
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	})
	w.expect("ready")
	return w
}

func (w *writer) expect(line string) {
	w.t.Helper()
	if !w.out.Scan() || w.out.Text() != line {
		w.t.Fatalf("the writer says %q, %v; want %q", w.out.Text(), w.out.Err(), line)
	}
}

func (w *writer) signal(sig syscall.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(sig); err != nil {
		w.t.Fatal(err)
	}
}

func (w *writer) proceed() {
	w.t.Helper()
	if _, err := w.stdin.WriteString("\n"); err != nil {
		w.t.Fatal(err)
	}
}

func expectFile(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("the file: got %q, %v, want %q", got, err, want)
	}
}

// A holder is stopped before its write, loses its lock, and wakes up after the next holder has written.
// Promise: P2
func TestWriteFile_stoppedBefore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	a := startWriter(t, path, 5, "before")
	a.signal(syscall.SIGSTOP)
	if err := fileguard.WriteFile(t.Context(), path, []byte("6"), 0o600, 6); err != nil {
		t.Fatal(err)
	}
	a.signal(syscall.SIGCONT)
	a.proceed()
	a.expect("stale")
	expectFile(t, path, "6")
}

// A holder is stopped after the comparison. The next one waits, so that its write is the last.
// Promise: P2
func TestDo_stoppedInside(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	a := startWriter(t, path, 5, "inside")
	a.signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := fileguard.WriteFile(ctx, path, []byte("6"), 0o600, 6)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), path) {
		t.Errorf("beside a writer that is stopped: got %v, want the end of the context and the path", err)
	}
	done := make(chan error)
	go func() { done <- fileguard.WriteFile(t.Context(), path, []byte("6"), 0o600, 6) }()
	a.signal(syscall.SIGCONT)
	a.proceed()
	a.expect("<nil>")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	expectFile(t, path, "6")
	if err := fileguard.WriteFile(t.Context(), path, []byte("5"), 0o600, 5); !errors.Is(err, guard.ErrStale) {
		t.Errorf("the first one once more: got %v, want ErrStale", err)
	}
}

// A writer that is killed inside blocks nobody.
func TestDo_killedInside(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	a := startWriter(t, path, 5, "inside")
	a.signal(syscall.SIGKILL)
	if err := fileguard.WriteFile(t.Context(), path, []byte("5 again"), 0o600, 5); err != nil {
		t.Fatal(err)
	}
	expectFile(t, path, "5 again")
}

func TestDo_oneAtATime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	var wg sync.WaitGroup
	var running, ran atomic.Int64
	for range 20 {
		wg.Go(func() {
			err := fileguard.Do(t.Context(), path, 5, func() error {
				if n := running.Add(1); n != 1 {
					t.Errorf("%d run at a time", n)
				}
				time.Sleep(time.Millisecond)
				running.Add(-1)
				ran.Add(1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := ran.Load(); n != 20 {
		t.Errorf("%d were run, want 20", n)
	}
}

// The error of f is returned, and its token has been seen all the same.
func TestDo_failure(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	failure := errors.New("disk full")
	if err := fileguard.Do(t.Context(), path, 5, func() error { return failure }); !errors.Is(err, failure) {
		t.Errorf("got %v, want the error of f", err)
	}
	ran := false
	err := fileguard.Do(t.Context(), path, 4, func() error { ran = true; return nil })
	stale, ok := errors.AsType[*guard.StaleError](err)
	if !ok || *stale != (guard.StaleError{Resource: path, Token: 4, Newest: 5}) || ran {
		t.Errorf("a smaller token: got %v, run %v; want it refused", err, ran)
	}
	if err := fileguard.Do(t.Context(), filepath.Join(path, "no", "such"), 5, nil); !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a directory: got %v, want ErrNotExist", err)
	}
}

// A reader sees the old or the new content while the file is written, and its permissions are those
// asked for.
func TestWriteFile_inOneStep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	contents := []string{strings.Repeat("a", 1<<20), strings.Repeat("b", 1<<20)}
	if err := fileguard.WriteFile(t.Context(), path, []byte(contents[0]), 0o640, 1); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if got, err := os.ReadFile(path); err != nil || !slices.Contains(contents, string(got)) {
				t.Errorf("read %d bytes, %v: neither content", len(got), err)
				return
			}
		}
	})
	for i := range 20 {
		if err := fileguard.WriteFile(t.Context(), path, []byte(contents[i%2]), 0o640, uint64(i+2)); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("got %v, %v, want permissions 0640", info, err)
	}
	if info, err := os.Stat(path + ".fence"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the fence: got %v, %v, want permissions 0600", info, err)
	}
	if names, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(names) != 2 {
		t.Errorf("got files %v, %v, want two", names, err)
	}
}

// The fence survives a write that was cut off at any byte: it says the token before, or the new one.
func TestDo_fenceCutOff(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	raise := func(token uint64) error {
		return fileguard.Do(t.Context(), path, token, func() error { return nil })
	}
	for token := range uint64(4) {
		before, err := os.ReadFile(path + ".fence")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if err := raise(10 * (token + 1)); err != nil {
			t.Fatal(err)
		}
		after, err := os.ReadFile(path + ".fence")
		if err != nil {
			t.Fatal(err)
		}
		for cut := range after {
			torn := slices.Clone(before)
			for i := range cut {
				if i >= len(torn) {
					torn = append(torn, after[i])
				} else {
					torn[i] = after[i]
				}
			}
			if err := os.WriteFile(path+".fence", torn, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := raise(10*token - 1); token > 0 && !errors.Is(err, guard.ErrStale) {
				t.Fatalf("after %d bytes of the write of token %d: token %d: got %v, want ErrStale", cut, 10*(token+1), 10*token-1, err)
			}
		}
		if err := os.WriteFile(path+".fence", after, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path+".fence", []byte(strings.Repeat("x", 64)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := raise(100); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged fence: got %v, want an error that says so", err)
	}
}

// One changed byte of the only token does not make the fence forget it.
func TestDo_fenceDamaged(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	write := func(token uint64) error { return fileguard.WriteFile(t.Context(), path, nil, 0o600, token) }
	if err := write(10); err != nil {
		t.Fatal(err)
	}
	fence, err := os.ReadFile(path + ".fence")
	if err != nil {
		t.Fatal(err)
	}
	for i := range fence {
		damaged := slices.Clone(fence)
		damaged[i] ^= 1
		if err := os.WriteFile(path+".fence", damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := write(5); !errors.Is(err, guard.ErrStale) {
			t.Errorf("with another byte %d: token 5 after 10: got %v, want ErrStale", i, err)
		}
	}
	if err := os.WriteFile(path+".fence", make([]byte, len(fence)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(1); err != nil { // the machine died before the content of a new file was on the disk
		t.Errorf("a fence of zeros: got %v, want that of a new one", err)
	}
}

// Nothing is written when the context has ended: that of a hold ends when the lock is lost.
// Promise: P6
func TestDo_contextEnded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	lost := errors.New("the lock is lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	ran := false
	err := fileguard.Do(ctx, path, 5, func() error { ran = true; return nil })
	if ran || !errors.Is(err, context.Canceled) || !errors.Is(err, lost) {
		t.Errorf("got %v, run %v; want the end of the context and its cause", err, ran)
	}
}

func TestDo_badTokens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	for _, token := range []uint64{0, 1 << 63} {
		ran := false
		if err := fileguard.Do(t.Context(), path, token, func() error { ran = true; return nil }); ran || !errors.Is(err, guard.ErrBadToken) {
			t.Errorf("Do with token %d: got %v, run %v; want ErrBadToken", token, err, ran)
		}
		if err := fileguard.WriteFile(t.Context(), path, nil, 0o600, token); !errors.Is(err, guard.ErrBadToken) {
			t.Errorf("WriteFile with token %d: got %v, want ErrBadToken", token, err)
		}
	}
}

// The paths of the guard's own files cannot be guarded, nor links, which would have fences of their own.
func TestDo_badPaths(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("f", link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		link: "symbolic link", filepath.Join(dir, "f.next"): "own files", filepath.Join(dir, "f.fence"): "own files",
	} {
		err := fileguard.WriteFile(t.Context(), path, nil, 0o600, 5)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want an error with %q", path, err, want)
		}
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("got files %v, %v, want the link alone", names, err)
	}
}

// Different spellings of a directory have one fence.
// Promise: P2
func TestDo_oneFenceForAllSpellings(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	nothing := func() error { return nil }
	if err := fileguard.Do(t.Context(), dir, 9, nothing); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir + "/", dir + "//", dir + "/.", dir + "/x/..", filepath.Dir(dir) + "/./data"} {
		if err := fileguard.Do(t.Context(), path, 3, nothing); !errors.Is(err, guard.ErrStale) {
			t.Errorf("%s: token 3 after 9: got %v, want ErrStale", path, err)
		}
	}
	link := filepath.Join(filepath.Dir(dir), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link + "/", "", ".", "..", "../..", "/"} {
		if err := fileguard.Do(t.Context(), path, 3, nothing); err == nil || errors.Is(err, guard.ErrStale) {
			t.Errorf("%q: got %v, want an error about the path", path, err)
		}
	}
}

// The system takes a page that it could not write to the disk for written, and the next flush does nothing unless
// somebody has written to the file again.
// Promise: P2
func TestDo_flushFails(t *testing.T) { //nolint:paralleltest // replaces a function of the package
	path := filepath.Join(t.TempDir(), "f")
	onDisk, fails := "", false
	clean := time.Unix(1, 0) // the time of the last change, if there was none since a flush has failed
	defer fileguard.SetFlush(func(fence *os.File) error {
		if fails {
			return errors.Join(syscall.EIO, os.Chtimes(fence.Name(), clean, clean))
		}
		info, err := fence.Stat()
		if err != nil || info.ModTime().Equal(clean) {
			return err
		}
		content, err := os.ReadFile(fence.Name())
		onDisk = string(content)
		return err
	})()
	for _, token := range []uint64{6, 7, 8} {
		ran := 0
		raise := func() error { return fileguard.Do(t.Context(), path, token, func() error { ran++; return nil }) }
		fails = true
		for range 2 { // the second call finds the token
			if err := raise(); !errors.Is(err, syscall.EIO) || ran > 0 {
				t.Fatalf("token %d: got %v, run %d times; want EIO", token, err, ran)
			}
		}
		fails = false
		if err := raise(); err != nil || ran != 1 {
			t.Fatalf("token %d again: got %v, run %d times", token, err, ran)
		}
		if !strings.Contains(onDisk, strconv.FormatUint(token, 10)) {
			t.Errorf("token %d: its function was run, and on the disk is the fence %q", token, onDisk)
		}
	}
}

// A fence that is a link, perhaps to another user's file, is refused.
func TestDo_fenceIsLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), path+".fence"); err != nil {
		t.Fatal(err)
	}
	if err := fileguard.Do(t.Context(), path, 5, func() error { return nil }); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("got %v, want ELOOP", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "elsewhere")); err == nil {
		t.Error("the file that the link names was made")
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	guardtest.Tokens(t, fileguard.Tokens{Dir: t.TempDir()})
}

// endsWhenRaised is a context that ends as soon as the fence has the token.
type endsWhenRaised struct {
	context.Context
	fence, token string
}

func (c endsWhenRaised) Err() error {
	if text, _ := os.ReadFile(c.fence); strings.Contains(string(text), c.token) {
		return context.Canceled
	}
	return c.Context.Err()
}

// The disk is so slow that the lock is lost while the token is written.
func TestDo_contextEndsWhileTokenIsRaised(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "data")
	ran := false
	err := fileguard.Do(endsWhenRaised{t.Context(), path + ".fence", "987654321"}, path, 987654321, func() error { ran = true; return nil })
	if !errors.Is(err, context.Canceled) || ran {
		t.Errorf("got error %v and f run %t, want Canceled and f not run", err, ran)
	}
}
