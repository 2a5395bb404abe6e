// Package store is the contract between Stile and the place where lines are kept.
//
// A store puts entries into lines, takes them out, tells how they stand, and confirms sessions. That is all:
// time belongs to package keeper, which decides how long a confirmation is good for, and whose turn it is
// belongs to package line, whose rules every store applies to the order it keeps. A store that can do less says
// so in its [Capabilities].
//
// # The promises of a store
//
// Stile's guarantees stand on these. Package storetest proves as many of them as can be proved from outside,
// for every store, and third parties should run it on theirs.
//
//   - Admission. An entry is reported [Admitted] only when the rules of package line admit it, in the order of
//     arrival at the store. It is admitted because its own entry, the very one it made, is there to be admitted:
//     never because the others have vanished.
//   - Order. [Standing.Order] of an admitted entry is larger than that of every conflicting entry admitted
//     before it under the same name, for as long as the store keeps its data. Fencing tokens are made of it.
//   - Life. The entries of a session stand at least until TTL − Slack after the session was last confirmed,
//     counted from before the confirming request was sent, and are gone soon after TTL when it is not
//     confirmed again. See [Terms]. What [Extensions.WithdrawAfter] has let go has a time of its own.
//   - Own entries only. Withdrawing touches nothing but the one entry it names, even after that entry is gone
//     and another stands under the same key.
//   - No debris. When [Session.Enqueue] fails, or its context ends, no entry of that call is in the line, or it
//     is being taken out already; whatever happens, nothing outlives its session but what
//     [Extensions.WithdrawAfter] and [Extensions.Mark] were asked to leave.
//   - No waiter is forgotten. Lost messages, reconnects, compactions and changes of leader delay a change of
//     standing. They never suppress it.
//
// # What a store may do besides
//
// The three interfaces are what every store must do. What a store may do besides, a ticket returns as functions: see
// [Extensions]. [Capabilities] says it beforehand, and has the functions that need no ticket. A function that is nil is
// an ability that the store lacks, so such a store need not mention it, and an ability can be added to the contract
// without breaking a store.
//
// They are functions, and not interfaces to ask a Store or Ticket for, because stores are wrapped: to rename locks, to
// count requests, to inject faults. A wrapper that embeds an interface hides the other methods of what it wraps, and
// looking behind it goes past what it does. A wrapper returns new Extensions and Capabilities with the fields that it
// knows, each wrapped as it needs to be; what it does not know, it then lacks. Package storetest has such a wrapper.
//
// Stores import this package, package line and the client of their server; never the root package.
package store

import (
	"context"
	"time"

	"github.com/stilelock/stile/line"
)

// A Store keeps lines: one for each name. It must be safe for concurrent use.
type Store interface {
	// Capabilities says what the store can do. It answers the same on every call, without asking the server.
	Capabilities() Capabilities

	// Open starts a session.
	//
	// On success the session was alive at some moment after Open was called, and is granted the terms that
	// [Session.Terms] tells. It lives until it is closed or not confirmed for its TTL. Open does not keep it
	// alive: the caller does, with [Session.Confirm].
	//
	// On failure there may be a session in the store nobody knows of, without entries, for at most one TTL. If the
	// server grants no such TTL, though the Capabilities allow it, the error names the server's limits.
	//
	// ctx bounds the call, not the session.
	Open(ctx context.Context, opts SessionOptions) (Session, error)

	// Line returns the line behind name. A name nobody stands for is an empty line, not an error.
	Line(ctx context.Context, name string) (Line, error)

	// Lines returns the lines whose name begins with prefix, sorted by name: those in which somebody stands.
	// The empty prefix means all. Each line is as it was at one moment; together they need not be.
	Lines(ctx context.Context, prefix string) ([]Line, error)

	// Watch calls changed whenever somebody may have joined, left or been admitted to a line whose name begins with
	// prefix, or an entry there may have changed. It returns when ctx ends, with an error matching ctx.Err(), or when the store will never tell: because it
	// must not read there, for example. What can pass, it repairs by itself.
	//
	// The first call comes when the watch stands; until then nothing is promised. Every change after it is followed by
	// another, after which a reading shows the change: soon, or, if connections are lost, when there is a connection
	// again. Calls for several changes may be one, and there may be calls for none. changed is called by one goroutine
	// at a time, and may block and call the store: it is then called once for all that happened meanwhile. Watch waits for
	// a call under way before it returns, and there is none after.
	Watch(ctx context.Context, prefix string, changed func()) error

	// Break takes the entry with the given order out of the line behind name, no matter whose it is, and returns it as
	// it was. If there is no such entry the error matches [ErrGone] and nothing was changed. Any other error
	// leaves open whether the entry is still there.
	Break(ctx context.Context, name string, order uint64) (Entry, error)
}

// A Session is what one client has in the store: when it ends, all its entries go. It must be safe for concurrent
// use. After Close, or once it is lost, every method returns an error matching [ErrSessionLost], except Close
// itself; calls under way return.
type Session interface {
	// ID names the session, in the store's own way, to people who look into the store with other tools.
	ID() string

	// Terms returns what the store granted. They do not change.
	Terms() Terms

	// Confirm asks the one authority that could end the session (the etcd leader, the ZooKeeper leader, the
	// Redis master, a majority of Redlock masters) to keep it for another TTL.
	//
	// A nil error proves that the session was alive at some moment after Confirm was called, so that the store had not
	// ended any of its entries by then. It does not prove that nobody else has taken one out, with Break or in the server
	// itself: Notify tells of that as soon as the store hears of it. An error matching [ErrSessionLost] proves that it has ended. Any
	// other error proves nothing: the request may have been carried out.
	//
	// Confirm never answers from what the client knows already, and never takes the answer to an earlier
	// request for its own. It is called by one goroutine at a time.
	Confirm(ctx context.Context) error

	// Enqueue puts an entry at the end of the line behind req.Name and follows it from there.
	//
	// On success the entry was put in by this call, and [Request.Notify] hears of its standing from now on,
	// beginning with the standing it has as Enqueue returns.
	//
	// On failure no entry of this call will be admitted. If its outcome is unknown the store goes on in the
	// background, beyond ctx, until the entry is out or the session has ended. If req.Try is set and it is not
	// the entry's turn, the error is a [*HeldError].
	//
	// A session may have several entries in a line. Each stands for itself: the second of two exclusive ones waits
	// behind the first. ctx bounds the call, not the entry. If ctx ends first the error matches ctx.Err().
	Enqueue(ctx context.Context, req Request) (Ticket, error)

	// Close ends the session and takes all its entries out. On failure they go when the TTL has passed. Close
	// after Close, or after a loss, does nothing and returns nil.
	Close(ctx context.Context) error
}

// A Ticket is the handle to one entry. It must be safe for concurrent use.
type Ticket interface {
	// Withdraw takes the entry out of its line, wherever it stands: leaving the line and releasing a hold are
	// the same. After it has been called Notify is not called any more, but for a call under way.
	//
	// On success the entry is out, and was there until then. If it had gone before, by itself or with its session, the
	// error matches [ErrGone]. If it is out but may have gone before, the error matches [ErrNotKnown]. After any other error
	// the store goes on trying until the entry is out or the session has ended. It is safe to call it again.
	Withdraw(ctx context.Context) error

	// Extensions returns what else can be done with the entry. It agrees with the store's [Capabilities], and does not
	// change.
	Extensions() Extensions
}

// SessionOptions are what a session is opened with.
type SessionOptions struct {
	// TTL is how long the session lives without being confirmed. The caller sees to it that it is within MinTTL and
	// MaxTTL of the store's [Capabilities]. The store may grant more: [Terms] tells.
	TTL time.Duration

	// Lost, if not nil, is called at most once, with an error matching [ErrSessionLost], when the store learns
	// by itself that the session has ended; not after Close has returned. It must not block or call the store.
	Lost func(error)
}

// Terms are what the store promises of a session.
type Terms struct {
	// TTL is how long the session lives after its last confirmation, by the store's clock.
	TTL time.Duration
	// Slack is by how much the store may end a session early. Zero for stores that never do in normal
	// operation; a third of TTL on ZooKeeper, whose followers report their clients' signs of life late.
	Slack time.Duration
	// Attempt is how long one call of [Session.Confirm] should be given, for stores that make the request again by
	// themselves when it was lost, and know better how long to wait. Zero for those that make one request for each call.
	Attempt time.Duration
}

// A Request asks for an entry.
type Request struct {
	// Name is the lock's name. It has passed [CheckName].
	Name string
	// Mode is what the entry asks for.
	Mode line.Mode
	// Owner is who asks. The store keeps it with the entry as it is, Since included, readable by everyone. A store that
	// writes entries down only as they are admitted sets Obtained.
	Owner Owner
	// Try asks for the entry only if it is admitted at once.
	Try bool
	// Notify is called with each change of the entry's standing, one call at a time and in order. The first
	// call may come before Enqueue returns. The last standing is always delivered; those in between may be
	// skipped. After a standing that is [Gone] it is not called again.
	//
	// Notify is called from the goroutine that heard of the change, for the shortest hand-over: it must not
	// block and must not call the store.
	Notify func(Standing)
}

// State is what a standing says of an entry.
type State uint8

const (
	// Waiting: others must leave first.
	Waiting State = iota
	// Admitted: it is the entry's turn.
	Admitted
	// Gone: the entry is not in its line any more, though nobody withdrew it. It never comes back.
	Gone
)

// String returns "waiting", "admitted" or "gone".
func (s State) String() string {
	switch s {
	case Waiting:
		return "waiting"
	case Admitted:
		return "admitted"
	default:
		return "gone"
	}
}

// A Standing is how an entry stands in its line.
type Standing struct {
	State State
	// Ahead is, while waiting, how many entries must leave before this one's turn; at least 1.
	Ahead int
	// Order is the store's order of admissions. It is set when the state is Admitted, and before that in stores
	// that fix it on arrival. It is positive and below 2^52, so that a token made of it fits a signed 64-bit
	// integer.
	Order uint64
	// Cause is, when the state is Gone, an error that says why, matching [ErrGone] or [ErrSessionLost].
	Cause error
}

// MaxOrder is the largest order a token can be made of. A store that runs past it fails closed.
const MaxOrder = 1<<52 - 1

// Capabilities say what a store can do.
type Capabilities struct {
	// Kind names the kind of store: "etcd", "redis", "memory". It is one word, for messages and metrics.
	Kind string
	// Fair is set if admission follows arrival.
	Fair bool
	// SharedModes is set if entries other than exclusive ones are possible. Where it is not, enqueueing one is
	// an error matching [ErrUnsupported].
	SharedModes bool
	// Fencing is set if Order is what the contract says. Where it is not, Order is zero and there are no tokens.
	Fencing bool
	// ReleaseAfter is set if a lock can stay closed after its release, even if the session ends: if tickets have
	// [Extensions.WithdrawAfter].
	ReleaseAfter bool
	// OwnerUpdates is set if an entry's owner can be changed while it stands: if tickets have [Extensions.SetOwner].
	OwnerUpdates bool
	// Contention is set if a holder can be told that others wait: if tickets have [Extensions.NotifyContended].
	Contention bool
	// ClearMarks removes markers under name: those of the entries with the given orders, which [Extensions.Mark] has
	// returned. Markers that are not there need not be removed. On failure some may be gone and others not.
	//
	// It is nil if the store keeps no markers; tickets have Mark if it is not. Markers are known by the orders of their
	// entries, so Fencing is set too.
	ClearMarks func(ctx context.Context, name string, orders []uint64) error
	// MinTTL and MaxTTL bound the TTL of a session. A store that cannot know before asking its server tells the
	// widest bounds, and Open's error the real ones.
	MinTTL, MaxTTL time.Duration
}

// A Line is the queue behind one name, as read at one moment.
type Line struct {
	// Name is the lock's name.
	Name string `json:"name"`
	// Entries are those who stand there, in order of admission.
	Entries []Entry `json:"entries"`
	// Remarks tell a person what is odd about the line, and what to do: a foreign key that other clients would
	// wait for, for example.
	Remarks []string `json:"remarks,omitempty"`
}

// An Entry is one place in a line, as everybody can read it. What it says of itself may change while it stands: Line
// shows it as it is, Watch tells that it may be another, and Notify does not, because its standing is the same.
type Entry struct {
	// Order is the entry's place in the store's order; see [Standing.Order]. Zero if the store gives it at
	// admission and the entry still waits.
	Order uint64 `json:"order"`
	// Mode is what the entry asks for.
	Mode line.Mode `json:"mode"`
	// Admitted is set if it is the entry's turn.
	Admitted bool `json:"admitted"`
	// Session names the session the entry belongs to; see [Session.ID].
	Session string `json:"session"`
	// Foreign is set if another client than Stile made the entry; then Owner is empty.
	Foreign bool `json:"foreign,omitempty"`
	// Owner is who stands there.
	Owner Owner `json:"owner"`
	// Remaining is how much longer the entry's session lives if it is not confirmed again. Zero if the store did
	// not tell.
	Remaining time.Duration `json:"remaining_ns,omitempty"`
}
