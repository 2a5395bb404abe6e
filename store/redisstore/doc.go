// Package redisstore keeps lines in Redis: a single server, the master that Sentinels choose, or a cluster. It needs
// Redis 7.0 or newer, or Valkey, which is untested; a server that says it is older is refused.
//
// # Keys
//
// The lock "a" is the key "a": a string that exists while the lock is held, and ends with the lease of who holds it, as if it
// had been made by SET a value NX PX. So all who lock that way, redsync and hand-written lockers among them, are excluded by
// Stile and exclude it on the same name. Beside it stand
//
//	{a}//q   those who wait, in the order of arrival        a sorted set
//	{a}//h   those who hold the lock                        a sorted set, by order
//	{a}//x   when the lease of each of them ends            a sorted set, by the server's clock in milliseconds
//	{a}//e   what is known of each: client, session, owner  a hash
//	{a}//f   the last order given out                       a string, for a day after the time that it tells
//	{a}//v   entries that must not come (back)              a sorted set, for ten minutes
//
// in the same slot of a cluster. No name contains "//", so none of these is the key of a lock. They end a minute after the
// last lease. A session is the key "//session/<id>".
//
// A line is changed by one script, which is carried out as one step: entering, asking, leaving and breaking all let in those
// whose turn it is. So a release hands the lock over on the server, and one message later the next holder knows. All times
// are the server's; clients send durations only.
//
// # Life
//
// Every entry, whether it holds or waits, has a lease for as long as its session was last confirmed, and each confirmation
// renews the session and all its entries, in one round or, if there are thousands, in a few. Who is handed the lock has the rest of its lease, so what a
// confirmation promises is true of it whether it learns at once, later, or never.
//
// In a cluster the session and its entries are on different servers. A confirmation is one if all of them have renewed. An
// entry that is put in while a confirmation is under way is renewed once more.
//
// # Waking
//
// Each store subscribes to one channel, on which the script says who has been let in, who has been taken out and who is
// waited for; in a cluster to one for each slot in which it waits for a lock. What is true is in the keys: those who wait also ask, at
// first after a tenth of a second, then every second, and when the lease of a holder ends. A lost message costs that much,
// and strands nobody. Whoever subscribes again asks at once.
//
// The script sees whether anybody has heard its message. If it is the turn of an entry whose client has subscribed and is
// not there, because its process has ended or its connection is down, the next in line is let in instead; the entry keeps
// its place until its lease ends. That is the one case in which admission does not follow arrival.
//
// # Orders
//
// An order is the larger of the last order plus one and the server's time in microseconds, drawn as the entry comes; and
// again as it is let in, if somebody was let in past it. It rises as long as the data are kept; after a loss of data it
// rises still, if the clock of the server that takes over is not behind by more than the loss took.
//
// The last order is kept for a day after the time that it tells, by the server's clock. While it is kept the clock may be set
// back by any time; after that the clock alone makes orders rise, so they go back if it is set back by more than that day.
//
// # Requests whose outcome is unknown
//
// Requests are given up after half a second at first, and made again; each does no harm if it is carried out twice. One that
// would put in an entry, was given up for good and is still under way, is made void: the script remembers its entry's id,
// which is never used again. One that comes when its session has ended does nothing; but in a cluster, where the session is on
// another server, its entry stands until its lease ends.
//
// The script keeps no record of those who have left. If a request to leave is lost, with its connection, and its repetition
// finds nothing, nobody can tell which of the two there was: that is store.ErrNotKnown. Requests that are only slow are waited
// for, because their own answers tell.
//
// The Redis client heeds no context while it connects, or waits on a connection that nobody shares. So the store waits for the
// client in goroutines of its own, and leaves it to itself when a context ends; what the client does then is a request whose
// outcome is unknown, like any other.
//
// # Servers that are not the master any more
//
// Behind an address that moves, a DNS name or a virtual IP, the old master may live on as a replica, and connections to it
// stay. A server that says so, or that it has no data yet, is left: all connections are made anew, at most once a second.
//
// # Keys that are lost
//
// A server that is short of memory, and has not been told to throw nothing away, throws away keys one by one, and people delete
// some. Whose entry lacks a part of what belongs to it is told at the next confirmation that it is gone. If it held the lock,
// the lock's key is left to end with the lease.
//
// # What Redis does not promise
//
// A master that fails takes with it what its replicas have not received, and a server whose clock is set forward ends leases
// early: then two may hold one lock until the first one's next confirmation, which tells it. Orders, and so tokens, are what
// remains: see docs/guarantees.md and docs/stores.md.
package redisstore
