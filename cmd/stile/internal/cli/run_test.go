package cli

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/storeurl"
)

// What --help recommends is not refused.
func TestRun_examples(t *testing.T) {
	t.Parallel()
	cmd := newRun(Stdio{})
	n := 0
	for line := range strings.Lines(cmd.Example) {
		flags, _, found := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "stile run "), " -- ")
		if !found {
			flags, _, _ = strings.Cut(flags, " -c ")
			flags += " name"
		}
		n++
		r := run{execution: execution{request: newRequest(Stdio{})}}
		checked := newRunInto(&r)
		if err := checked.ParseFlags(strings.Fields(strings.ReplaceAll(flags, `"ticket 812"`, "ticket"))); err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		args := checked.Flags().Args()
		r.set(checked.Flags())
		r.names, r.argv = args[len(args)-1:], []string{"command"}
		if err := r.check(); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if n < 5 {
		t.Errorf("only %d examples", n)
	}
}

// fleeting is a store whose entries cannot outlast their session.
type fleeting struct{ *memstore.Store }

func (s fleeting) Capabilities() store.Capabilities {
	c := s.Store.Capabilities()
	c.ReleaseAfter = false
	return c
}

func TestRun_minHoldWithoutReleaseAfter(t *testing.T) {
	t.Parallel()
	st := fleeting{memstore.New()}
	client, err := stile.New(st, &stile.Options{TTL: stile.MaxTTL}) // long enough for a machine that is very busy
	if err != nil {
		t.Fatal(err)
	}
	hold, err := client.Mutex("demo").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nowhere, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer nowhere.Close()
	stdio := Stdio{Err: nowhere}
	signals := child.Listen()
	defer signals.Close()

	const rest = 100 * time.Millisecond
	l := &lock{names: []string{"demo"}, stdio: stdio, client: client, hold: hold, opened: &storeurl.Conn{Store: st}, obtained: time.Now()}
	began := time.Now()
	l.keepFor(signals, rest)
	if took := time.Since(began); took < rest {
		t.Errorf("was waited for during %v, want %v", took, rest)
	}
	if !hold.Valid() {
		t.Error("the lock was not held to the end")
	}
	if err := hold.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// hasty is a store that may end its sessions early, as ZooKeeper may.
type hasty struct{ store.Store }

func (h hasty) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	session, err := h.Store.Open(ctx, opts)
	return hastySession{session}, err
}

type hastySession struct{ store.Session }

func (s hastySession) Terms() store.Terms {
	granted := s.Session.Terms()
	granted.Slack = granted.TTL / 3
	return granted
}

// A lock under which the command could not be stopped as was asked is neither taken nor waited for.
func TestRun_killAfterUnderStoreTerms(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		st      store.Store
		longest time.Duration
	}{
		{memstore.New(), 5625 * time.Millisecond},
		{hasty{memstore.New()}, 3750 * time.Millisecond},
	} {
		client, err := stile.New(tt.st, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := execution{
			request:   request{names: []string{"demo"}, ttl: duration(stile.DefaultTTL), quiet: true},
			killAfter: duration(tt.longest), killSet: true,
		}
		r.accept = r.acceptTerms
		hold, err := r.obtain(t.Context(), client)
		if err != nil {
			t.Fatalf("%T: the longest possible: %v", tt.st, err)
		}
		if got, err := r.killAfterUnder(hold.Terms()); err != nil || got != tt.longest {
			t.Errorf("%T: the longest possible: %v, %v", tt.st, got, err)
		}
		// The lock is held, so a waiter would never get it.
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		r.killAfter++
		for _, nonblock := range []bool{false, true} {
			r.nonblock = nonblock
			if _, err := r.obtain(ctx, client); err == nil || !strings.Contains(err.Error(), "use at most "+tt.longest.String()) {
				t.Errorf("%T: more than the longest possible, %v: %v", tt.st, tt.longest, err)
			}
		}
		r.killSet = false
		if got, err := r.killAfterUnder(hold.Terms()); err != nil || got > tt.longest {
			t.Errorf("%T: if the user has not chosen: %v, %v", tt.st, got, err)
		}
		if err := client.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// The end of the session releases a lock that was held for a moment only, in one request.
func TestLock_releasedByItsSession(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		held time.Duration
		want []memstore.Op
	}{
		{"held for a moment", 0, []memstore.Op{memstore.Close}},
		{"held for longer", time.Minute, []memstore.Op{memstore.Withdraw, memstore.Close}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newLocked(t)
			s.lock.obtained = s.lock.obtained.Add(-tt.held)
			s.lock.close()
			if got := s.requests(); !slices.Equal(got, tt.want) {
				t.Errorf("closing sent %v, want %v", got, tt.want)
			}
			s.expectFree()
			if text := s.stderr(); !strings.Contains(text, `stile: lock "demo" released after `) {
				t.Errorf("got %q, want that the lock was released", text)
			}
		})
	}
}

// A lock that was lost before it was released is reported as lost, and one whose release is not confirmed as that.
func TestLock_notReleased(t *testing.T) {
	t.Parallel()
	broken := func(s *locked) {
		line, err := s.other.Line(s.Context(), "demo")
		if err != nil || len(line.Holders) != 1 {
			s.Fatalf("got %v, %v; want one holder", line, err)
		}
		if _, err := s.other.Break(s.Context(), "demo", line.Holders[0].Token); err != nil {
			s.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name   string
		held   time.Duration
		before func(*locked)
		want   string
	}{
		{"broken, and it is known", 0, func(s *locked) {
			broken(s)
			<-s.lock.hold.Lost()
		}, `stile: lock "demo" was broken, or its lease expired, before it was released`},
		{"broken, and the release finds out", time.Minute, broken, `stile: lock "demo" was broken, or its lease expired, before it was released`},
		{"no answer", 0, func(s *locked) {
			s.store.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{Err: errors.New("connection refused")} })
		}, `stile: could not confirm the release of lock "demo" (`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newLocked(t)
			s.lock.obtained = s.lock.obtained.Add(-tt.held)
			tt.before(s)
			s.lock.close()
			if text := s.stderr(); !strings.HasPrefix(text, tt.want) || strings.Contains(text, "released after") {
				t.Errorf("got %q, want %q", text, tt.want)
			}
		})
	}
}

// locked is a lock that is held, on a store that records the requests.
type locked struct {
	*testing.T
	store *memstore.Store
	other *stile.Client
	lock  *lock

	err *os.File

	mu  sync.Mutex
	ops []memstore.Op
}

func newLocked(t *testing.T) *locked {
	s := &locked{T: t, store: memstore.New()}
	s.other = newTestClient(t, s.store, stile.Owner{})
	client := newTestClient(t, s.store, stile.Owner{})
	hold, err := client.Mutex("demo").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.err, err = os.CreateTemp(t.TempDir(), ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.err.Close() })
	opened, err := storeurl.Open(t.Context(), "mem:", nil) // has nothing to close, and its store is not used
	if err != nil {
		t.Fatal(err)
	}
	s.lock = &lock{
		names: []string{"demo"}, client: client, hold: hold, ttl: stile.DefaultTTL, verbose: true, obtained: time.Now(),
		opened: opened, stdio: Stdio{Err: s.err},
	}
	s.store.SetFaults(func(c memstore.Call) memstore.Fault {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.Op == memstore.Withdraw || c.Op == memstore.Close {
			s.ops = append(s.ops, c.Op)
		}
		return memstore.Fault{}
	})
	return s
}

// requests returns the requests so far that end something.
func (s *locked) requests() []memstore.Op {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ops)
}

func (s *locked) stderr() string {
	text, err := os.ReadFile(s.err.Name())
	if err != nil {
		s.Fatal(err)
	}
	return string(text)
}

func (s *locked) expectFree() {
	s.Helper()
	hold, err := s.other.Mutex("demo").TryLock(s.Context())
	if err != nil {
		s.Errorf("the lock is not free: %v", err)
		return
	}
	if err := hold.Release(s.Context()); err != nil {
		s.Error(err)
	}
}
