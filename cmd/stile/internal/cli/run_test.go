package cli

import (
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
func TestTheExamplesOfRunAreGood(t *testing.T) {
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
		r := run{stdio: Stdio{}}
		checked := newRunInto(&r)
		if err := checked.ParseFlags(strings.Fields(strings.ReplaceAll(flags, `"ticket 812"`, "ticket"))); err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		args := checked.Flags().Args()
		r.killSet, r.waitSet = checked.Flags().Changed("kill-after"), checked.Flags().Changed("wait")
		r.name, r.argv = args[len(args)-1], []string{"command"}
		if _, _, err := r.check(); err != nil {
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
	c.Outlasting = false
	return c
}

func TestWhereTheStoreCannotKeepALockItIsWaitedFor(t *testing.T) {
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
	g := &guard{client: client, hold: hold, opened: &storeurl.Opened{Store: st}, obtained: time.Now()}
	began := time.Now()
	g.keepFor(stdio, signals, rest)
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

// Between the two stile may have been stopped.
func TestALockThatIsLostBeforeTheCommandIsStarted(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	client, err := stile.New(st, nil)
	if err != nil {
		t.Fatal(err)
	}
	hold, err := client.Mutex("demo").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Break(t.Context(), "demo", hold.Token()); err != nil {
		t.Fatal(err)
	}
	<-hold.Lost()
	said, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	stdio := Stdio{Err: said}
	signals := child.Listen()
	defer signals.Close()

	g := &guard{client: client, hold: hold, ttl: stile.DefaultTTL}
	code, err := g.supervise(stdio, signals, child.Command{
		Path: "/bin/false", Args: []string{"false"}, Stdin: said, Stdout: said, Stderr: said,
	})
	if code != exitLost || err != nil {
		t.Errorf("exit code %d, %v, want %d", code, err, exitLost)
	}
	if text, err := os.ReadFile(said.Name()); err != nil || !strings.Contains(string(text), "the command was not run") {
		t.Errorf("said %q, %v", text, err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
