package stile_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// fixedTermsStore is a store that grants terms to every new session.
type fixedTermsStore struct {
	*memstore.Store
	terms *store.Terms
}

func (g fixedTermsStore) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	s, err := g.Store.Open(ctx, opts)
	return fixedTermsSession{s, *g.terms}, err
}

type fixedTermsSession struct {
	store.Session
	terms store.Terms
}

func (s fixedTermsSession) Terms() store.Terms { return s.terms }

func TestClient_Terms(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		first := store.Terms{TTL: 12 * time.Second, Slack: 4 * time.Second, Attempt: time.Second}
		granted := first
		c, err := stile.New(fixedTermsStore{w.store, &granted}, &stile.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		if got, err := c.Terms(t.Context()); err != nil || got != first {
			t.Fatalf("Terms before the first lock: got %+v, %v, want %+v", got, err, first)
		}
		granted.TTL, granted.Slack = 9*time.Second, time.Second
		hold := lock(t, c, "a")
		if got := hold.Terms(); got != first {
			t.Errorf("Terms of a hold of that session: got %+v, want %+v", got, first)
		}
		if ids := w.store.Sessions(); len(ids) != 1 {
			t.Errorf("sessions: got %v, want one", ids)
		}

		w.store.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{Err: errors.New("no answer")} })
		<-hold.Lost()
		if _, err := c.Terms(t.Context()); err == nil {
			t.Error("Terms without the store: got nil, want an error")
		}
		w.store.SetFaults(nil)
		if got, err := c.Terms(t.Context()); err != nil || got != granted {
			t.Errorf("Terms of the session after the loss: got %+v, %v, want %+v", got, err, granted)
		}
		if got := hold.Terms(); got != first {
			t.Errorf("Terms of the lost hold: got %+v, want %+v", got, first)
		}
	})
}

func TestClient_Terms_tooLate(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c, err := stile.New(w.store, &stile.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		w.store.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{Err: errors.New("no answer")} })
		if _, err := c.Terms(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Terms with an ended context: got %v, want context.Canceled", err)
		}
		w.store.SetFaults(nil)
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Terms(t.Context()); !errors.Is(err, stile.ErrClosed) {
			t.Errorf("Terms of a closed client: got %v, want ErrClosed", err)
		}
	})
}
