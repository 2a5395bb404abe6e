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

		s.test(call+" whose context has ended leaves nothing behind", func(t *testing.T, w *world) {
			c, name := w.openKept(), w.name("lock")
			canceled, cancel := context.WithCancel(t.Context())
			cancel()
			tooLate, cancel := context.WithTimeout(t.Context(), 0)
			defer cancel()
			for _, ctx := range []context.Context{canceled, tooLate} {
				p, err := c.enqueueWith(ctx, name, line.Exclusive, try)
				if !errors.Is(err, ctx.Err()) {
					t.Fatalf("the error is %v, want one matching %v", err, ctx.Err())
				}
				w.lineOf(name)
				p.neverAdmitted()
			}
			c.hold(name, line.Exclusive)
		})

		s.test(call+" that is canceled at any moment leaves nothing behind", func(t *testing.T, w *world) {
			c, other, name := w.openKept(), w.openKept(), w.name("lock")
			w.stagger(rounds, func(ctx context.Context) {
				p, err := c.enqueueWith(ctx, name, line.Exclusive, try)
				wantDoneOrCancelled(ctx, p, err)
				p = other.hold(name, line.Exclusive)
				w.lineOf(name, p)
				p.withdraw()
			})
		})
	}

	s.test("an enqueue behind others that is canceled at any moment holds nobody up", func(t *testing.T, w *world) {
		a, b, c, name := w.openKept(), w.openKept(), w.openKept(), w.name("lock")
		w.stagger(rounds, func(ctx context.Context) {
			holder := a.hold(name, line.Exclusive)
			p, err := b.enqueueWith(ctx, name, line.Exclusive, false)
			last := c.enqueue(name, line.Exclusive)
			wantDoneOrCancelled(ctx, p, err)
			holder.withdraw()
			last.admitted()
			last.withdraw()
		})
		w.lineOf(name)
	})

	s.test("an entry outlives the context it was put in with", func(t *testing.T, w *world) {
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

	s.test("a session outlives the context it was opened with", func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		c := w.openWith(ctx, w.nextOwner())
		cancel()
		c.hold(w.name("lock"), line.Exclusive).stays(store.Admitted)
		if err := c.confirmNow(); err != nil {
			t.Errorf("Confirm: %v", err)
		}
	})
}

// wantDoneOrCancelled checks that an enqueue either was successful, and withdraws the entry then, or says that ctx
// has ended.
func wantDoneOrCancelled(ctx context.Context, p *place, err error) {
	t := p.client.w.t
	t.Helper()
	switch {
	case err == nil:
		p.withdraw()
	case ctx.Err() == nil:
		t.Fatalf("the context has not ended: %v", err)
	case !errors.Is(err, ctx.Err()):
		t.Fatalf("the error is %v, want one matching %v", err, ctx.Err())
	}
}
