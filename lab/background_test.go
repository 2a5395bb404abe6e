package lab_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
)

// serverTTL is the TTL of clients whose sessions must not be lost on a busy machine.
const serverTTL = time.Minute

func newClient(t *testing.T, st store.Store, opts stile.Options) *stile.Client {
	t.Helper()
	opts.TTL = serverTTL
	c, err := stile.New(st, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

// ordersOf returns the orders of the entries of a line.
func ordersOf(t *testing.T, st store.Store, name string) (orders []uint64) {
	t.Helper()
	l, err := st.Line(t.Context(), name)
	if err != nil {
		t.Error(err)
	}
	for _, e := range l.Entries {
		orders = append(orders, e.Order)
	}
	return orders
}

// The hook gets the end of a hold that is released in the background once, and not before the store has removed
// its entry. Close waits for the release, which succeeds.
// Promise: P5
func TestReleaseInBackground_onServers(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			st := openStore(t, b.url(t))
			const name, rounds = "a", 10
			for range rounds {
				var ends []stile.HoldEndEvent
				var order uint64
				c := newClient(t, st, stile.Options{ReleaseInBackground: true, Hooks: stile.Hooks{
					HoldEnd: func(_ context.Context, e stile.HoldEndEvent) {
						ends = append(ends, e)
						if slices.Contains(ordersOf(t, st, name), order) {
							t.Error("the hook was called, and the entry was still in its line")
						}
					},
				}})
				h, err := c.Mutex(name).Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				order = ordersOf(t, st, name)[0]
				if err := h.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := c.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				if len(ends) != 1 || ends[0].Err != nil || ends[0].Reason != stile.EndReleased {
					t.Errorf("after Close, the ends are %+v; want one release without an error", ends)
				}
			}
		})
	}
}

// An operator removes the entry. The hook gets the loss, whether the client learns of it before the release, or by
// the release.
// Promise: P5
func TestReleaseInBackground_lostOnServers(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			st := openStore(t, b.url(t))
			const name = "a"
			ends := make(chan stile.HoldEndEvent, 10)
			c := newClient(t, st, stile.Options{ReleaseInBackground: true, Hooks: stile.Hooks{
				HoldEnd: func(_ context.Context, e stile.HoldEndEvent) { ends <- e },
			}})
			h, err := c.Mutex(name).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := st.Break(t.Context(), name, ordersOf(t, st, name)[0]); err != nil {
				t.Fatal(err)
			}
			if err := h.Release(t.Context()); err != nil && !errors.Is(err, stile.ErrLost) {
				t.Errorf("Release: got %v, want nil or ErrLost", err)
			}
			if e := <-ends; e.Reason != stile.EndLost || !errors.Is(e.Err, stile.ErrLost) {
				t.Errorf("got the end %+v, want a loss", e)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(ends) != 0 {
				t.Errorf("got a second end: %+v", <-ends)
			}
		})
	}
}

// A client locks again with the entry that it keeps, until another client waits.
// Promise: P2, P4
func TestLinger_onServers(t *testing.T) {
	for _, b := range backends {
		if b.name == "Redlock" { // reports no waiters
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			st := openStore(t, b.url(t))
			const name = "a"
			keeper, other := newClient(t, st, stile.Options{Linger: time.Hour}), newClient(t, st, stile.Options{})
			var tokens []uint64
			lock := func(c *stile.Client) {
				t.Helper()
				h, err := c.Mutex(name).Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				tokens = append(tokens, h.Token())
				if err := h.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			lock(keeper)
			lock(keeper)
			if orders := ordersOf(t, st, name); len(orders) != 1 || tokens[1] != tokens[0]+1 {
				t.Errorf("got tokens %d and orders %d, want two turns of one entry, which is kept", tokens, orders)
			}
			lock(other)
			lock(keeper)
			if !slices.IsSorted(tokens) || tokens[3]>>store.TurnBits == tokens[0]>>store.TurnBits {
				t.Errorf("got tokens %d, want rising ones, the last of a new entry", tokens)
			}
		})
	}
}
