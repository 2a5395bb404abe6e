package redlockstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redlockstore"
)

// A call returns when its context ends, even if the masters hang for longer: here they resume only
// after the call has returned.
// Promise: P5
func TestContext_endsCallsWhileMastersHang(t *testing.T) {
	t.Parallel()
	type hung struct {
		st   *redlockstore.Store
		se   store.Session
		held store.Ticket
	}
	for what, do := range map[string]func(context.Context, hung) error{
		"Open": func(ctx context.Context, h hung) error {
			_, err := h.st.Open(ctx, store.SessionOptions{TTL: longTTL})
			return err
		},
		"Line":    func(ctx context.Context, h hung) error { _, err := h.st.Line(ctx, "lock"); return err },
		"Lines":   func(ctx context.Context, h hung) error { _, err := store.CollectLines(h.st.Lines(ctx, "")); return err },
		"Watch":   func(ctx context.Context, h hung) error { return h.st.Watch(ctx, "", func([]string) {}) },
		"Break":   func(ctx context.Context, h hung) error { _, err := h.st.Break(ctx, "lock", 1); return err },
		"Confirm": func(ctx context.Context, h hung) error { return h.se.Confirm(ctx) },
		"Enqueue": func(ctx context.Context, h hung) error {
			_, _, err := enqueue(ctx, h.se, "other", false)
			return err
		},
		"Enqueue with Try": func(ctx context.Context, h hung) error {
			_, _, err := enqueue(ctx, h.se, "other", true)
			return err
		},
		"Withdraw":      func(ctx context.Context, h hung) error { return h.held.Withdraw(ctx) },
		"WithdrawAfter": func(ctx context.Context, h hung) error { return h.held.Extensions().WithdrawAfter(ctx, longTTL) },
		"Close":         func(ctx context.Context, h hung) error { return h.se.Close(ctx) },
	} {
		for how, outage := range map[string]func(*testservers.Proxy){
			"existing connections": func(*testservers.Proxy) {},
			"new connections":      func(p *testservers.Proxy) { p.Reset() },
		} {
			t.Run(what+"/"+how, func(t *testing.T) {
				t.Parallel()
				servers := testservers.StartRedisServers(t, 3)
				proxies, options := through(t, servers)
				h := hung{st: newStore(t, options)}
				h.se = openSession(t, h.st, longTTL)
				h.held, _ = hold(t, h.se, "lock")
				for _, p := range proxies {
					p.Hold()
					outage(p)
				}
				ctx, cancel := context.WithCancel(t.Context())
				returned := make(chan error, 1)
				go func() {
					err := do(ctx, h)
					for what == "Confirm" && err != nil && !errors.Is(err, context.Canceled) { // the first call may find that its connections have broken
						err = do(ctx, h)
					}
					returned <- err
				}()
				time.Sleep(50 * time.Millisecond) // until it waits for the masters; if it starts later, it must return all the same
				cancel()
				if err := <-returned; !errors.Is(err, context.Canceled) {
					t.Errorf("%s: got %v, want Canceled", what, err)
				}
				for _, p := range proxies {
					p.Release()
				}
				if err := h.se.Close(timeout(t, testTimeout)); err != nil {
					t.Error(err)
				}
				if what != "WithdrawAfter" { // after WithdrawAfter the entry may stand or not
					eventually(t, "no master has it", func() bool { return countKeys(servers, "lock") == 0 })
				}
				eventually(t, "no master has the other entry", func() bool { return countKeys(servers, "other") == 0 })
			})
		}
	}
}
