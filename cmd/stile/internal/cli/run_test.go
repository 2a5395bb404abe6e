package cli

import (
	"context"
	"os"
	"strings"
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
