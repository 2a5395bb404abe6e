package storetest

import (
	"errors"
	"sync"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func kinds(s suite) {
	// Bug: hazelcast #20387
	s.test("an entry of another kind than the line's is refused", func(t *testing.T, w *testEnv) {
		modes := []line.Mode{line.Exclusive, line.Shared, line.Slot(1), line.Slot(2), line.Slot(3)}
		c := w.openKept()
		for _, held := range modes {
			name := w.newName()
			holder := w.openKept().hold(name, held)
			for _, other := range modes {
				if line.SameKind(held, other) {
					continue
				}
				p, err := c.tryEnqueue(name, other, false)
				wantOtherKind(t, p, err, other, holder)
				p, err = c.tryEnqueue(name, other, true)
				wantOtherKind(t, p, err, other, holder)
			}
			w.wantLine(name, holder)
			holder.stays(store.Admitted)
			holder.withdraw()
		}
	})

	s.test("an empty line may get another kind", func(_ *testing.T, w *testEnv) {
		name, a, b := w.name("lock"), w.openKept(), w.openKept()
		for _, mode := range []line.Mode{line.Exclusive, line.Slot(2), line.Slot(3), line.Shared, line.Slot(2)} {
			a.hold(name, mode).withdraw()
			w.wantLine(name)
			b.hold(name, mode).withdraw()
			w.wantLine(name)
		}
	})

	// Bug: hazelcast #20387
	s.needs(Fair).test("of concurrent entries of two kinds only one kind joins an empty line", func(t *testing.T, w *testEnv) {
		const clients, rounds = 6, 10
		var cs []*client
		for range clients {
			cs = append(cs, w.openKept())
		}
		modes := []line.Mode{line.Exclusive, line.Slot(2)}
		for range rounds {
			name := w.newName()
			entries, errs := make([]*entry, clients), make([]error, clients)
			var all sync.WaitGroup
			for i, c := range cs {
				all.Go(func() { entries[i], errs[i] = c.tryEnqueue(name, modes[i%2], false) })
			}
			all.Wait()
			var joined []*entry
			for i, p := range entries {
				switch {
				case errs[i] == nil:
					joined = append(joined, p)
				case !errors.Is(errs[i], store.ErrKind):
					t.Fatalf("Enqueue returned %v, want nil or a KindError", errs[i])
				}
			}
			if len(joined) == 0 {
				t.Fatal("all entries were refused, want those of one kind to join")
			}
			for _, p := range joined {
				if p.mode != joined[0].mode {
					t.Fatalf("entries of modes %v and %v joined the same line", joined[0].mode, p.mode)
				}
				p.withdraw()
			}
			w.wantLine(name)
		}
	})
}

// wantOtherKind checks that an entry of the given mode was refused because of the holder.
func wantOtherKind(t *testing.T, p *entry, err error, mode line.Mode, holder *entry) {
	t.Helper()
	p.neverAdmitted()
	other, ok := errors.AsType[*store.KindError](err)
	if !ok {
		t.Fatalf("Enqueue with mode %v behind %v returned %v, want a *store.KindError", mode, holder.mode, err)
	}
	if other.Name != p.name || other.Mode != mode || other.Other.Mode != holder.mode || other.Other.Session != holder.client.ID() {
		t.Errorf("Enqueue with mode %v behind %v of session %s returned %+v", mode, holder.mode, holder.client.ID(), other)
	}
}
