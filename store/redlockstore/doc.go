// Package redlockstore keeps locks on several independent Redis servers, the masters, by the
// Redlock algorithm: a client holds a lock if a majority of the masters has it. A minority may be
// down, hung or slow without delaying anyone.
//
// There is no line. A client that asks while the lock is free may get it. A waiter tries again when
// the masters publish that the lock was freed, and from time to time in case that message is lost.
// All holds are exclusive.
//
// # Keys
//
// On each master a lock is a string at the key of its name, after the prefix. It is set, with a
// TTL, if the key does not exist, and deleted or renewed only by a client that knows its value.
// redsync and other clients that use SET NX PX do the same, so they and Stile exclude each other.
// Stile's value is an id, made for one attempt, and the owner in JSON.
//
//	<name>                    the lock
//	{<name>}//fence           the last order and the id that it was given to, until a week after its hold
//	{<name>}//void/<id>       voids the attempt with this id; for a minute, after a broken connection only
//	{}//names                 the names that may have locks, by when these end
//
// The prefix is before <name>, or between the braces. Changes of a lock are published in the
// channel stile:<key>.
//
// # Time
//
// Each master counts a TTL by its own clock, from when it handles a request. A client counts from
// before it sent the request, and subtracts a hundredth of the TTL and two milliseconds because
// clocks differ in rate. That is the slack in the session's terms, so the deadline of a hold is
// Redlock's validity time less the margin of a tenth of the TTL that Stile keeps on all stores.
//
// The masters have no record of sessions. A session lives while a majority confirms all its
// entries; if that does not happen in time, the client ends it. An entry that joins after the last
// confirmation began is renewed first, and admitted when that renewal has succeeded. Every entry
// therefore lasts beyond its session's deadline.
//
// # Orders
//
// A master that puts an entry in replies with an order larger than any that it has seen. The
// largest of a majority's orders becomes the hold's, and a majority must record it before the hold
// is admitted. The next holder's majority shares a master with that one, and that master recorded
// the order while the entry was there. Orders therefore rise as long as the masters lose no data.
// An order is also not smaller than the master's time in microseconds, so orders usually rise even
// after a loss. A master that has recorded a larger order rejects a smaller one: it put the entry
// in too late to take part in the choice.
//
// # Requests whose outcome is unknown
//
// An entry must not be put in after it was abandoned. A master is asked to remove an entry only
// after it has replied to the request to put the entry in. If no reply can come, because the
// connection has broken, the request to remove it also voids the attempt, and is repeated until it
// is answered.
package redlockstore
