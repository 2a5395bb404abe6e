// Package redisstore keeps lines in Redis: a single server, a master elected by Sentinel, or a
// cluster. It needs Redis 7.0 or newer and refuses an older server. Valkey is untested.
//
// # Keys
//
// The lock "a" is the key "a": a string that exists while the lock is held and expires with the
// holder's lease, as if it had been made by SET a value NX PX. So Stile and other lockers that use
// this command, such as redsync, exclude each other on the same name. The hold of another locker is
// an exclusive entry, behind which slots are refused. A key with Stile's own value whose holders were
// lost is not an entry; it only closes the lock until it expires. The other keys of the line are
//
//	{a}//q   waiters, in the order of arrival                    a sorted set
//	{a}//h   holders, by order                                   a sorted set
//	{a}//x   end of each lease, in ms of the server's time       a sorted set
//	{a}//e   client, session, owner and number of each entry     a hash
//	{a}//f   the last order given out; kept for a day            a string
//	{a}//v   ids that a late request must not add (10 minutes)   a sorted set
//	{a}//l   the operator's limit of slots, and its last change  a string
//	{a}//r   the writer of the record, and the record            a string
//
// They are in the same hash slot of a cluster. No lock name contains "//", so none of these is the key
// of a lock. The first four expire about a minute after the last lease of the line has ended. A
// session is the key "//session/<id>".
//
// One script changes a line, as one atomic step. Without a cluster, one call of it can also add
// entries to as many as 500 lines: to all of them or to none. Every operation (join, poll, leave, break)
// also admits the entries that have become admissible. A release therefore hands the lock over on the
// server, and the next holder learns of it from one message. All times are the server's; clients
// send durations only.
//
// # Leases
//
// Every entry, whether it holds or waits, has a lease that ends one TTL after its session was last
// confirmed. A confirmation renews the session and all its entries, in one round trip or, for
// thousands of entries, in a few. Those that are alone in their lines are renewed up to a hundred at a
// time; if one is not alone any more, another round trip renews it. Admission does not change an entry's lease, so a confirmation
// covers an entry even if its client learns of the admission late or never.
//
// In a cluster the session and its entries may be on different servers. A confirmation succeeds only
// if all of them have renewed. An entry that is added while a confirmation is under way is renewed
// once more, because that confirmation may not have included it.
//
// # Wake-ups
//
// Each store subscribes to one channel; in a cluster, to one channel for each slot in which it waits
// for a lock. The script publishes there when one of the store's entries is admitted, is removed by
// another client, or has a waiter behind it.
//
// A message may be lost, so the store also polls for its waiting entries: after 100 ms at first, then
// at intervals that double up to a second. Near the head of the line it also polls when the first
// lease in the line ends. While another locker, which publishes nothing, holds the lock, the first
// waiter polls every 100 ms. So a lost message delays a waiter, and strands none. A store that
// subscribes again polls at once.
//
// The script sees how many subscribers have received its message. If a client that had subscribed
// does not receive the message that its entry is admitted, its process has ended or its connection
// is down. The script then admits the next entry in line instead. The skipped entry keeps its place
// until its lease ends. This is the only case in which admission does not follow arrival. It does not
// apply to entries that joined several lines in one step: if others passed such an entry in one line
// only, two clients could wait for each other. Their ids have a mark, by which the script knows them. The
// others wait until the client is back, or its lease has ended.
//
// # Orders
//
// The order of an entry, from which its token is made, is the larger of the last order plus one and
// the server's time in microseconds. It is assigned when the entry joins, and again when it is
// admitted if another entry was admitted past it. Orders increase as long as Redis keeps its data.
// They also increase after a loss of data, with one exception: they may go back if the clock of
// the server that takes over is behind, by more than the period whose writes were lost.
//
// An order, read as microseconds, is a time. The last order is kept until a day after that time, by
// the server's clock. While it is kept, the clock may be set back by any amount. After that only
// the clock makes orders increase, so they go back if it is set to a time before the last order.
//
// # Requests whose outcome is unknown
//
// A request times out, after half a second at first, and is sent again; carrying it out twice does
// no harm. If a request to add an entry was abandoned and may still be carried out, the store makes
// the script record the entry's id for ten minutes. The script adds no entry with such an id, and
// no id is used twice. A request that arrives after its session has ended does nothing. But in a
// cluster the session may be on another server, so such a request adds the entry, which closes the
// lock until its lease ends.
//
// The script keeps no record of entries that have left. If the reply to a request to leave is lost
// with its connection, and the repetition does not find the entry, it is unknown whether the first
// request or another client removed it: the error is [store.ErrNotKnown]. If a request is only slow,
// the store waits for its reply, because that reply says whether the request removed the entry.
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
// A server that is short of memory evicts keys one by one, unless its maxmemory-policy is noeviction.
// Operators may delete keys too. An entry that lacks one of its parts is reported gone at the next
// confirmation. If it held the lock, the lock's key is left to expire with the lease.
//
// # What Redis does not promise
//
// The writes that a failed master has not sent to its replicas are lost, and a server whose clock is
// set forward ends leases early. Then two clients may hold one lock until the next confirmation of
// the first one, which reports the loss. Tokens still protect a resource that checks them: see
// docs/guarantees.md and docs/stores.md.
package redisstore
