package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func cancellation(s suite) {
	const rounds = 30

	for _, try := range []bool{false, true} {
		call := map[bool]string{false: "an enqueue", true: "a try"}[try]

		s.test(call+" whose context has ended leaves no entry", func(t *testing.T, w *testEnv) {
			c, name := w.openKept(), w.name("lock")
			canceled, cancel := context.WithCancel(t.Context())
			cancel()
			expired, cancel := context.WithTimeout(t.Context(), 0)
			defer cancel()
			for _, ctx := range []context.Context{canceled, expired} {
				p, err := c.enqueueWith(ctx, name, line.Exclusive, try)
				if !errors.Is(err, ctx.Err()) {
					t.Fatalf("Enqueue returned %v, want an error matching %v", err, ctx.Err())
				}
				w.wantLine(name)
				p.neverAdmitted()
			}
			c.hold(name, line.Exclusive)
		})

		s.test(call+" canceled at any moment leaves no entry", func(t *testing.T, w *testEnv) {
			c, other, name := w.openKept(), w.openKept(), w.name("lock")
			w.stagger(rounds, func(ctx context.Context) {
				p, err := c.enqueueWith(ctx, name, line.Exclusive, try)
				wantDoneOrCanceled(ctx, p, err)
				p = other.hold(name, line.Exclusive)
				w.wantLine(name, p)
				p.withdraw()
			})
		})
	}

	// Bug: CURATOR-462
	s.test("canceling an enqueue at any moment does not block later entries", func(t *testing.T, w *testEnv) {
		a, b, c, name := w.openKept(), w.openKept(), w.openKept(), w.name("lock")
		w.stagger(rounds, func(ctx context.Context) {
			holder := a.hold(name, line.Exclusive)
			p, err := b.enqueueWith(ctx, name, line.Exclusive, false)
			last := c.enqueue(name, line.Exclusive)
			wantDoneOrCanceled(ctx, p, err)
			holder.withdraw()
			last.admitted()
			last.withdraw()
		})
		w.wantLine(name)
	})

	s.test("an entry outlives the context of its Enqueue", func(t *testing.T, w *testEnv) {
		c, name := w.openKept(), w.name("lock")
		ctx, cancel := context.WithCancel(t.Context())
		p, err := c.enqueueWith(ctx, name, line.Exclusive, false)
		if err != nil {
			t.Fatal(err)
		}
		q, err := w.openKept().enqueueWith(ctx, name, line.Exclusive, false)
		if err != nil {
			t.Fatal(err)
		}
		p.admitted()
		cancel()
		p.stays(store.Admitted)
		q.stays(store.Waiting)
		p.withdraw()
		q.admitted()
	})

	s.test("a session outlives the context of its Open", func(t *testing.T, w *testEnv) {
		ctx, cancel := context.WithCancel(t.Context())
		c := w.openWith(ctx, w.nextOwner())
		cancel()
		c.hold(w.name("lock"), line.Exclusive).stays(store.Admitted)
		if err := c.confirmNow(); err != nil {
			t.Errorf("Confirm: %v", err)
		}
	})
}

// wantDoneOrCanceled checks that an enqueue either succeeded, and then withdraws the entry, or
// failed with an error that matches ctx.Err().
func wantDoneOrCanceled(ctx context.Context, p *entry, err error) {
	t := p.client.w.t
	t.Helper()
	switch {
	case err == nil:
		p.withdraw()
	case ctx.Err() == nil:
		t.Fatalf("Enqueue failed before its context ended: %v", err)
	case !errors.Is(err, ctx.Err()):
		t.Fatalf("Enqueue returned %v, want an error matching %v", err, ctx.Err())
	}
}
