// Package redisstore keeps lines in Redis: a single server, a master elected by Sentinel, or a
// cluster. It needs Redis 7.0 or newer and refuses an older server. Valkey is untested.
//
// # Keys
//
// The lock "a" is the key "a": a string that exists while the lock is held and expires with the
// holder's lease, as if it had been made by SET a value NX PX. Lockers that use that command, such
// as redsync and hand-written ones, and Stile therefore exclude each other on the same name. Their
// hold is an exclusive entry: slots are refused behind it. A key with Stile's own mark whose holders
// were lost is not an entry; it only closes the lock until it expires. The other keys of the line
// are
//
//	{a}//q   waiters, in the order of arrival                    a sorted set
//	{a}//h   holders, by order                                   a sorted set
//	{a}//x   end of each lease, in ms of the server's time       a sorted set
//	{a}//e   client, session and owner of each entry             a hash
//	{a}//f   the last order given out; kept for a day            a string
//	{a}//v   ids that a late request must not add (10 minutes)   a sorted set
//
// They are in the same slot of a cluster. No lock name contains "//", so none of these is the key
// of a lock. The first four expire about a minute after the last lease of the line has ended. A
// session is the key "//session/<id>".
//
// One script changes a line, as one atomic step. Every operation (join, poll, leave, break) also
// admits the entries that have become admissible. A release therefore hands the lock over on the
// server, and the next holder learns of it from one message. All times are the server's; clients
// send durations only.
//
// # Leases
//
// Every entry, whether it holds or waits, has a lease that ends one TTL after its session was last
// confirmed. A confirmation renews the session and all its entries, in one round trip or, for
// thousands of entries, in a few. Admission does not change an entry's lease, so a confirmation
// covers an entry even if its client learns of the admission late or never.
//
// In a cluster the session and its entries are on different servers. A confirmation succeeds only
// if all of them have renewed. An entry that is added while a confirmation is under way is renewed
// once more.
//
// # Wake-ups
//
// Each store subscribes to one channel. On it the script publishes when one of the store's entries
// is admitted, is removed by another client, or has a waiter behind it. In a cluster it subscribes to one channel for each slot in which it
// waits for a lock. The keys are authoritative: waiting clients also poll, first after 100ms, then
// every second, and when the lease of a holder ends. A lost message therefore costs a delay and
// strands nobody. A store that subscribes again polls at once.
//
// The script sees how many subscribers have received its message. If a client that had subscribed
// does not receive the message that its entry is admitted, its process has ended or its connection
// is down. The script then admits the next entry in line instead. The skipped entry keeps its place
// until its lease ends. This is the only case in which admission does not follow arrival.
//
// # Orders
//
// An order is the larger of the last order plus one and the server's time in microseconds. It is
// assigned when the entry joins, and again when it is admitted if another entry was admitted past
// it. Orders increase as long as Redis keeps its data. They also increase after a loss of data,
// unless the clock of the server that takes over is behind, by more than the time of the writes
// that were lost.
//
// An order, read as microseconds, is a time. The last order is kept until a day after that time, by
// the server's clock. While it is kept, the clock may be set back by any amount. After that only
// the clock makes orders increase, so they go back if it is set back by more than that day.
//
// # Requests whose outcome is unknown
//
// A request times out, after half a second at first, and is sent again; carrying it out twice does
// no harm. If a request to add an entry was abandoned and may still be carried out, the store makes
// the script record the entry's id for ten minutes. The script adds no entry with such an id, and
// no id is used twice. A request that arrives after
// its session has ended does nothing. In a cluster, where the session is on another server, such an
// entry stands until its lease ends.
//
// The script keeps no record of entries that have left. If a request to leave is lost with its
// connection, and the repetition does not find the entry, it is unknown whether the lost request or
// another client removed it: that is store.ErrNotKnown. If a request is only slow, the store waits
// for its reply, because that reply says whether the request removed the entry.
//
// The Redis client ignores contexts while it connects, and while it waits on a connection that is
// not shared. The store therefore calls the client in separate goroutines and abandons the call
// when a context ends. An abandoned call is a request whose outcome is unknown, like any other.
//
// # Servers that are no longer the master
//
// Behind an address that moves (a DNS name, a virtual IP) the old master may continue as a replica,
// and connections to it stay open. If a server replies that it is a replica or is still loading its
// data, the store reconnects, at most once a second.
//
// # Keys that are lost
//
// A server that is short of memory, without maxmemory-policy noeviction, evicts keys one by one,
// and operators delete some. An entry that lacks one of its parts is reported gone at the next
// confirmation. If it held the lock, the lock's key is left to expire with the lease.
//
// # What Redis does not promise
//
// A failed master takes with it what its replicas have not received, and a server whose clock is
// set forward ends leases early. Then two clients may hold one lock until the next confirmation of
// the first one, which reports the loss. Orders, and so tokens, still protect the resource: see
// docs/guarantees.md and docs/stores.md.
package redisstore
