package etcdstore_test

import (
	"context"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/stilelock/stile"
)

// A client keeps a lock and locks it again without a request, until another one wants it: a client of Stile,
// with Lock or TryLock, or etcd's own mutex.
func TestLinger_untilAnotherClientWaits(t *testing.T) {
	for name, take := range map[string]func(ctx context.Context, t *testing.T, lock string) error{
		"Lock": func(ctx context.Context, t *testing.T, lock string) error {
			_, err := lingerClient(t, 0).Mutex(lock).Lock(ctx)
			return err
		},
		"TryLock": func(ctx context.Context, t *testing.T, lock string) error {
			_, err := lingerClient(t, 0).Mutex(lock).TryLock(ctx)
			return err
		},
		"concurrency.Mutex": func(ctx context.Context, t *testing.T, lock string) error {
			s, err := concurrency.NewSession(connect(t, server(t).Endpoint()))
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = s.Close() })
			return concurrency.NewMutex(s, lock).Lock(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ann, lock := lingerClient(t, time.Hour), newName(t)
			var first, last uint64
			for range 100 {
				h, err := ann.Mutex(lock).Lock(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if first == 0 {
					first = h.Token()
				}
				last = h.Token()
				if err := h.Release(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if last != first+99 {
				t.Errorf("got the tokens %d to %d, want those of one entry", first, last)
			}
			if err := take(ctx, t, lock); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func lingerClient(t *testing.T, linger time.Duration) *stile.Client {
	t.Helper()
	c, err := stile.New(newStore(t, connect(t, server(t).Endpoint()), ""), &stile.Options{TTL: time.Minute, Linger: linger})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}
