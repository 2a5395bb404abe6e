package redlockstore_test

import (
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// The masters have nothing of an entry before it is admitted, so Obtained is set from the
// beginning.
func TestOwner_obtained(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, optionsFor(servers))
	first, err := openSession(t, st, longTTL).Enqueue(t.Context(), store.Request{Name: "lock"})
	if err != nil {
		t.Fatal(err)
	}
	joined := time.Now()
	admitted := make(chan time.Time, 1)
	next, err := openSession(t, st, longTTL).Enqueue(t.Context(), store.Request{
		Name: "lock", Owner: store.Owner{Host: "test", Since: joined},
		Notify: func(st store.Standing) {
			if st.State == store.Admitted {
				admitted <- time.Now()
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	freed := time.Now()
	if err := first.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	obtained := <-admitted
	l, err := st.Line(t.Context(), "lock")
	if err != nil || len(l.Entries) != 1 {
		t.Fatalf("got line %+v, %v; want one entry", l, err)
	}
	// The attempt that got the lock may have begun before the lock was freed.
	if o := l.Entries[0].Owner; o.Obtained.Before(freed.Add(-5*time.Second)) || o.Obtained.After(obtained) || !o.Since.Equal(joined) {
		t.Errorf("got owner %+v; the lock was freed at %v and obtained by %v", o, freed, obtained)
	}
	if err := next.Withdraw(t.Context()); err != nil {
		t.Error(err)
	}
}
