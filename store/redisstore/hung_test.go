package redisstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// A call returns when its context ends, even if the server hangs for longer: here the server
// resumes only after the call has returned.
// Promise: P5
func TestContext_endsCallsWhileServerHangs(t *testing.T) {
	t.Parallel()
	type hung struct {
		st   *redisstore.Store
		se   store.Session
		held store.Ticket
		name string
	}
	for what, do := range map[string]func(context.Context, hung) error{
		"Open": func(ctx context.Context, h hung) error {
			_, err := h.st.Open(ctx, store.SessionOptions{TTL: longTTL})
			return err
		},
		"Line":    func(ctx context.Context, h hung) error { _, err := h.st.Line(ctx, h.name); return err },
		"Lines":   func(ctx context.Context, h hung) error { _, err := store.CollectLines(h.st.Lines(ctx, "")); return err },
		"Watch":   func(ctx context.Context, h hung) error { return h.st.Watch(ctx, "", func([]string) {}) },
		"Break":   func(ctx context.Context, h hung) error { _, err := h.st.Break(ctx, h.name, 1); return err },
		"Examine": func(ctx context.Context, h hung) error { _, err := h.st.Examine(ctx, longTTL); return err },
		"Confirm": func(ctx context.Context, h hung) (err error) {
			// The first call may find that its connection has broken.
			for err = h.se.Confirm(ctx); err != nil && !errors.Is(err, context.Canceled); {
				err = h.se.Confirm(ctx)
			}
			return err
		},
		"Enqueue": func(ctx context.Context, h hung) error {
			_, err := tryJoin(ctx, h.se, h.name+"2", line.Exclusive)
			return err
		},
		"Enqueue with Try": func(ctx context.Context, h hung) error {
			_, err := h.se.Enqueue(ctx, store.Request{Name: h.name + "2", Mode: line.Exclusive, Try: true})
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
				server := testservers.StartRedis(t)
				proxy := testservers.NewProxy(t, server.Addr())
				options := redisstore.ClientOptions(proxy.Addr())
				// No timeout of the Redis client ends a call within this test.
				options.ConnWriteTimeout, options.Dialer.Timeout = longTTL, longTTL
				h := hung{st: newStore(t, connectWith(t, options), nil), name: newName(t)}
				h.se = tryOpen(t, h.st, longTTL)
				h.held = hold(t, h.se, h.name)
				proxy.Hold()
				outage(proxy)
				ctx, cancel := context.WithCancel(t.Context())
				returned := make(chan error, 1)
				go func() { returned <- do(ctx, h) }()
				if what == "Close" {
					<-redisstore.Ended(h.se)
				} else {
					eventually(t, "the client waits for the server", func() bool { return h.st.Calls() > 1 })
				}
				cancel()
				if err := <-returned; !errors.Is(err, context.Canceled) {
					t.Errorf("%s: got %v, want Canceled", what, err)
				}
				proxy.Release()
				if err := h.se.Close(t.Context()); err != nil {
					t.Error(err)
				}
				eventually(t, "no call is running", func() bool { return h.st.Calls() == 0 })
				if what == "WithdrawAfter" {
					return // the entry may stand or not
				}
				for _, name := range []string{h.name, h.name + "2"} {
					eventually(t, "no key is left", func() bool { return len(keysOf(t, server, name)) == 0 })
				}
			})
		}
	}
}
