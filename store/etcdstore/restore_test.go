package etcdstore_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// The data are set back to a backup that has the leases of sessions and not what they have put in since: to everybody else the
// lock is free. Who has seen more than the cluster has now must not go on.
func TestWhenTheDataGoBackSessionsThatHaveSeenMoreAreLost(t *testing.T) {
	t.Parallel()
	e := testservers.StartEtcd(t)
	st := newStore(t, e.Client(t), "")
	lost := make(chan error, 3)
	open := func() store.Session {
		se, err := st.Open(t.Context(), store.SessionOptions{TTL: etcdstore.MaxTTL, Lost: func(err error) { lost <- err }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeSoon(se.Close) })
		return se
	}
	holds, waits, idle := open(), open(), open()
	for _, se := range []store.Session{holds, waits, idle} {
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	backup := filepath.Join(t.TempDir(), "backup")
	e.Kill()
	if err := os.CopyFS(backup, os.DirFS(e.DataDir())); err != nil {
		t.Fatal(err)
	}
	e.Start()
	e.AwaitReady()

	name := newName(t)
	for range 10 { // so that the revision does not get there again by itself
		if _, err := e.Client(t).Put(t.Context(), "other", ""); err != nil {
			t.Fatal(err)
		}
	}
	holder := enqueue(t, holds, name)
	holder.await(t, store.Admitted)
	waiter := enqueue(t, waits, name)
	waiter.await(t, store.Waiting)
	enqueue(t, idle, name+"/other").withdraw(t) // it has seen what the others have, and stands nowhere

	e.Kill()
	if err := errors.Join(os.RemoveAll(e.DataDir()), os.CopyFS(e.DataDir(), os.DirFS(backup))); err != nil {
		t.Fatal(err)
	}
	e.Start()
	e.AwaitReady()
	for _, se := range []store.Session{holds, waits, idle} {
		await(t, "an answer to a confirmation", func() bool {
			err := se.Confirm(t.Context())
			if err == nil {
				t.Fatal("a session was confirmed that has seen more than the cluster has")
			}
			return errors.Is(err, store.ErrSessionLost)
		})
	}
	for range 3 {
		if err := <-lost; !errors.Is(err, store.ErrSessionLost) {
			t.Error(err)
		}
	}
	holder.await(t, store.Gone)
	waiter.gone(t)
	// Nothing stands in the way of others.
	enqueue(t, open(), name).await(t, store.Admitted)
}
