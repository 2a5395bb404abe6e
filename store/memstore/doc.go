// Package memstore is a store in the memory of one process: complete, and made to be hurt.
//
// It keeps every promise of package store, measures TTLs on Go's clock, so that they elapse at once inside
// testing/synctest, and can be told to delay, drop or forget to answer requests, to expire sessions early and to
// evict entries. Use it to test code that takes locks:
//
//	st := memstore.New()
//	client, err := stile.New(st, nil)
//	…
//	st.SetFaults(func(c memstore.Call) memstore.Fault {
//		return memstore.Fault{Drop: c.Op == memstore.Confirm} // the store is out of reach for renewals
//	})
//
// Everything in it is gone with the process, and its order starts at 1 again: its tokens fence nothing outside.
package memstore
