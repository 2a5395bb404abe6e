// Package keeper is the one place in Stile where time is judged: it keeps sessions alive and decides until when
// what is held under them counts as held.
//
// # The rule
//
// A store promises that a session lives for its TTL after it was confirmed. The client does not know when that
// was. It does know when it sent the request, which was earlier, so it counts from there:
//
//	valid until = sending of the last confirmed request + granted TTL − slack − margin
//
//	client   ──── send ────────────────── reply ─────────────────── valid until ┐
//	               │  \                   /                                     │ slack + margin
//	store    ──────┼── confirmed ────────────────────────────────────────────── expires
//	               └── counted from here      └── not from here
//
// Counting from the reply is the classic mistake: a slow reply makes the holder believe for longer than the store
// does. It is planted in this package's tests, where the explorer has to find it.
//
// # The states
//
//	        renewal overdue              deadline
//	┌──────┐ ───────────────▶ ┌─────────┐ ─────────▶ ┌──────┐
//	│ held │                  │ at risk │            │ lost │   for good, once, with one reason
//	└──────┘ ◀─────────────── └─────────┘            └──────┘
//	    │       confirmed                               ▲
//	    └───── the store says so, or the client closes ─┘
//
// A request that fails, or whose outcome is unknown, loses nothing before the deadline: it counts as not made.
//
// # What is assumed
//
// "Nobody else is admitted while I am valid" holds if the store keeps its promise (it does not end a session
// early, nor remove an entry before its session ends) and if the clocks of client and store run at rates that
// differ by less than the margin allows. Clocks need not agree on what time it is, and may step. Where a store
// is known to break its promise, fencing tokens are what remains; docs/guarantees.md has the list.
//
// # The parts
//
// [Lease] is the rules, without clock or I/O. [Session] runs one: it sends the requests, sets the timers and tells
// of the changes.
package keeper
