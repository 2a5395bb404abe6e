// Package redlockstore keeps locks on several independent Redis servers, the masters, by the
// Redlock algorithm: a client holds a lock if a majority of the masters has it. Locks work as long as
// a majority of the masters answers.
//
// There is no line. A client that asks while the lock is free may get it. A waiter tries again when
// the masters publish that the lock was released, and about once a second in case that message is
// lost. All holds are exclusive.
//
// # Keys
//
// On each master a lock is a string whose key is the prefix and the name. It is set, with a TTL, if
// the key does not exist, and deleted or renewed only by a client that knows its value. redsync and
// other clients that use SET NX PX do the same, so they and Stile exclude each other. Stile's value
// is an id, made for one attempt, and the owner in JSON.
//
//	<name>                    the lock
//	{<name>}//fence           the last order and the id of its attempt; kept for a week after the hold
//	{<name>}//void/<id>       voids the attempt with this id; kept for a minute
//	{}//names                 the names that may have locks, by when these end
//
// The prefix is before <name>, or between the braces. A void key is made only after a connection has
// broken. Changes of a lock are published in the channel stile:<key>.
//
// # Time
//
// Each master counts a TTL by its own clock, from when it handles a request. A client counts from
// before it sent the request, and subtracts a hundredth of the TTL and two milliseconds because
// clocks differ in rate. That is the slack in the session's terms. So the deadline of a hold is
// Redlock's validity time less the margin of a tenth of the TTL that Stile keeps on all stores.
//
// The masters have no record of sessions. A session lives while a majority confirms all its
// entries; if that does not happen in time, the client ends it. If a confirmation began after an
// entry was put in, the entry is renewed before it is admitted. So every entry lasts beyond its
// session's deadline.
//
// # Orders
//
// A master that puts an entry in replies with an order larger than any that it has recorded. The
// largest order from a majority becomes the order of the hold, from which its token is made. A
// majority must record it before the hold is admitted. The next holder's majority shares a master
// with that one, and that master recorded the order while the entry was there. So orders increase as
// long as the masters lose no data. An order is also not smaller than the master's time in
// microseconds, so orders usually increase even after a loss. A master rejects an order that is
// not larger than its last one: it put the entry in too late to take part in the choice.
//
// # Requests whose outcome is unknown
//
// An entry must not be put in after it was abandoned. So a master is asked to remove an entry only
// after it has replied to the request to put the entry in. If no reply can come, because the
// connection has broken, the request to remove the entry also voids the attempt, and is repeated
// until it is answered. A request that arrives after its process has ended, or more than a minute
// after it was voided, still puts the entry in: it holds the lock for nobody, and expires with its TTL.
package redlockstore
