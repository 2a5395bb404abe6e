package stile_test

import (
	"testing"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/memstore"
)

// BenchmarkLock_free shows what the client itself costs: one goroutine takes a free lock and releases it, on
// the store in memory.
func BenchmarkLock_free(b *testing.B) {
	c, err := stile.New(memstore.New(), nil)
	if err != nil {
		b.Fatal(err)
	}
	m := c.Mutex("free")
	b.ReportAllocs()
	for b.Loop() {
		h, err := m.Lock(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if err := h.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	if err := c.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}
