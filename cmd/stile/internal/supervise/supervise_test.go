//go:build unix

package supervise

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/store/memstore"
)

// stage is a client on a store in memory that holds a lock, and a job to run under it.
type stage struct {
	*testing.T
	store    *memstore.Store
	client   *stile.Client
	hold     *stile.Hold
	job      Job
	messages chan string
}

func newStage(t *testing.T, ttl time.Duration, argv ...string) *stage {
	t.Helper()
	s := &stage{T: t, store: memstore.New(), messages: make(chan string, 10)}
	renewals := NewRenewals()
	var err error
	s.client, err = stile.New(s.store, &stile.Options{TTL: ttl, Hooks: stile.Hooks{SessionRenewed: renewals.Note}})
	if err != nil {
		t.Fatal(err)
	}
	hold, err := s.client.Mutex("demo").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	signals := child.Listen()
	t.Cleanup(func() {
		signals.Close()
		s.store.SetFaults(nil)
		if err := s.client.Close(t.Context()); err != nil {
			t.Error(err)
		}
		null.Close()
	})
	s.hold = hold
	s.job = Job{
		Command: child.Command{Path: argv[0], Args: argv, Stdin: null, Stdout: null, Stderr: null},
		Signals: signals, Hold: hold, Lock: `lock "demo"`, TTL: ttl, Renewals: renewals,
		StopSignal: syscall.SIGTERM, KillAfter: DefaultKillAfter(ttl),
		Say:         func(text string) { s.messages <- text },
		Report:      func(string) {},
		FormatCause: func(err error) string { return " (because)" },
	}
	return s
}

// wants runs the job. The user must receive a message that contains parts or, if there are none, no
// message.
func (s *stage) wants(outcome Outcome, code int, parts ...string) {
	s.Helper()
	got, err := Run(s.job)
	if got.Outcome != outcome || got.ExitCode != code || err != nil {
		s.Fatalf("got %+v, %v; want outcome %v, exit code %d", got, err, outcome, code)
	}
	if len(parts) == 0 {
		s.messages <- ""
	}
	message := <-s.messages
	if len(parts) == 0 && message != "" {
		s.Errorf("got message %q, want none", message)
	}
	for _, part := range parts {
		if !strings.Contains(message, part) {
			s.Errorf("got message %q, want it to contain %q", message, part)
		}
	}
}

func TestRun_exitCode(t *testing.T) {
	newStage(t, stile.MaxTTL, "/bin/sh", "-c", "exit 7").wants(Ended, 7)
}

func TestRun_noSuchCommand(t *testing.T) {
	s := newStage(t, stile.MaxTTL, "/no/such/command")
	if _, err := Run(s.job); err == nil {
		t.Error("got no error for a missing command")
	} else if e, ok := errors.AsType[*child.Error](err); !ok || e.Code != child.NotFound {
		t.Errorf("got %v, want a *child.Error with code NotFound", err)
	}
}

// This process may have been stopped between the two.
func TestRun_lostBeforeStart(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	s := newStage(t, stile.MaxTTL, "/bin/sh", "-c", `: >"$0"`, ran)
	if _, err := s.client.Break(t.Context(), "demo", s.hold.Token()); err != nil {
		t.Fatal(err)
	}
	<-s.job.Hold.Lost()
	s.wants(Lost, 0, `lock "demo" was broken`, "the command was not run")
	if _, err := os.Stat(ran); err == nil {
		t.Error("the command was run")
	}
}

// The lock is lost when the command has ended, and before that is noticed.
func TestSupervisor_endedAfterLoss(t *testing.T) {
	sv := newStage(t, stile.MaxTTL, "/bin/sh", "-c", "exit 3")
	s := supervisor{Job: sv.job}
	var err error
	if s.process, err = child.Start(s.Command, s.Signals); err != nil {
		t.Fatal(err)
	}
	<-s.process.Done()
	if _, err := sv.client.Break(t.Context(), "demo", sv.hold.Token()); err != nil {
		t.Fatal(err)
	}
	<-s.Hold.Lost()
	if outcome, _ := s.ended(); outcome != Lost {
		t.Fatalf("got outcome %v, want Lost", outcome)
	}
	const want = `lock "demo" was broken, or its lease expired; the command had already ended, with exit code 3`
	if got := <-sv.messages; got != want {
		t.Errorf("got message %q, want %q", got, want)
	}
}

func TestRun_broken(t *testing.T) {
	s := newStage(t, stile.MaxTTL, "/bin/sh", "-c", "echo started; exec sleep 1000")
	started, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer started.Close()
	defer stdout.Close()
	s.job.Command.Stdout = stdout
	go func() {
		_, _ = started.Read(make([]byte, 1))
		if _, err := s.client.Break(t.Context(), "demo", s.hold.Token()); err != nil {
			t.Error(err)
		}
	}()
	s.wants(Lost, 0, `lock "demo" was broken, or its lease expired; stopping the command`)
}

func TestRun_timeout(t *testing.T) {
	s := newStage(t, stile.MaxTTL, "/bin/sleep", "1000")
	s.job.Timeout = time.Millisecond
	s.wants(TimedOut, 0, `the command under lock "demo" has run for 1ms; stopping it`)
}

// A command that ignores the stop signal is killed.
func TestRun_storeUnreachable(t *testing.T) {
	const ttl = 8 * time.Second
	s := newStage(t, ttl, "/bin/sh", "-c", `trap "" TERM; while :; do sleep 1; done`)
	s.store.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{Err: errors.New("refused")} })
	s.wants(Lost, 0, "(because)", `"demo"`)
}

// A confirmedHold is a hold whose deadline is always an hour away.
type confirmedHold struct{}

func (confirmedHold) Valid() bool           { return true }
func (confirmedHold) Deadline() time.Time   { return time.Now().Add(time.Hour) }
func (confirmedHold) Lost() <-chan struct{} { return nil }
func (confirmedHold) Err() error            { return nil }

// The stop signal comes KillAfter before the deadline, so here at once.
func TestRun_killAfter(t *testing.T) {
	s := newStage(t, stile.MaxTTL, "/bin/sleep", "10")
	s.job.Hold, s.job.KillAfter = confirmedHold{}, time.Hour
	s.wants(Lost, 0, `stopping the command before lock "demo" expires`)
}
