package stile_test

import (
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/memstore"
)

// BenchmarkLinger locks a lock again and again, which the client keeps. Every hold has a token and a deadline
// of its own.
func BenchmarkLinger(b *testing.B) {
	c, err := stile.New(memstore.New(), &stile.Options{Linger: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	m := c.Mutex("a")
	var last uint64
	for b.Loop() {
		h, err := m.Lock(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if h.Token() <= last {
			b.Fatalf("got token %d after %d", h.Token(), last)
		}
		last = h.Token()
		if err := h.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "locks/s")
	if err := c.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}
