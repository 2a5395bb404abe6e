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
// Curator's InterProcessMutex and go-zookeeper's Lock name theirs like the first of these, and
// treat all three as entries that they must wait for. So they and Stile exclude each other on one
// path. Curator's InterProcessReadWriteLock sees only the names that [Options.ReadWrite] selects:
//
//	_c_<uuid>-__WRIT__0000000007        exclusive
//	_c_<uuid>-__READ__0000000007        shared
//	_c_<uuid>-slot-3-__WRIT__0000000007 one of three slots
//
// Stile sees all of them, and kazoo's, whichever it creates itself; other nodes are not part of the
// line. The UUID in Stile's entries is of version 8 and distinguishes them from those of other
// clients, which are of version 4. The data is JSON: the mode and the owner. Directories are
// containers: the server deletes them when they have been empty for a minute.
//
// An order, and so a token, is the transaction that created the entry (czxid): of two conflicting
// entries the later has the larger one, in the whole ensemble. The numbers in the names are not
// tokens, because they restart with each directory. Transaction numbers go back when an ensemble is
// restored from a backup, and restart in a new one.
//
// # Sessions
//
// A session is one ZooKeeper session on its own connection. If it has very many entries it consists
// of several ZooKeeper sessions, which are confirmed together and lost together: the transaction
// that ends a ZooKeeper session names all of its nodes, and a server that restarts cannot read a
// transaction that is too large.
//
// Confirm asks the leader, which first checks that the session exists. A reply to a ping proves
// nothing: it comes from the server that the client is connected to, which may have been cut off
// from the leader for as long as its syncLimit, ten seconds by default. For a session with holds a
// sync proves nothing either: a leader that is cut off from all other servers answers it for as
// long as its syncLimit too. Confirm therefore makes a transaction for such a session.
//
// The client library, however, pings for as long as the process lives. So this package ends a
// session that is not confirmed for its TTL. It also prevents the library from opening another
// session when the servers report that one has expired.
//
// A lost connection is not a lost session: the library connects to another server and continues.
// This package makes it do so too if a connection answers only pings for a quarter of the TTL, or
// if a new connection stays silent for a quarter of the TTL or for three seconds, whichever is
// shorter. If the new server grants the session a shorter TTL than before, the session counts as
// lost.
//
// # Waiting
//
// Every entry is watched from its creation, by a request that is sent as soon as its node is known
// and that no caller waits for. Confirm succeeds only if all entries of the session are watched on
// its present connection, because otherwise no event would report that an entry was removed. Many
// entries are watched with one request.
//
// An entry watches the nearest entries ahead that block it, eight at most. No entry can join ahead
// of it, so it is next when all watched entries have left, provided that it still exists. The
// package then asks the server whether it does, because one transaction may delete all nodes of a
// line, and the server reports them one after another. The result of a read may be old: before it admits an entry
// the package makes a transaction. Lines with waiters are read again after a reconnection and every
// two seconds. At most sixteen reads are in flight at a time in each ZooKeeper session, because
// confirmations use the same connection.
//
// # Leaving
//
// If a deletion was not answered and the next one finds no node, it is unknown which client removed
// the entry: the server keeps no record of that. Withdraw does not report it as a success; see
// [store.ErrNotKnown].
//
// # Between this package and the library
//
// go-zookeeper's connections pass through this package. It chooses and abandons
// servers, authenticates connections, learns the TTL that the servers grant, changes the creation
// of an entry into one whose reply has the number of its transaction (create2), and sends a listing
// after it without waiting for the reply. The library can do none of that. Its Lock is not used.
package zkstore
