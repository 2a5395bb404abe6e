// Package stile provides distributed locks on etcd, Redis, ZooKeeper and other stores, and in
// memory for tests.
//
//	client, err := stile.New(st, nil)                  // st: an etcdstore, a memstore, …
//	defer client.Close(ctx)
//
//	hold, err := client.Mutex("orders/42").Lock(ctx)   // waits in line
//	if err != nil { … }                                // not held
//	defer hold.Release(ctx)
//	charge(hold.Context(), hold.Token())               // the context ends when the lock is lost
//
// # Holds
//
// A [Hold] is a lock that is held. It ends when it is released, yielded ([Hold.Yield]) or lost. It has a
// deadline ([Hold.Deadline], [Hold.Valid]), which moves forward each time that the client renews its
// session (see below). Its context ends with the hold; the cause of the context is the reason.
//
// Two holds of a name conflict if they may not exist together: any two of a mutex, or a writer's and any
// other of a read-write lock. Conflicting holds are never valid at the same time, provided that the store
// keeps its promises, that all clocks run at about the same rate, and that nobody removes the entry of a
// working holder ([Client.Break]); docs/guarantees.md in the repository has the details. The fencing token
// of a hold ([Hold.Token]) is larger than that of every earlier conflicting hold.
//
// But no lock can stop a process that is suspended in the middle of a write and finishes it later. Only
// the resource can: it must remember the largest token it has seen and refuse smaller ones. So call
// [Hold.Valid] before a step that must not happen twice, and pass the token to every resource that can
// check it.
//
// # Kinds of locks
//
// A [Mutex] has one holder, an [RWMutex] one writer or many readers, and a [Semaphore] as many holders
// as it has slots. An [Election] is a mutex whose holder publishes a value. All of them return holds, and
// the errors of this package.
//
// Each name has a line in the store, with an [Entry] for each holder and each waiter. Callers get the lock
// in order of arrival, with some exceptions: docs/guarantees.md (P3) has all. On Redlock, the algorithm for
// several independent Redis servers, any client that asks while the lock is free may get it. On Redis, a
// waiter that cannot be reached at its turn is passed over.
//
// While somebody holds a lock or waits for it, its name has one kind: mutexes, elections and read-write
// locks are one kind, semaphores with the same number of slots another. A request of another kind returns
// a [*KindError].
//
// # Sessions
//
// All entries of a client belong to one session. The client opens the session on first use and renews it
// until [Client.Close]. The store ends a session that is not renewed for its TTL ([Options.TTL]), and
// removes its entries. If no renewal is confirmed in time, all holds of the client are lost at the same
// deadline. The client then opens a new session by itself. Waiters rejoin their lines, at the end. A lost
// hold is never taken again silently.
//
// The client opens the new session when a call needs it, and without a delay. But if two or more in a row were
// lost, each less than four TTLs after it was opened, the client waits before it opens the next one: a random
// time of up to four TTLs, after further losses up to eight, and never more than two minutes. Otherwise clients
// that overload a store together would never let it recover. Calls that need the session, TryLock too, wait for
// it, but no longer than their ctx allows.
//
// # What it does not do
//
// Locks are not re-entrant: a goroutine that holds a lock and locks it again waits for itself. If it
// passes the hold's context to Lock, Lock returns [ErrReentrant] instead. Other deadlocks are not
// prevented: [Client.WaitGraph] shows them, and [Client.LockAll] takes several locks without a deadlock
// among its callers. A hold does not belong to a goroutine: any goroutine may release it.
package stile
