package etcdstore_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stilelock/stile/store"
)

// The data are restored from a backup that has the sessions' leases but not their later entries, so
// the lock is free for others. A session that has seen a later revision is lost, and owners of
// missing entries are notified.
// Promise: P6
func TestSession_lostWhenDataAreRestored(t *testing.T) {
	t.Parallel()
	for when, since := range map[string]int{"without later writes": 0, "with as many later writes": 100} {
		e := startEtcd(t)
		st := newStore(t, e.Client(t), "")
		open := func() store.Session {
			se := openSession(t, st)
			if err := se.Confirm(t.Context()); err != nil {
				t.Fatal(err)
			}
			return se
		}
		write := func(n int) {
			for range n {
				if _, err := e.Client(t).Put(t.Context(), "other", ""); err != nil {
					t.Fatal(err)
				}
			}
		}
		holds, waits, idle := open(), open(), open()
		backup := filepath.Join(t.TempDir(), "backup")
		e.Kill()
		if err := os.CopyFS(backup, os.DirFS(e.DataDir())); err != nil {
			t.Fatal(err)
		}
		e.Start()
		e.AwaitReady()

		write(10)
		name := newName(t)
		holder := enqueue(t, holds, name)
		holder.await(t, store.Admitted)
		waiter := enqueue(t, waits, name)
		waiter.await(t, store.Waiting)
		enqueue(t, idle, name+"/other").withdraw(t)

		e.Kill()
		if err := errors.Join(os.RemoveAll(e.DataDir()), os.CopyFS(e.DataDir(), os.DirFS(backup))); err != nil {
			t.Fatal(err)
		}
		e.Start()
		e.AwaitReady()
		write(since)
		for _, se := range []store.Session{holds, waits, idle} {
			var err error
			eventually(t, "a confirmation is answered", func() bool {
				err = se.Confirm(t.Context())
				return err == nil || errors.Is(err, store.ErrSessionLost)
			})
			if err == nil && since == 0 {
				t.Errorf("%s: Confirm succeeded for a session that has seen a later revision than the cluster's", when)
			}
		}
		holder.await(t, store.Gone)
		waiter.awaitGone(t)
		enqueue(t, open(), name).await(t, store.Admitted) // no entry of the others is left
	}
}
