package stile_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
)

// LockOptions add to the client's owner in the entries of that Mutex, and in no others.
func TestMutex_With(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ours := map[string]string{"team": "web", "stage": "test"}
		ann := w.client("ann", func(o *stile.Options) {
			o.Owner.Reason, o.Owner.Labels = "nightly", ours
		})
		expectOwner := func(h *stile.Hold, reason string, labels map[string]string) {
			t.Helper()
			l, err := ann.Line(t.Context(), h.Name())
			if err != nil || len(l.Holders) != 1 {
				t.Fatalf("Line: got %+v, %v, want one holder", l, err)
			}
			for who, o := range map[string]stile.Owner{"the line": l.Holders[0].Owner, "Hold.Owner": h.Owner()} {
				if o.Reason != reason || !maps.Equal(o.Labels, labels) || o.Command != "ann" {
					t.Errorf("%s: got %q %v of %q, want %q %v of ann", who, o.Reason, o.Labels, o.Command, reason, labels)
				}
			}
		}
		plain := ann.Mutex("a")
		labels := map[string]string{"stage": "live", "build": "17"}
		with := plain.With(stile.LockOptions{Reason: "deploy 17", Labels: labels})
		labels["build"] = "18" // must have no effect

		h, err := with.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		expectOwner(h, "deploy 17", map[string]string{"team": "web", "stage": "live", "build": "17"})
		held, ok := errors.AsType[*stile.HeldError](tryOnly(t.Context(), plain))
		if !ok || held.Holder.Owner.Reason != "deploy 17" {
			t.Errorf("TryLock: got %+v, want the reason \"deploy 17\"", held)
		}
		release(t, h)

		h = lock(t, ann, "a")
		expectOwner(h, "nightly", ours)
		release(t, h)

		h, err = with.With(stile.LockOptions{Labels: map[string]string{"x": "y"}}).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		expectOwner(h, "nightly", map[string]string{"team": "web", "stage": "test", "x": "y"})
		release(t, h)
	})
}

func tryOnly(ctx context.Context, m *stile.Mutex) error {
	_, err := m.TryLock(ctx)
	return err
}

func TestMutex_With_tooLarge(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		essay := stile.LockOptions{Reason: strings.Repeat("x", stile.MaxOwnerBytes)}
		m := w.client("ann").Mutex("a").With(essay)
		for what, try := range map[string]func() error{
			"Lock":    func() error { _, err := m.Lock(t.Context()); return err },
			"TryLock": func() error { _, err := m.TryLock(t.Context()); return err },
			"Join":    func() error { _, err := m.Join(t.Context()); return err },
		} {
			if err := try(); err == nil || !strings.Contains(err.Error(), `lock "a": the owner: `) {
				t.Errorf("%s: got %v, want an error about the size of the owner", what, err)
			}
		}
		w.expectLine("a")
	})
}

// Shared holds of one process share an entry unless their LockOptions differ.
func TestMutex_With_shared(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		plain := ann.Locker("a", line.Shared)
		var holds []*stile.Hold
		for _, l := range []stile.Locker{plain, plain, plain.With(stile.LockOptions{Reason: "report"})} {
			h, err := l.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			holds = append(holds, h)
		}
		got, err := ann.Line(t.Context(), "a")
		if err != nil || len(got.Holders) != 2 || got.Holders[0].Owner.Reason != "" || got.Holders[1].Owner.Reason != "report" {
			t.Errorf("Line: got %+v, %v, want two holders, the second with a reason", got, err)
		}
		for _, h := range holds {
			release(t, h)
		}
	})
}
