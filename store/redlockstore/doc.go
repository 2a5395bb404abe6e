// Package redlockstore keeps locks on several Redis servers that know nothing of each other, by the algorithm called
// Redlock: a lock is held by whoever has it at a majority of them. A minority may be down, hung or slow, and delays
// nobody.
//
// There is no line. Whoever asks when the lock is free may have it; who waits asks again when word comes that it was
// freed, and now and then in case no word comes. All holds are exclusive.
//
// # Keys
//
// At each master, a lock is the string under its name, after the prefix. It is set if nobody's is there, with a time to
// live, and taken out or renewed only by whoever knows its value: so do redsync and all others that write SET NX PX, and
// they and Stile exclude each other. Stile's value is an id, made for one attempt, and the owner in JSON.
//
//	<name>                    the lock
//	{<name>}//fence           the last order that was given out, and to which id, for a week after its hold
//	{<name>}//void/<id>       the attempt with this id comes too late; for a minute, and only after a broken connection
//	{}//names                 the names under which there may be locks, by when they end
//
// (each with the prefix before <name>, or between the braces.) What happens to a lock is published in the channel
// stile:<key>.
//
// # Time
//
// The masters count the time to live, each by its own clock, from when it handles a request; a client counts from before
// it sent the request, and takes off a hundredth and two milliseconds for clocks that differ in their rate. That is the
// slack in the session's terms, so the deadline of a hold is what Redlock calls its validity, less the keeper's margin.
//
// A session is nothing that the masters know of. It lives while a majority confirms that all its entries are there, and
// is ended here if that does not happen in time. An entry that joins later than the last confirmation was begun is
// admitted only with a renewal that was sent after that: so every entry outlives its session's deadline.
//
// # Orders
//
// A master that puts an entry in answers with an order larger than any it has seen; the largest of a majority's is the
// hold's, and is written to the masters that have the entry before the hold is admitted. The next holder's majority has
// a master in common with that one, which saw the order while the entry was there. So orders rise, as long as the masters
// do not forget; and since an order is not smaller than the master's time in microseconds, they usually rise even then. A
// master that has seen a larger order does not take a smaller one: it has put the entry in too late to propose that.
//
// # Requests whose outcome is unknown
//
// An entry must not be put in after it was given up. A master is asked to take it out only when its answer to the
// request to put it in has come. If the answer will never come, because the connection has broken, the request to take
// it out leaves word that the attempt is void; and it is repeated until it is answered.
package redlockstore
