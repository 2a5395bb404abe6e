// Package memstore is a store in the memory of one process, with fault injection, for tests.
//
// It keeps every promise of package store. It measures TTLs on Go's clock, so they elapse at once
// inside testing/synctest. It can delay or drop requests, lose replies, return errors, expire
// sessions early and evict entries. Use it to test code that takes locks:
//
//	st := memstore.New()
//	client, err := stile.New(st, nil)
//	…
//	st.SetFaults(func(c memstore.Call) memstore.Fault {
//		return memstore.Fault{Drop: c.Op == memstore.Confirm} // renewals do not reach the store
//	})
//
// Nothing is kept when the process ends. The order then starts at 1 again, so its tokens cannot
// fence a resource outside the process.
package memstore
