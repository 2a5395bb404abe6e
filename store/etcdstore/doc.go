// Package etcdstore keeps lines in etcd.
//
// # Keys
//
// A session is a lease. An exclusive entry is the key
//
//	<prefix><name>/<lease id, hexadecimal>
//
// with the lease attached; entries stand in the order of their create revisions. That is the layout of
// concurrency.Mutex, etcdctl lock and the server's own lock service, so all of them and Stile exclude each other on
// one name. An entry adds a dash and its nonce to the key if it is of another mode, or if the session has an
// exclusive one in the line already: a session may have several. The value is JSON: the owner, the mode, and a nonce that makes each entry recognizable to the one who made it. A key
// under a name that is not such an entry (it is not attached to the lease in its name, or there is a further slash)
// is not part of the line; [Store.Line] remarks on it, because the other clients would wait for it.
//
// What an entry says of itself, its session may change: it puts the key again, under the same lease. To other clients, who wait
// for keys to be deleted, that makes no difference.
//
// An entry that somebody else overwrites loses its lease, and keeps its place: a key that was written more than once, and is named
// after a lease that etcd may have chosen, is an entry. Its owner is told, if it holds, and deletes it.
//
// An entry that outlasts its session keeps its key, and with it its order; only the lease attached is another, which
// nobody renews, and the value says what lease the key is named after. From then on all entries of the session have a
// nonce in their key: the one without is not the next one's to use. To other clients nothing of this makes a difference.
//
// An order, and so a token, is a create revision: of two conflicting entries the later has the larger one, and
// everybody who reads the line can see it. Revisions go backwards when a cluster is restored from a snapshot, unless
// with etcdutl snapshot restore --bump-revision, and begin again in a new one.
//
// A marker, which entries leave only if they are asked to, is a key without a lease. It is beside the line and not in it,
// where the other clients would wait for it, and named after the order of its entry; no name has two slashes in a row. The
// value is that of the entry.
//
//	<prefix>.stile/traces/<name>//<order>
//
// # Requests whose outcome is unknown
//
// A request that etcd has accepted while its leader dies is answered after seven seconds, with an error, and may or
// may not have been carried out. So requests are given up after half a second at first, and made again: each is
// written so that making it twice does no harm, and so that the second can tell what became of the first.
//
// What remains is an attempt that was given up for good, and is carried out after everything else: a member that was
// stopped for a minute, say, with the request in its hands. It would put in an entry that nobody knows of, under a
// lease that is kept alive. Therefore each enqueueing attempt names the revision of its session's guard key, and is
// void if that has changed; whenever an enqueueing leaves an attempt in doubt, the guard is raised before the matter
// is closed. In ordinary life the guard key does not exist and nothing is ever written to it.
//
//	<prefix>.stile/<lease id, hexadecimal>
//
// # Watching
//
// etcd serves a watch that begins in the past only every 100 ms (the stock mutex begins all of its watches so). Here
// there is one watch for each line in which an entry of the session waits. It begins at the present, and what happened before
// it is read afterwards; while the line is in use it stays open. It tells of every entry that leaves, so the next in line knows
// that it is its turn when the event arrives, without a further request. What is put it leaves out: where many wait, that
// would be half of all they hear. Who has held for 200 ms has a watch of its own key besides, which tells that the key was
// deleted or overwritten. A watch that ends for any reason is opened again and the line or the key read anew; to be safe from
// one that has fallen silent, a line with waiters is also read every two seconds.
//
// [Store.Watch] is another watch, of all the lines that begin with a prefix, for people who look on.
package etcdstore
