package store

import (
	"context"
	"time"
)

// Extensions are what can be done with an entry besides withdrawing it, on a store that can. They are functions bound to
// the entry's ticket, and may be called by any goroutine. One that is nil is an ability that the store lacks.
type Extensions struct {
	// WithdrawAfter lets the entry go d from now, by itself: the session's end does not take it out any more, and nobody
	// has to confirm anything. Its order, mode, owner and place in the line stay as they are; to readers, its session may
	// be another from now on. After WithdrawAfter has been called Notify is not called any more, but for a call under way.
	//
	// On success the entry stands until d after the call was made, unless somebody breaks it, and is out soon after: a
	// store may round d up, to the second or to the least TTL it can grant. If the entry had gone before, the error
	// matches [ErrGone] or [ErrNotKnown], as that of Withdraw does. A d that is zero or negative is a Withdraw; one that is
	// longer than the store can count, which is years, is as long as it can.
	//
	// After any other error the store goes on in the background until the entry is out, d after the call at the earliest
	// if the session lives so long, or the session has ended; it is open then whether the entry ends with the session or
	// stands until d after the call.
	//
	// For its session the entry counts as withdrawn: it may enqueue under the same name again, and then stands behind it.
	// Withdraw takes the entry out before its time, also when the session has ended; too late, it says [ErrGone].
	// WithdrawAfter sets the time anew; but if an earlier call has not succeeded, either time may be the one that counts.
	WithdrawAfter func(ctx context.Context, d time.Duration) error

	// Mark leaves a marker for the entry: a note that the store keeps beside the line, and that does not end with the
	// session. Withdraw and WithdrawAfter remove it as they take the entry out or let it go, in one step with that. If the
	// entry goes in any other way, because its session has ended or somebody has broken it, the marker stays, until
	// [Capabilities.ClearMarks] removes it. So a marker whose entry is not in the line shows that the entry was not
	// released by its owner.
	//
	// If there are such markers under the name, of entries of any mode, Mark leaves none, and returns the entries that
	// were not released, as they were: they may lack what only concerns entries that stand. When it returns neither
	// entries nor an error, the marker is left.
	//
	// It is for entries that have been reported [Admitted] and have not been withdrawn. If the entry has gone the error
	// matches [ErrGone] or [ErrSessionLost], and no marker was left. After any other error the marker may have been left
	// or not; it is never left after the entry has gone. It is safe to call it again.
	Mark func(ctx context.Context) (unreleased []Entry, err error)

	// SetOwner has others read another owner of the entry from now on. Nothing else changes: not its order, its mode, its
	// session, its life or its place, and Notify is not called.
	//
	// It is for entries that wait or are admitted. If the entry has gone the error matches [ErrGone] or [ErrSessionLost],
	// and nothing was changed: an entry that has gone is never put in again. So it is once Withdraw or WithdrawAfter has been
	// called. After any other error it is open which of the two owners others read, and a request that was not answered may
	// still be carried out; but not after the entry has gone or was let go with WithdrawAfter. It is safe to call it again,
	// and to call it from several goroutines, though it is open then which call is the last.
	SetOwner func(ctx context.Context, owner Owner) error

	// NotifyContended makes the store call f once, as soon as another entry stands behind this one and waits: at once if
	// that is so already, never if it does not happen before the entry goes. Like Notify, f must not block or call the
	// store.
	//
	// It is not a field of [Request], because to watch for those who join can cost a store more than all the rest does.
	// Only the entries whose owners ask for it pay.
	NotifyContended func(f func())
}
