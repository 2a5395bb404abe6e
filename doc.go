// Package stile takes distributed locks: on etcd, on the other stores that fulfill the contract of package store, and
// in memory for tests.
//
//	client, err := stile.New(st, nil)                  // st: an etcdstore, a memstore, …
//	defer client.Close(ctx)
//
//	hold, err := client.Mutex("orders/42").Lock(ctx)   // waits in line
//	if err != nil { … }                                // not held, and nothing left behind
//	defer hold.Release(ctx)
//	charge(hold.Context(), hold.Token())               // stops when the lock is lost; the token tells stale holders
//
// # What a hold is
//
// A [Hold] says until when it is valid ([Hold.Deadline], [Hold.Valid]), ends its context when it is lost, with the
// reason as the cause, and carries a fencing token ([Hold.Token]) larger than that of every earlier conflicting hold of
// the name.
//
// At most one conflicting hold is valid at a time, provided that the store keeps its promises and clocks run at about
// the same rate (docs/guarantees.md in the repository has the table). No lock can stop a process that has been
// suspended in the middle of its work from finishing it afterwards: only the resource can, by refusing tokens smaller
// than the largest it has seen. Check Valid before a step that must not be done twice, and give the token to whatever
// can check it.
//
// # What happens to a session
//
// All that a client has in the store belongs to one session, which the client opens when it is first needed and renews
// until it is closed. If renewal fails for too long, everything held is lost, at the same deadline. The client then opens
// another session by itself. Those who were waiting join their lines again, at the end; what was held is never silently
// taken again.
//
// # What it does not do
//
// Locks are not re-entrant: who holds a lock and asks for it again waits for itself. The order in which several locks are
// taken is the caller's business, and so is the deadlock. A hold belongs to nobody but those who have it: any goroutine
// may release it.
package stile
