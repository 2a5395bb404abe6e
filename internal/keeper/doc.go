// Package keeper keeps sessions alive and decides how long their holds are valid. It is the only
// place in Stile that makes decisions about time.
//
// # The rule
//
// A store promises to keep a session for its TTL after each confirmation. The client does not know
// when the store confirmed it, but it knows when it sent the request, which was earlier. So it
// counts from there:
//
//	valid until = time at which the last confirmed request was sent + granted TTL − slack − margin
//
//	client   ──── send ────────────────── reply ─────────────────── valid until ┐
//	               │  \                   /                                     │ slack + margin
//	store    ──────┼── confirmed ────────────────────────────────────────────── expires
//	               └── counted from here      └── not from here
//
// Counting from the reply is the classic mistake: after a slow reply, the holder believes in its
// lock for longer than the store does. This package's tests contain that mistake on purpose, and
// the explorer must find it.
//
// # The states
//
//	        renewal overdue              deadline
//	┌──────┐ ───────────────▶ ┌─────────┐ ─────────▶ ┌──────┐
//	│ held │                  │ at risk │            │ lost │   final, with one reason
//	└──────┘ ◀─────────────── └─────────┘            └──────┘
//	    │       confirmed                               ▲
//	    └── the store reports it, or Close is called ───┘
//
// A request that fails or gets no reply changes nothing before the deadline.
//
// # Assumptions
//
// While a hold is valid, no conflicting entry is admitted, provided that the store keeps its
// promise (it neither ends a session early nor removes an entry before its session ends) and that
// the clock rates of client and store differ by less than the margin allows. The clocks may show
// different times, and may jump. Where a store is known to break its promise, only fencing tokens
// protect; docs/guarantees.md has the list.
//
// # The parts
//
// [Lease] has the rules and neither a clock nor I/O. [Session] runs a lease: it sends the requests,
// sets the timers and calls the [Callbacks]. [Reopening] says when a client that has lost a session may open
// the next one.
package keeper
