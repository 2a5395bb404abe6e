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

// Nobody waits for a server that hangs longer than the context lasts: here the server goes on only when the call has returned.
// Promise: P5
func TestContextEndsEveryCallWhileTheServerHangs(t *testing.T) {
	t.Parallel()
	type hung struct {
		st   *redisstore.Store
		se   store.Session
		held store.Ticket
		name string
	}
	for what, do := range map[string]func(context.Context, hung) error{
		"Open": func(ctx context.Context, h hung) error {
			_, err := h.st.Open(ctx, store.SessionOptions{TTL: lasting})
			return err
		},
		"Line":  func(ctx context.Context, h hung) error { _, err := h.st.Line(ctx, h.name); return err },
		"Lines": func(ctx context.Context, h hung) error { _, err := h.st.Lines(ctx, ""); return err },
		"Watch": func(ctx context.Context, h hung) error { return h.st.Watch(ctx, "", func() {}) },
		"Break": func(ctx context.Context, h hung) error { _, err := h.st.Break(ctx, h.name, 1); return err },
		"Check": func(ctx context.Context, h hung) error { _, err := h.st.Check(ctx); return err },
		"Confirm": func(ctx context.Context, h hung) (err error) {
			// The first may find that its connection has broken.
			for err = h.se.Confirm(ctx); err != nil && !errors.Is(err, context.Canceled); {
				err = h.se.Confirm(ctx)
			}
			return err
		},
		"Enqueue": func(ctx context.Context, h hung) error {
			_, err := tryJoin(ctx, h.se, h.name+"2", line.Exclusive)
			return err
		},
		"Enqueue to try": func(ctx context.Context, h hung) error {
			_, err := h.se.Enqueue(ctx, store.Request{Name: h.name + "2", Mode: line.Exclusive, Try: true})
			return err
		},
		"Withdraw":      func(ctx context.Context, h hung) error { return h.held.Withdraw(ctx) },
		"WithdrawAfter": func(ctx context.Context, h hung) error { return h.held.Extensions().WithdrawAfter(ctx, lasting) },
		"Close":         func(ctx context.Context, h hung) error { return h.se.Close(ctx) },
	} {
		for how, outage := range map[string]func(*testservers.Proxy){
			"the connections stay":    func(*testservers.Proxy) {},
			"the connections are new": func(p *testservers.Proxy) { p.Reset() },
		} {
			t.Run(what+"/"+how, func(t *testing.T) {
				t.Parallel()
				server := testservers.StartRedis(t)
				proxy := testservers.NewProxy(t, server.Addr())
				options := redisstore.ClientOptions(proxy.Addr())
				// The client's own limits end no call within this test.
				options.ConnWriteTimeout, options.Dialer.Timeout = lasting, lasting
				h := hung{st: newStore(t, connectWith(t, options), nil), name: newName(t)}
				h.se = tryOpen(t, h.st, lasting)
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
					t.Errorf("%s, whose context has ended, returned %v", what, err)
				}
				proxy.Release()
				if err := h.se.Close(t.Context()); err != nil {
					t.Error(err)
				}
				eventually(t, "nothing is under way", func() bool { return h.st.Calls() == 0 })
				if what == "WithdrawAfter" {
					return // whether it stands is open
				}
				for _, name := range []string{h.name, h.name + "2"} {
					eventually(t, "no key is left", func() bool { return len(keysOf(t, server, name)) == 0 })
				}
			})
		}
	}
}
