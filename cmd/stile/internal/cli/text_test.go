package cli

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/storeurl"
)

// What the user reads when something fails: who speaks, the lock and the reason are each named once.
func TestTexts_failures(t *testing.T) {
	t.Parallel()
	const reason = "etcd at db1:2379: no answer"
	down := func(ops ...memstore.Op) func(memstore.Call) memstore.Fault {
		return func(c memstore.Call) memstore.Fault {
			if slices.Contains(ops, c.Op) {
				return memstore.Fault{Err: errors.New(reason)}
			}
			return memstore.Fault{}
		}
	}
	type scene struct {
		*request
		store  *memstore.Store
		client *stile.Client
		lock   *lock // it is held
	}
	for _, tt := range []struct {
		name string
		fail func(ctx context.Context, s scene) error
		want string
	}{
		{
			"no session", func(ctx context.Context, s scene) error {
				s.store.SetFaults(down(memstore.Open))
				s.accept = func(store.Terms) error { return nil }
				_, err := s.obtain(ctx, s.client)
				return err
			}, "stile: open session: " + reason,
		},
		{
			"joining", func(ctx context.Context, s scene) error {
				s.store.SetFaults(down(memstore.Enqueue))
				_, err := s.obtain(ctx, s.client)
				return err
			}, `stile: lock "demo": ` + reason,
		},
		{
			"trying", func(ctx context.Context, s scene) error {
				s.nonblock = true
				_, err := s.obtain(ctx, s.client)
				return err
			}, `stile: lock "demo" is held by ann@web-3 pid 812 (deploy)`,
		},
		{
			"waiting", func(ctx context.Context, s scene) error {
				s.waitSet, s.wait = true, 1
				_, err := s.obtain(ctx, s.client)
				return err
			}, `stile: could not acquire lock "demo" within 1ns: it is held by ann@web-3 pid 812 (deploy)`,
		},
		{
			"waiting for a store that cannot be read", func(ctx context.Context, s scene) error {
				s.waitSet, s.wait = true, 1
				s.store.SetFaults(down(memstore.Read))
				_, err := s.obtain(ctx, s.client)
				return err
			}, `stile: could not acquire lock "demo" within 1ns, and the store does not say who holds it: ` + reason,
		},
		{
			"breaking without a token", func(ctx context.Context, s scene) error {
				s.store.SetFaults(down(memstore.Read))
				return (&breakCmd{name: "demo"}).whichToken(ctx, s.client)
			}, `stile: --token is required, and the holder of "demo" cannot be read: ` + reason,
		},
		{
			"reading", func(ctx context.Context, s scene) error {
				s.store.SetFaults(down(memstore.Read))
				_, err := s.client.Line(ctx, "demo")
				return errors.New((&outage{}).update(err))
			}, `stile: show lock "demo": ` + reason + "; trying again",
		},
		{
			"reading after setting a limit", func(ctx context.Context, s scene) error {
				s.store.SetFaults(down(memstore.Read))
				return (&slotsCmd{name: "demo", limit: 2}).run(ctx, s.client)
			}, `stile: the limit of lock "demo" was changed, but the lock cannot be read: ` + reason,
		},
		{
			"releasing", func(ctx context.Context, s scene) error {
				s.store.SetFaults(down(memstore.Withdraw))
				return errors.New(s.lock.notReleased(s.lock.hold.Release(ctx)))
			}, `stile: could not confirm the release of lock "demo" (` + reason + "); it may stay held for up to 15s",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			st := memstore.New()
			holder := newTestClient(t, st, stile.Owner{Host: "web-3", PID: 812, User: "ann", Command: "deploy"})
			hold, err := holder.Mutex("demo").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			s := scene{
				request: &request{names: []string{"demo"}, ttl: duration(stile.DefaultTTL), conflict: exitNotObtained},
				store:   st, client: newTestClient(t, st, stile.Owner{}),
				lock: &lock{names: []string{"demo"}, hold: hold, ttl: stile.DefaultTTL, verbose: true, opened: &storeurl.Conn{Store: st}},
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err = tt.fail(ctx, s)
			st.SetFaults(nil)
			if err == nil {
				t.Fatal("it has not failed")
			}
			said, err2 := os.CreateTemp(t.TempDir(), "")
			if err2 != nil {
				t.Fatal(err2)
			}
			defer said.Close()
			Stdio{Err: said}.sayError(err)
			if text, err := os.ReadFile(said.Name()); err != nil || strings.TrimSuffix(string(text), "\n") != tt.want {
				t.Errorf("said %q, %v\nwant %q", text, err, tt.want)
			}
		})
	}
}

func newTestClient(t *testing.T, st *memstore.Store, owner stile.Owner) *stile.Client {
	t.Helper()
	client, err := stile.New(st, &stile.Options{Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(context.WithoutCancel(t.Context())) })
	return client
}
