package redlockstore_test

import (
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// Nothing of an entry is at the masters before it is admitted: so it tells from the beginning when that was.
func TestOthersReadWhenALockWasObtained(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, to(servers))
	first, err := openSession(t, st, long).Enqueue(t.Context(), store.Request{Name: "lock"})
	if err != nil {
		t.Fatal(err)
	}
	joined := time.Now()
	admitted := make(chan time.Time, 1)
	next, err := openSession(t, st, long).Enqueue(t.Context(), store.Request{
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
		t.Fatalf("the line is %+v, %v; want one entry", l, err)
	}
	// An attempt that was under way when the lock was freed may have got it, and had begun before.
	if o := l.Entries[0].Owner; o.Obtained.Before(freed.Add(-5*time.Second)) || o.Obtained.After(obtained) || !o.Since.Equal(joined) {
		t.Errorf("others read %+v; the lock was freed at %v and obtained by %v", o, freed, obtained)
	}
	if err := next.Withdraw(t.Context()); err != nil {
		t.Error(err)
	}
}
