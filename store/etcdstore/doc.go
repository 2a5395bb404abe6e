// Package etcdstore keeps lines in etcd.
//
// # Keys
//
// A session is a lease. An exclusive entry is the key
//
//	<prefix><name>/<lease id, hexadecimal>
//
// with the lease attached. Entries are ordered by create revision. This is the layout of
// concurrency.Mutex, etcdctl lock and the server's lock service, so all of them and Stile exclude
// each other on one name. The key of any other entry ends in a dash and the entry's nonce: of an
// entry of another mode, of a second exclusive entry of the session in the same line, of one that was
// requeued, or that joined several lines in one step. The value is JSON: the owner, the mode, and the
// nonce, by which a session recognizes its own entry. A key is an entry if the lease that its last part
// names is attached to it. There are two exceptions, described below: overwritten entries, and entries
// that outlast their session. A key with a further slash after the name is no entry of that line.
// [Store.Line] reports a key that is no entry in the line's remarks if the other clients would wait
// for it.
//
// A session changes the owner of an entry by putting the key again under the same lease. Other
// clients are not affected: they wait for keys to be deleted.
//
// If another client overwrites an entry's key, the entry loses its lease and keeps its place. A key
// counts as an overwritten entry if it has been written more than once and its last part may be a
// lease id that etcd chose: twelve hexadecimal digits or more. The session that holds the lock with
// such an entry reports it gone and deletes the key.
//
// An entry that outlasts its session ([store.Extensions].WithdrawAfter) keeps its key, and with it its
// order. The key is attached to another lease, which is not renewed, and the value names the
// session's lease. From then on all keys of the session end in a nonce, because the key without one
// may still be in use. Other clients are not affected.
//
// The order of an entry, from which its token is made, is the key's create revision. Of two
// conflicting entries the later one has the larger order. Revisions go backwards when a cluster is
// restored from a snapshot, unless etcdutl snapshot restore --bump-revision is used, and start
// again in a new cluster.
//
// A marker is a key without a lease, written only on request ([store.Extensions].Mark). It is
// outside the line, because the other clients would wait for a key in the line. It is named after
// the order of its entry. No lock name contains two slashes in a row, so a marker is never the key of another
// lock. Its value is that of the entry.
//
//	<prefix>.stile/traces/<name>//<order>
//
// The number of a slot ([store.Extensions].ClaimNumber) is a key under the entry's lease, whose value is
// the entry's order. It is deleted in one transaction with the entry. The operator's limit of the slots
// ([store.Capabilities].SetLimit) is a key without a lease beside them; a limit that was removed leaves
// the value 0.
//
//	<prefix>.stile/slots/<name>//<number>
//	<prefix>.stile/slots/<name>//limit
//
// The record of a name ([store.Extensions].SetRecord) is a key without a lease. Its value begins with the
// order of the entry that has written it, and the number of that call.
//
//	<prefix>.stile/records/<name>//
//
// So no lock can have the name ".stile" or one that begins with ".stile/": the error matches
// [store.ErrBadName].
//
// # Requests whose outcome is unknown
//
// If the leader dies, a request that etcd has already accepted is answered only after seven seconds,
// with an error, and may or may not have been carried out. So an attempt is given up after half a
// second, or after four times what requests have taken lately if that is longer, and repeated; later
// attempts may take longer. Each request is idempotent, and a repeated attempt can tell what the
// earlier one did.
//
// An attempt that was given up may still be carried out after all later requests, for example when
// a member that was stopped for a minute resumes with the request in its queue. It would create an
// entry that the client does not know of, under a lease that is renewed. Each session therefore has
// an epoch key:
//
//	<prefix>.stile/<lease id, hexadecimal>
//
// A transaction that adds an entry compares the revision of the epoch key with the one that the
// session knows, and does nothing if they differ. If the outcome of an attempt stays unknown, the
// session writes the epoch key, and then deletes the entry if it is there. As long as every attempt is
// answered, the epoch key does not exist. A write also voids the attempts of other calls, which are
// repeated. So calls that fail at the same time share a write, and between two writes is a pause.
//
// # Batches
//
// Entries join, change their owner or mode, and leave with one transaction each. While four of them are under way for
// a session, others wait, and are then sent together: nested in one transaction, each with its own conditions. So
// entries of different lines may have the same order, which is the revision of the transaction. Entries of
// one line never have: a batch has no name twice. A server that allows fewer than a hundred operations in a
// transaction, or smaller requests, refuses some batches; their requests are then sent one by one, and the
// next batches are smaller. Other requests, like that of EnqueueAll, are never part of a batch.
//
// # Watching
//
// A session opens one watch for each line in which an entry of its own waits. The watch starts at the
// present, and a read that follows covers what happened before. (To a watch that starts at a past
// revision, as those of concurrency.Mutex do, etcd delivers events in batches, one every 100 ms.) The
// watch stays open while the line is in use. It delivers every deletion in the line, so the next
// waiter is admitted when the event arrives, without a further request. It filters out puts: in a
// line with many waiters they would be half of all events. There is one exception. If an entry of the
// session waits in shared mode, the watch needs the puts, because one reports that an exclusive entry
// was downgraded.
//
// An entry that has held its lock for 200 ms also gets a watch of its own key, which shows that the
// key was deleted or overwritten. These watches, of all sessions of a store, share one gRPC stream and two
// goroutines. A watch that ends for any reason is opened again, and the line or key is read again. A
// watch may also fall silent without ending. So a line with waiters is read after two seconds without
// an event, and at longer intervals after that.
//
// For slots that wait, the session also watches the operator's limit of the line.
//
// An exclusive entry with many others ahead does not need the whole line. Its session watches the
// entry's own key and that of one entry ahead, and reads the line again when the latter has left.
// So the cost of joining, waiting and a hand-over does not depend on the number of waiters, except
// that the servers sort the line when a session reads the end of it.
//
// [Store.Watch] uses another watch, of all lines whose name begins with a prefix.
package etcdstore
