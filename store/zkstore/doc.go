// Package zkstore keeps lines in ZooKeeper, 3.5.3 or later.
//
// # Nodes
//
// The line of the lock "a/b" is the directory /a/b, below the store's root. An entry is an
// ephemeral sequential node in it. Entries are ordered by their sequence numbers:
//
//	_c_<uuid>-lock-0000000007           exclusive
//	_c_<uuid>-shared-lock-0000000007    shared
//	_c_<uuid>-slot-3-lock-0000000007    one of three slots
//
// Curator's InterProcessMutex and go-zookeeper's Lock name their entries like the first of these, and
// wait for all three. So they and Stile exclude each other on one path. Curator's
// InterProcessReadWriteLock sees only other names, which [Options.ReadWrite] selects:
//
//	_c_<uuid>-__WRIT__0000000007        exclusive
//	_c_<uuid>-__READ__0000000007        shared
//	_c_<uuid>-slot-3-__WRIT__0000000007 one of three slots
//
// Stile sees entries with any of these names, and kazoo's, whichever names it uses itself. kazoo's locks
// see Stile's entries only with extra_lock_patterns: ['lock-'], or ['__WRIT__', '__READ__'] with ReadWrite.
// Other nodes are not part of the line. The UUID in Stile's entries is of version 8, those of other clients
// are of version 4. The data is JSON: the mode and the owner. Directories are containers: the server
// deletes them when they have been empty for a minute.
//
// The number of a slot is an ephemeral node ~slots__9999999999/<number> in the directory of the line, with
// the name of the entry's node as its data; both are deleted in one transaction. The operator's limit of the
// slots is the node ~limit__9999999999, and the record of the name the node ~record__9999999999; neither is
// ephemeral. Because of the number other clients take these nodes for the last of the line.
//
// The order of an entry, from which its token is made, is the number of the transaction that created
// it (czxid): of two conflicting entries the later one has the larger order, in the whole ensemble.
// The numbers in the names cannot serve, because they restart with each directory. Transaction
// numbers go back when an ensemble is restored from a backup, and restart in a new one.
//
// Several entries in one step (LockAll) are created by one transaction, each in its own directory. So they
// have the same czxid, and of two such calls one is ahead in all lines that they share. One request holds
// at most 512 kB, with the paths, owners and ACLs of all entries.
//
// # Sessions
//
// A session is one ZooKeeper session on its own connection. If it has very many entries it consists
// of several ZooKeeper sessions, which are confirmed together and lost together: the transaction
// that ends a ZooKeeper session names all of its nodes, and a server that restarts cannot read a
// transaction that is too large.
//
// Confirm asks the leader. A reply to a ping proves nothing: it comes from the server that the client
// is connected to, which may have been cut off from the leader for as long as its syncLimit, ten
// seconds by default. So Confirm sends a sync, which the leader answers only if the session exists.
// But a leader that is cut off from all other servers answers a sync too, for as long as its
// syncLimit. So for a session with holds Confirm makes a transaction, which needs a majority.
//
// The client library keeps a session alive by pings for as long as the process lives, whether or not
// it is confirmed. So this package ends a session that is not confirmed for its TTL. It also prevents
// the library from opening another session when the servers report that one has expired.
//
// A lost connection is not a lost session: the library connects to another server and continues.
// This package makes the library leave a server in two more cases: the server answers only pings for
// a quarter of the TTL, or a new connection stays silent for a quarter of the TTL or for three
// seconds, whichever is shorter. If the new server grants the session a shorter TTL than before, the
// session counts as lost.
//
// # Waiting
//
// The session watches each of its entries from its creation, so that an event reports that the entry
// was removed. The request for that is sent as soon as the node is known, and no caller waits for its
// reply. One request can set the watches of many entries. Confirm succeeds only if all entries of the
// session are watched on its present connection.
//
// For a waiting entry, the session also watches the nearest entries ahead that block it, eight at
// most. No entry can join ahead, so the entry is next when all watched entries have left, provided
// that it still exists. One transaction may delete all nodes of a line, and the server reports them
// one after another. So the package then asks the server whether the entry exists. The reply may be
// old, so the package also makes a transaction before it admits the entry. When the first of the watched
// entries has left, the line is read once: most of the entries before, which nobody watched, have left too.
// Lines with waiters are read again after a reconnection. An event might also be missed otherwise. So every two
// seconds, and less often far back in a long line, a waiter asks for the number of the transaction that last
// created or deleted a node of the line (its pzxid), and reads the line only if there was one. At most sixteen
// reads are in flight at a time in each ZooKeeper session, because confirmations use the same connection.
//
// A server may keep ephemeral nodes that the leader does not have (ZOOKEEPER-5010), and no read shows that.
// So an entry that has waited for about 15 seconds, or two TTLs if that is less, asks the leader, by a
// transaction, whether the entry that it waits for exists. It asks again in such intervals, and more rarely in
// a long line. If the leader does not have the
// node and the server still shows it, the session goes on at another server, and a warning is logged. An
// entry that is found after its creation was not answered counts only if the leader has it.
//
// # Leaving
//
// If a request to delete a node was not answered and the next one finds no node, it is unknown whether
// the first request or another client removed the entry: the error is [store.ErrNotKnown].
//
// # Between this package and the library
//
// go-zookeeper's connections pass through this package. The package does what the library cannot do.
// It chooses and leaves servers, authenticates connections, and learns the TTL that the servers
// grant. It changes the request that creates an entry into one whose reply has the number of the
// transaction (create2), and sends a listing after it without waiting for the reply. The library's
// Lock is not used.
package zkstore
