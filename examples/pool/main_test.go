package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/storeurl"
)

// calls records when calls of the API begin, and how many are under way.
type calls struct {
	mu        sync.Mutex
	began     []time.Time
	jobs      []string
	now, most int
}

func (c *calls) call(job string, takes time.Duration) {
	c.mu.Lock()
	c.began = append(c.began, time.Now())
	c.jobs = append(c.jobs, job)
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	time.Sleep(takes)
	c.mu.Lock()
	c.now--
	c.mu.Unlock()
}

// process calls the API for n jobs, as a process of its own would.
func process(t *testing.T, store *memstore.Store, name string, n int, call func(ctx context.Context, job string) error) {
	t.Helper()
	client, err := stile.New(store, nil)
	if err != nil {
		t.Error(err)
		return
	}
	var in strings.Builder
	for i := range n {
		fmt.Fprintf(&in, "%s-%d\n", name, i)
	}
	if err := work(t.Context(), client, strings.NewReader(in.String()), call); err != nil {
		t.Error(err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Three processes with five workers each never exceed the limits, whether the calls take less time than the
// period or more, and make each call once.
func TestPool_staysWithinLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20 // calls of each process
		var (
			store  = memstore.New()
			all    calls
			random = rand.New(rand.NewPCG(1, 2))
			group  sync.WaitGroup
		)
		for _, name := range []string{"a", "b", "c"} {
			takes := make(chan time.Duration, n)
			for range n {
				takes <- time.Duration(random.Int64N(int64(3 * period)))
			}
			group.Go(func() {
				process(t, store, name, n, func(_ context.Context, job string) error {
					all.call(job, <-takes)
					return nil
				})
			})
		}
		group.Wait()

		if all.most > slots {
			t.Errorf("got %d calls at a time, want at most %d", all.most, slots)
		}
		for i := slots; i < len(all.began); i++ {
			if d := all.began[i].Sub(all.began[i-slots]); d < period {
				t.Errorf("calls %d to %d began within %v, want at least %v", i-slots, i, d, period)
			}
		}
		slices.Sort(all.jobs)
		if got := len(slices.Compact(all.jobs)); got != 3*n || len(all.began) != 3*n {
			t.Errorf("got %d calls for %d jobs, want one for each of %d", len(all.began), got, 3*n)
		}
	})
}

// Short calls begin as often as the limit allows.
func TestPool_usesTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all calls
		process(t, memstore.New(), "a", 10*slots, func(_ context.Context, job string) error {
			all.call(job, period/10)
			return nil
		})
		if took := all.began[len(all.began)-1].Sub(all.began[0]); took != 9*period {
			t.Errorf("%d calls began within %v, want %v", len(all.began), took, 9*period)
		}
	})
}

// On a real server slots stay closed, too, and all are released.
func TestPool_redis(t *testing.T) {
	redis := testservers.StartRedis(t)
	conn, err := testservers.Retry(func() (*storeurl.Conn, error) { return storeurl.Open(t.Context(), "redis://"+redis.Addr(), nil) })
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client, err := stile.New(conn.Store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	var all calls
	start := time.Now()
	err = work(t.Context(), client, strings.NewReader("1\n2\n3\n4\n5\n6\n7\n"), func(_ context.Context, job string) error {
		all.call(job, 0)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if len(all.began) != 7 {
		t.Fatalf("got %d calls, want 7", len(all.began))
	}
	// With three slots the seventh call is in the third period. The server counts in milliseconds.
	if took := time.Since(start); took < 2*period-10*time.Millisecond {
		t.Errorf("7 calls took %v, want at least %v", took, 2*period)
	}
}

// A call that fails is reported, and takes a slot for no longer than others.
func TestPool_goesOnAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := stile.New(memstore.New(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close(t.Context())
		var called []string
		var mu sync.Mutex
		err = work(t.Context(), client, strings.NewReader("1\n2\n3\n4\n5\n"), func(_ context.Context, job string) error {
			mu.Lock()
			defer mu.Unlock()
			called = append(called, job)
			if job == "2" {
				return fmt.Errorf("no %s", job)
			}
			return nil
		})
		if err == nil || err.Error() != "2: no 2" {
			t.Errorf("got error %v, want 2: no 2", err)
		}
		if len(called) != 5 {
			t.Errorf("got calls for %v, want all five", called)
		}
	})
}
