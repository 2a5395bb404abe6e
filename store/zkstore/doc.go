// Package zkstore keeps lines in ZooKeeper, 3.5.3 or later.
//
// # Nodes
//
// The line of the lock "a/b" is the directory /a/b, below the store's root. An entry is an ephemeral sequential node in
// it, and they stand in the order of their numbers:
//
//	_c_<uuid>-lock-0000000007           exclusive
//	_c_<uuid>-shared-lock-0000000007    shared
//	_c_<uuid>-slot-3-lock-0000000007    one of three slots
//
// Curator's InterProcessMutex and go-zookeeper's Lock name theirs as the first of these, and take all three for entries
// that they have to wait for; so they and Stile exclude each other on one path. Curator's InterProcessReadWriteLock sees
// other names only, which [Options.ReadWrite] makes:
//
//	_c_<uuid>-__WRIT__0000000007        exclusive
//	_c_<uuid>-__READ__0000000007        shared
//	_c_<uuid>-slot-3-__WRIT__0000000007 one of three slots
//
// Stile itself sees all of them, kazoo's too, whichever it makes; other nodes are not part of the line. The UUID is of
// version 8 in Stile's entries and tells them from those of others, which are of version 4. The data is JSON: the mode
// and the owner. Directories are containers: when they have been empty for a minute the server takes them away.
//
// An order, and so a token, is the transaction that made the entry (czxid): of two conflicting entries the later has the
// larger one, in the whole ensemble. The numbers in the names are no tokens, because they begin anew with each directory.
// Transactions go backwards when an ensemble is restored from a backup, and begin again in a new one.
//
// # Sessions
//
// Each session is one ZooKeeper session on a connection of its own; or several, when it has so many entries that the end of
// one could not be read again by the servers: see group. They are confirmed together, and lost together.
//
// To confirm one is to ask the leader, which looks first whether the session lives. An answer to a ping proves nothing. It
// comes from the server that the client is connected to, which may have been cut off from the leader for as long as its
// syncLimit, ten seconds by default. Nor does a sync prove anything to who holds something: a leader that all others have
// left answers for as long. That takes a transaction.
//
// The other way round, the client library pings for as long as the process lives. So a session that nobody confirms is
// ended by this package when its TTL has passed; and one of whose expiry the servers tell is not followed by another,
// which the library would open by itself.
//
// A connection that is lost is not a session that is lost: the library connects to another server and goes on. So is a
// connection given up on which nothing but pings was answered for a quarter of the TTL, or that says nothing for as long,
// three seconds at most, after it was made. But a session that a server grants less to than it had is taken for lost.
//
// # Waiting
//
// Every entry is watched from its arrival, by a request that is sent as soon as its node is known and that nobody waits
// for. Until it is answered nothing would tell of the entry's end: so a session is confirmed only when its entries are
// watched, on the connection that it has. Many entries are watched with one request; see ownNodes.
//
// An entry watches those nearest ahead that are in its way, eight at most. As nobody can join ahead of it, it is its turn
// when all it knows of have left, if it is there itself. That is asked then: one transaction may delete all nodes of a line,
// and the server tells of them one after another. What a reading shows may be old: before it admits anybody a transaction is
// made. Lines in which somebody waits are read again after a reconnection, and every two seconds. No more than sixteen
// readings are under way at a time in each ZooKeeper session, because confirmations come on the same connection.
//
// # Leaving
//
// A deletion that was not answered, followed by one that finds no node, leaves it open who took the entry out: the server
// keeps no word of it. It is not reported as a success; see [store.ErrNotKnown].
//
// # Between this package and the library
//
// go-zookeeper's connections pass through this package: see link. There servers are chosen and given up, connections are
// authenticated, the TTL is learnt that the servers grant, the creation of an entry is made one that answers with the
// number of its transaction (create2), and a listing is sent after it without waiting for the answer. The library can do
// none of that. It has no other part in locks: its Lock is not used.
package zkstore
