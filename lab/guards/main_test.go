//go:build linux

package guards_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/lab/guards"
)

// testTimeout is how long tests wait for events that should happen within seconds, on however busy a
// machine.
const testTimeout = 4 * time.Minute

var (
	redisServer    = testservers.Shared[*testservers.Redis]{New: func() (*testservers.Redis, error) { return testservers.NewRedis() }}
	etcdServer     = testservers.Shared[*testservers.Etcd]{New: func() (*testservers.Etcd, error) { return testservers.NewEtcd() }}
	zkServer       = testservers.Shared[*testservers.ZooKeeper]{New: func() (*testservers.ZooKeeper, error) { return testservers.NewZooKeeper("maxSessionTimeout=600000") }}
	postgresServer = testservers.Shared[*testservers.Postgres]{New: func() (*testservers.Postgres, error) { return testservers.NewPostgres("max_connections=300") }}
	mariadbServer  = testservers.Shared[*testservers.MariaDB]{New: func() (*testservers.MariaDB, error) { return testservers.NewMariaDB("max_connections=300") }}
)

// TestMain runs as many tests at a time as TestPauses uses journals, because they mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", strconv.Itoa(max(*beside, 8)))
	}
	code := m.Run()
	redisServer.Close()
	etcdServer.Close()
	zkServer.Close()
	postgresServer.Close()
	mariadbServer.Close()
	_ = os.RemoveAll(programDir)
	os.Exit(code)
}

// serversFor starts the servers that a kind of journal needs. writer is the program of some of them.
func serversFor(t testing.TB, kind guards.Kind, writer string) guards.Servers {
	t.Helper()
	s := guards.Servers{Dir: t.TempDir()}
	if strings.HasPrefix(kind.Locks(guards.Servers{}), "redis:") {
		s.Redis = redisServer.Get(t).Addr()
	}
	switch kind.Name {
	case "sqlguard-postgres":
		s.Postgres = postgresServer.Get(t).DSN()
	case "sqlguard-mariadb":
		s.MariaDB = mariadbServer.Get(t).DSN()
	case "httpguard":
		s.HTTP = start(t, writer, "serve", s.Dir).next()
	case "s3guard":
		s.S3 = start(t, writer, "s3").next()
	case "etcdguard":
		s.Etcd = etcdServer.Get(t).Endpoint()
	case "zkguard":
		s.ZooKeeper = zkServer.Get(t).Endpoint()
	}
	return s
}

// The program of writers is built once for all tests.
var (
	programDir string
	build      = sync.OnceValues(func() (string, error) {
		var err error
		if programDir, err = os.MkdirTemp("", "guards"); err != nil {
			return "", err
		}
		return buildWriter(filepath.Join(programDir, "writer"))
	})
)

func buildWriter(to string, flags ...string) (path string, err error) {
	args := append([]string{"build", "-buildvcs=false", "-o", to}, flags...)
	if out, err := exec.Command("go", append(args, "./writer")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the writer: %w: %s", err, out)
	}
	return to, nil
}

func writerProgram(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A process is a running writer.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string // closed when the process ends
}

func start(t testing.TB, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, args...), lines: make(chan string, 10)}
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			p.lines <- in.Text()
		}
		close(p.lines)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // also if it is stopped
		_ = p.cmd.Wait()
	})
	return p
}

// TTLs of the writers' locks.
const (
	shortTTL = time.Second
	longTTL  = testTimeout
)

// startWriter starts a writer of a journal, and returns when it is ready.
func startWriter(t testing.TB, program string, kind guards.Kind, name string, ttl time.Duration, s guards.Servers) *process {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, program, kind.Name, name, ttl.String(), string(b))
	if line := p.next(); line != "ready" {
		t.Fatalf("got %q, want that the writer is ready", line)
	}
	return p
}

// send tells the process to do something.
func (p *process) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.t.Fatalf("%s: %v", line, err)
	}
}

// answer returns the next answer, and false if there is none within d.
func (p *process) answer(d time.Duration) (string, bool) {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatal("the writer has ended")
		}
		return line, true
	case <-time.After(d):
		return "", false
	}
}

// answered returns the answer if there is one already.
func (p *process) answered() (string, bool) {
	if len(p.lines) == 0 {
		return "", false
	}
	return p.next(), true
}

func (p *process) next() string {
	p.t.Helper()
	line, ok := p.answer(testTimeout)
	if !ok {
		p.t.Fatalf("no answer within %v", testTimeout)
	}
	return line
}

// do tells the process to do something, and returns the answer.
func (p *process) do(line string) string {
	p.t.Helper()
	p.send(line)
	return p.next()
}

func (p *process) expect(line, want string) {
	p.t.Helper()
	if got := p.do(line); got != want {
		p.t.Fatalf("%s: got %q, want %q", line, got, want)
	}
}

// lock makes the process hold the lock, and returns the token.
func (p *process) lock() uint64 {
	p.t.Helper()
	return tokenIn(p.t, p.do("lock"))
}

func tokenIn(t testing.TB, answer string) uint64 {
	t.Helper()
	digits, ok := strings.CutPrefix(answer, "locked ")
	token, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil {
		t.Fatalf("got %q, want the lock", answer)
	}
	return token
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// newName returns a name for a journal and its lock.
func newName() string { return "j-" + rand.Text() }

// tokens returns the tokens in a journal.
func tokens(t testing.TB, j guards.Journal) []uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	all, err := j.Tokens(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func openJournal(t testing.TB, kind guards.Kind, name string, s guards.Servers) guards.Journal {
	t.Helper()
	j, err := kind.Open(context.Background(), s, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return j
}
