// Package memstore is a store in the memory of one process, with fault injection, for tests.
//
// It keeps every promise of package store. It measures TTLs by Go's clock, so inside testing/synctest
// an hour's TTL elapses at once. It can delay or drop requests, lose replies, return errors, expire
// sessions early and break entries. Use it to test code that takes locks:
//
//	st := memstore.New()
//	client, err := stile.New(st, nil)
//	…
//	st.SetFaults(func(c memstore.Call) memstore.Fault {
//		return memstore.Fault{Drop: c.Op == memstore.Confirm} // renewals do not reach the store
//	})
//
// The order of an entry, from which its token is made, is a counter. Nothing is kept when the process
// ends: the next process counts from 1 again. So tokens from this store cannot protect a resource
// outside the process.
package memstore
