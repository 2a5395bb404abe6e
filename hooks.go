package stile

import "time"

// Hooks are functions that a client calls as things happen; any may be nil. Acquired and Released are called by the
// goroutine that locks or releases, which waits for them. The others are called one after another by a goroutine of the
// client's own: one that blocks keeps the rest of the news, and nothing else.
//
// A hook may use the client and its locks, and may close the client. But Acquired must not wait for the lock that it tells
// of, which is not free before Acquired has returned. A panic in Acquired or Released goes on in the call that locks or
// releases; after one in Acquired the lock is given up. A panic in another hook, or during Join, ends the process, because
// it is in a goroutine of the client's own.
type Hooks struct {
	// Acquired is called when a lock has been acquired, before the hold is returned. If the lock is lost before the hook
	// returns, Lost is called too, the hold is not returned, and the client gets in line again.
	Acquired func(Acquired)
	// Released is called when a hold has been released by its holder.
	Released func(Released)
	// Lost is called when a hold has been lost, after its context has ended.
	Lost func(*LostError)
	// Renewed is called after each attempt at renewing the session.
	Renewed func(Renewed)
	// AtRisk is called when renewal becomes overdue, with the time left until everything held is lost, and with zero when
	// the session has been confirmed again.
	AtRisk func(left time.Duration)

	_ struct{}
}

// Acquired tells of a lock acquired.
type Acquired struct {
	Name  string
	Token uint64
	// Waited is the time from the call to the hold.
	Waited time.Duration
}

// Released tells of a lock released.
type Released struct {
	Name  string
	Token uint64
	// Held is the time from acquiring to releasing.
	Held time.Duration
	// Err is nil if the store has confirmed the release.
	Err error
}

// Renewed tells of an attempt at renewing the session.
type Renewed struct {
	// RoundTrip is the time from request to reply; zero if there was none.
	RoundTrip time.Duration
	// Err is nil if the session was confirmed.
	Err error
}
