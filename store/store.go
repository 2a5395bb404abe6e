// Package store is the contract between Stile and the servers that keep its lines.
//
// Each lock has a line, the queue of its holders and waiters. An entry is one place in a line. A session
// owns the entries of one client. A store keeps the lines and the sessions: it adds entries, removes
// them, reports their standing, and confirms sessions. It does not decide how long a confirmation is
// valid, which the client of package stile does, nor which entries are admitted, which the rules of
// package line do. A store declares its limits and its optional features in its [Capabilities].
//
// # What a store promises
//
// Stile's guarantees depend on these promises. Package storetest tests as many of them as can be
// tested from outside. Run it on every new store.
//
//   - Admission. An entry is reported [Admitted] only if the rules of package line admit it, in the
//     order of arrival at the store. (For exceptions see [Capabilities.Fair].)
//     Before the report the store must have found in the line the very entry that this call of
//     Enqueue made. That all other entries are gone is not enough.
//   - Order. The [Standing.Order] of an admitted entry is larger than that of every conflicting
//     entry admitted before it with the same name, as long as the store keeps its data. Fencing
//     tokens are made from it.
//   - Lifetime. A session's entries stay in their lines for at least TTL − Slack. This time is counted
//     from the moment when the request of the last confirmation was sent, and begins anew with every
//     confirmation. Without another confirmation they are removed shortly after the TTL. See [Terms].
//     Entries detached with [Extensions.WithdrawAfter] have a time of their own.
//   - Withdrawal. Withdraw removes only its own entry, even if that entry is gone and another
//     one has the same key.
//   - Failed calls leave nothing. If [Session.Enqueue] fails, because its context ended or for another
//     reason, no entry of that call is in the line, or its removal has started. Nothing outlives its
//     session, except what [Extensions.WithdrawAfter], [Extensions.Mark] and [Extensions.SetRecord]
//     leave on purpose.
//   - Every admission is reported. Lost messages, reconnections, compactions and leader changes may
//     delay the report of a new standing, but never suppress it.
//
// # Optional features
//
// Every store implements Store, Session and Ticket. Optional features are functions: those for one entry
// are in the [Extensions] of its ticket, the others in [Capabilities], which also says in advance which
// Extensions there are. (Extensions.Key is not a function and not announced.) A nil function means that the
// store lacks the feature. So a store sets only the functions that it has, and a new feature can be added
// to the contract without breaking existing stores.
//
// They are functions, not optional interfaces, because stores are wrapped: to rename locks, count
// requests or inject faults. A wrapper that embeds an interface hides the additional methods of the
// wrapped value, and unwrapping it would bypass the wrapper. Instead, a wrapper returns new
// Extensions and Capabilities with the fields that it knows, each wrapped as necessary, and so
// lacks all features that it does not know. Package storetest has an example.
//
// A store imports this package, package line, and the client library of its server, but never the
// root package.
package store

import (
	"context"
	"iter"
	"time"

	"github.com/stilelock/stile/line"
)

// A Store keeps one line for each name. It must be safe for concurrent use. If no server answers, a method
// other than Watch may fail before ctx ends, and so may ClearMarks, SetLimit and Record of its Capabilities.
// Those of etcdstore, redisstore, redlockstore and zkstore do after ten seconds. If thousands of calls are made at the
// same time, their wait for each other may come before that.
type Store interface {
	// Capabilities returns what the store supports. It sends no request and always returns the
	// same.
	Capabilities() Capabilities

	// Open starts a session.
	//
	// On success the session was alive at some moment after Open was called; [Session.Terms]
	// returns what the store granted. The session lives until it is closed or not confirmed for its
	// TTL. The caller keeps it alive with [Session.Confirm].
	//
	// On failure the store may have an unused session, without entries, for at most one TTL. If the
	// server does not grant the TTL although the Capabilities allow it, the error names the
	// server's limits.
	//
	// ctx bounds the call, not the session.
	Open(ctx context.Context, opts SessionOptions) (Session, error)

	// Line returns the line of name. It is empty, without an error, if there are no entries.
	Line(ctx context.Context, name string) (Line, error)

	// Lines yields the lines that have entries and whose name begins with prefix, sorted by name. The
	// empty prefix means all. Each line is consistent in itself, but not with the others. After a failure
	// it yields the error and ends. It reads while it is ranged over, each time anew, and a long
	// pause between two lines does no harm. The time limit of a store is for each of its requests.
	// A store may leave out Remarks for which it would have to read more; Line returns all.
	Lines(ctx context.Context, prefix string) iter.Seq2[Line, error]

	// Watch calls changed when an entry may have joined, left, been admitted or otherwise changed,
	// in a line whose name begins with prefix. It returns when ctx ends, with an error matching
	// ctx.Err(), or when the store cannot watch at all, for example for lack of permission. It
	// recovers from temporary failures by itself.
	//
	// The first call of changed shows that the watch is established. Every later change is followed
	// by a call, after which a reading shows the change; if the connection is lost, the call comes
	// after it is restored. Several changes may lead to one call, and a call may come without a
	// change. changed is called by one goroutine at a time; it may block and call the store, and
	// changes meanwhile lead to one more call. Watch returns only after the last call has returned.
	//
	// names has the names of the lines that may have changed, in order, each once. Nil stands for
	// all lines: so it is in the first call, and when the store cannot tell, for example after an
	// outage.
	// changed may keep names.
	Watch(ctx context.Context, prefix string, changed func(names []string)) error

	// Break removes the entry with the given order from the line of name, no matter which session
	// it belongs to, and returns it. If there is no such entry, the error matches [ErrGone] and
	// nothing has changed. After any other error the entry may or may not be there.
	Break(ctx context.Context, name string, order uint64) (Entry, error)
}

// CollectLines returns the lines that [Store.Lines] yields, or its error without them.
func CollectLines(seq iter.Seq2[Line, error]) ([]Line, error) {
	var lines []Line
	for l, err := range seq {
		if err != nil {
			return nil, err
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// A Session owns the entries of one client: when it ends, they are removed. It must be safe for
// concurrent use. After Close or a loss, Confirm and Enqueue return an error matching
// [ErrSessionLost], calls under way too.
type Session interface {
	// ID returns the session's ID in the store, for people who look at the store with other tools.
	ID() string

	// Terms returns what the store granted. The terms do not change.
	Terms() Terms

	// Confirm asks the authority that could end the session (the etcd leader, the ZooKeeper leader,
	// the Redis master, a majority of the Redlock masters) to keep it for another TTL.
	//
	// If it returns nil, the session was alive at some moment after Confirm was called, and the
	// store had not ended any of its entries by then. An entry may have been removed in another
	// way, by Break or at the server; Notify reports that. If the error matches [ErrSessionLost],
	// the session has ended. Any other error proves nothing: the request may or may not have taken
	// effect.
	//
	// Confirm never returns a cached result, and never takes the reply to an earlier request for
	// its own. It is called by one goroutine at a time.
	Confirm(ctx context.Context) error

	// Enqueue adds an entry at the end of the line of req.Name and follows it from then on.
	//
	// On success this call has added the entry, and [Request.Notify] receives its standings,
	// starting with the one at the return of Enqueue.
	//
	// On failure no entry of this call will ever be admitted. If the outcome of the request is
	// unknown, the store continues in the background, beyond ctx, until the entry is removed or the
	// session has ended. If req.Try is set and the entry is not admitted, the error is a
	// [*HeldError].
	//
	// The kind of a line is that of its first entry; see [line.SameKind]. An entry of another kind is
	// refused with a [*KindError], whether or not req.Try is set. An entry of a foreign client counts
	// as exclusive, unless the store can tell that it is a reader's. A refused entry may be in the
	// line until it is removed, as after any failure. If it is the first entry by then, others may be
	// refused because of it: for a moment, or for up to a TTL if its client dies meanwhile. In a long
	// line a store may look at a few entries only, and take the first of these.
	//
	// A session may have several entries in a line, and they are independent: the second of two
	// exclusive entries waits behind the first. ctx bounds the call, not the entry. If ctx ends
	// first, the error matches ctx.Err().
	Enqueue(ctx context.Context, req Request) (Ticket, error)

	// Close ends the session and removes all its entries. If it fails, they are removed when the
	// TTL has passed; another call may try again. After a success or a loss, it does nothing and
	// returns nil.
	Close(ctx context.Context) error
}

// A Ticket is the handle of one entry. It must be safe for concurrent use.
type Ticket interface {
	// Withdraw removes the entry from its line, whether it waits or is admitted. Notify is not
	// called after the call starts, except for a call under way.
	//
	// On success the entry was in the line until now and is removed. If it was already gone, the
	// error matches [ErrGone]. If it is removed but may have been gone before, the error matches
	// [ErrNotKnown]. After any other error the store continues in the background until the entry is
	// removed or the session has ended. Withdraw may be called again.
	Withdraw(ctx context.Context) error

	// Extensions returns the optional operations on the entry. They agree with the store's
	// [Capabilities] and do not change.
	Extensions() Extensions
}

// SessionOptions are the parameters of a new session.
type SessionOptions struct {
	// TTL is how long the session lives without confirmation. It must be within the MinTTL and
	// MaxTTL of the store's [Capabilities]. The store may grant a longer one; see [Terms].
	TTL time.Duration

	// Lost, if not nil, is called at most once, with an error matching [ErrSessionLost], when the
	// store finds out that the session has ended. It is not called after Close has returned. It
	// must not block or call the store.
	Lost func(error)
}

// Terms are what the store promises about a session.
type Terms struct {
	// TTL is how long the session lives after its last confirmation, by the store's clock.
	TTL time.Duration
	// Slack is how much earlier than the TTL the store may end a session. It is zero for stores
	// that never do so in normal operation. On ZooKeeper, whose followers report the activity of
	// their clients late, it is a third of the TTL. On Redlock it allows for clocks that are a
	// hundredth fast.
	Slack time.Duration
	// Attempt is how long the caller lets one call of [Session.Confirm] last, for stores that repeat
	// lost requests themselves. Zero, for stores that send one request for each call, leaves that to
	// the caller.
	Attempt time.Duration
}

// A Request describes a new entry.
type Request struct {
	// Name is the lock's name. It has passed [CheckName].
	Name string
	// Mode is the requested mode.
	Mode line.Mode
	// Owner describes the client. The store stores it unchanged, Since included, and everyone can
	// read it. A store that writes entries only when they are admitted sets Obtained.
	Owner Owner
	// Try means that the entry is added only if it is admitted at once.
	Try bool
	// Notify is called for each change of the entry's standing, one call at a time and in order.
	// The first call may come before Enqueue returns; if Enqueue then fails, it counts for nothing.
	// Intermediate standings may be skipped, but the last one is always delivered. None follows
	// [Gone].
	//
	// It is called by the goroutine that received the change, so that a hand-over takes as little
	// time as possible. It must not block or call the store.
	Notify func(Standing)
}

// State is the state of an entry in its line.
type State uint8

const (
	// Waiting: the entry waits for others to leave.
	Waiting State = iota
	// Admitted: the rules of package line admit the entry.
	Admitted
	// Gone: the entry is out of its line without having been withdrawn. This state is final.
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

// A Standing is an entry's state in its line, and its position.
type Standing struct {
	State State
	// Ahead is how many entries must leave before a waiting entry is admitted; at least 1. In a
	// long line it may be an upper bound, and not every change need be reported. It does not
	// increase, unless the limit of slots is lowered.
	Ahead int
	// Order is the entry's position in the store's order of admissions. It is set if the entry is
	// admitted, and earlier on stores that assign it on arrival. It is positive and below 2^52, so
	// that a token made from it fits a signed 64-bit integer.
	Order uint64
	// Cause says why the entry is gone. It matches [ErrGone] or [ErrSessionLost].
	Cause error
}

// MaxOrder is the largest order that a token can be made from. A store that reaches it must return
// errors rather than exceed it.
const MaxOrder = 1<<52 - 1

// TurnBits is the number of bits by which an order is shifted left to make a fencing token. These bits
// count the holds that a client has lent with the entry before, one after another. The order of a hold's
// entry is the hold's token >> TurnBits.
const TurnBits = 11

// MaxRecordBytes is the maximum length of a record; see [Extensions.SetRecord].
const MaxRecordBytes = 256 << 10

// Capabilities are the features and limits of a store.
type Capabilities struct {
	// Kind is the kind of store in one word, for messages and metrics: "etcd", "redis", "memory".
	Kind string
	// Fair is set if entries are admitted in order of arrival. Others may pass only an entry whose
	// client cannot be reached, as on Redis.
	Fair bool
	// SharedModes is set if the store supports modes other than exclusive. If not, Enqueue with
	// another mode returns an error matching [ErrUnsupported].
	SharedModes bool
	// Fencing is set if Order is as promised. If not, Order is zero and there are no fencing
	// tokens.
	Fencing bool
	// ReleaseAfter is set if tickets have [Extensions.WithdrawAfter].
	ReleaseAfter bool
	// OwnerUpdates is set if tickets have [Extensions.SetOwner].
	OwnerUpdates bool
	// Downgrades is set if tickets have [Extensions.Downgrade]. A store without SharedModes lacks it.
	Downgrades bool
	// Contention is set if tickets have [Extensions.NotifyContended].
	Contention bool
	// Requeue is set if tickets have [Extensions.Requeue].
	Requeue bool
	// SlotNumbers is set if tickets have [Extensions.ClaimNumber]. It requires SharedModes and
	// Fencing.
	SlotNumbers bool
	// ClearMarks removes the markers of the entries with the given orders, which [Extensions.Mark]
	// returned, from a name. Missing markers are not an error. After a failure some may be removed
	// and others not.
	//
	// It is nil if the store keeps no markers; otherwise tickets have Mark. Markers are identified
	// by the orders of their entries, so a store with markers also has Fencing.
	ClearMarks func(ctx context.Context, name string, orders []uint64) error
	// SetLimit sets the operator's limit of slots of a name; zero removes it, and callers pass no negative
	// one. The limit is kept beside the line: it needs no session and no entries, and outlasts both. A slot
	// is admitted as if its own n were no larger than the limit; see [line.Mode.Within]. If the limit is
	// raised or removed, the entries that now fit are admitted. If it is lowered, no entry is removed, and
	// those that were admitted stay admitted.
	//
	// Where clients decide about admission, they may admit by an old limit until they receive the new
	// one, but never by a limit that had been replaced before the entry joined the line.
	//
	// After a failure either limit may apply, and an unanswered request may still take effect, but not
	// after a later call has succeeded. SetLimit is nil if the store has no such limits; otherwise it
	// requires SharedModes.
	SetLimit func(ctx context.Context, name string, limit int) error
	// EnqueueAll makes a call of [Session.Enqueue] for each of the requests, all in one step: the first
	// entry joins its line at the same moment as the last one. So if two calls share names, the entries of
	// one of them are ahead in all the lines that they share. The requests have different names and the
	// same Try, and all are exclusive. A session that another store has opened is an error.
	//
	// On success the tickets are in the order of the requests. From then on each entry stands for itself:
	// it is admitted, withdrawn or gone without regard to the others. But no later entry is
	// admitted before one of these, even if their client cannot be reached. A store that otherwise lets
	// others pass such a client waits here until the entry is gone with its session.
	//
	// On failure no entry of the call will ever be admitted, as after a failed Enqueue. A [*KindError] or
	// [*HeldError] names one of the locks. If another client has removed some of the entries before the
	// call returned, the error matches [ErrGone]. If there are more requests than the
	// store can handle in one step, the error says how many it can.
	//
	// EnqueueAll is nil if the store has no such step: then a client takes several locks one
	// after another. It is set on a store for all clients or for none, because callers of the two kinds can
	// deadlock.
	EnqueueAll func(ctx context.Context, session Session, requests []Request) ([]Ticket, error)
	// Record returns the record of a name, which [Extensions.SetRecord] has written; empty if there is
	// none. It shows every write that had succeeded before the call, as long as the store keeps its data.
	// A record is kept beside the line: it needs no session and no entries to stay, and outlasts both. Lines
	// does not list a name for its record, and Watch does not report that a record has changed.
	//
	// The value may be any bytes: other clients can write to the store. A store need not return more than
	// the first [MaxRecordBytes] + 1 bytes. Record is nil if the store keeps no records; otherwise tickets
	// have SetRecord.
	Record func(ctx context.Context, name string) ([]byte, error)
	// Follow follows lines: unlike Watch, it passes their states, not only their names. It calls changed first
	// with all lines whose name begins with prefix, and then with each state that one of them gets into, in the
	// order of the states. Nothing is read for a change, and a change that is undone at once is reported too.
	//
	// States are left out in three cases only. While changed has not returned, further states are kept for it;
	// if these become too many, they are replaced by one call with all lines. A line with more than
	// [MaxFollowed] entries is reported at most ten times a second. And after an outage, or if the store no
	// longer has the changes, all lines are read again. In each case a call with the newest states follows.
	//
	// Follow returns when ctx ends, with an error matching ctx.Err(), or when the store cannot follow at all,
	// for example for lack of permission. Other failures are reported in [Changes.Err], and it recovers from them
	// by itself. The goroutine that calls Follow makes all calls of changed. changed may block and call the store.
	//
	// Follow is nil if the store reports only that a line may have changed.
	Follow func(ctx context.Context, prefix string, changed func(Changes)) error
	// MinTTL and MaxTTL are the limits of a session's TTL. A store that learns its limits from the
	// server returns the widest ones here, and the server's in the error of Open. A client of the
	// root package also has its own maximum, stile.MaxTTL.
	MinTTL, MaxTTL time.Duration
}

// MaxFollowed is the number of entries up to which [Capabilities.Follow] reports each state of a line.
const MaxFollowed = 128

// Changes is what [Capabilities.Follow] reports: the lines that have changed in one step of the store, all
// lines, or an error.
type Changes struct {
	// Lines are the lines after the step, sorted by name, each once. A line without entries is empty now. If All
	// is set, they are all lines with entries. [Entry.Remaining] is zero in all of them, because a renewal is no
	// change. The receiver may keep the lines, but must not modify them.
	Lines []Line
	// All is set if Lines are all lines with entries, in the first call and after some states were left out. A
	// name with the prefix that is not in Lines has no entries then.
	All bool
	// At is when the store received the change, or began to read all lines.
	At time.Time
	// Err is set if the store could not be read for seconds: the lines may have changed unnoticed. Then Lines is
	// empty, and the next call without an error has All set.
	Err error
}

// A Line is the line of one name at one moment.
type Line struct {
	// Name is the lock's name.
	Name string `json:"name"`
	// Entries are all entries, in order of admission.
	Entries []Entry `json:"entries"`
	// Limit is the operator's limit of slots, which [Capabilities.SetLimit] has set; zero if there is
	// none. A line without entries may have one.
	Limit int `json:"limit,omitempty"`
	// Remarks say what is wrong with the line and what to do, for example about a foreign key that
	// other clients would wait for.
	Remarks []string `json:"remarks,omitempty"`
}

// An Entry is one entry of a line, as all clients see it. Changes of its owner are visible to Line
// and reported by Watch, but not by Notify, because the standing does not change.
type Entry struct {
	// Order is the entry's position in the store's order; see [Standing.Order]. It is zero while
	// the entry waits on a store that assigns orders at admission, and for entries of foreign
	// clients on stores that assign orders themselves. [Store.Break] cannot remove an entry without
	// an order.
	Order uint64 `json:"order"`
	// Mode is the requested mode, or shared after [Extensions.Downgrade].
	Mode line.Mode `json:"mode"`
	// Admitted is set if the entry is admitted. On stores whose clients decide about admission, it may be
	// unset for a second for an entry that was admitted just before the limit was lowered.
	Admitted bool `json:"admitted"`
	// Session is the ID of the entry's session; see [Session.ID].
	Session string `json:"session"`
	// Foreign is set if a client other than Stile made the entry; then Owner is empty.
	Foreign bool `json:"foreign,omitempty"`
	// Owner describes the holder or waiter.
	Owner Owner `json:"owner"`
	// Remaining is how long the session will live if it is not confirmed again; zero if the store
	// does not know. It may not show a confirmation of the last second yet.
	Remaining time.Duration `json:"remaining_ns,omitempty"`
}
