package store

import (
	"context"
	"time"
)

// Extensions are optional operations on one entry. The functions may be called by any goroutine. A
// nil function means that the store does not support the operation.
type Extensions struct {
	// WithdrawAfter detaches the entry from its session and removes it d after the call. Until then
	// it stays in the line without being confirmed, with the same order, mode and owner; its
	// session, as [Store.Line] shows it, may change. Notify is not called after the call starts, except
	// for a call under way.
	//
	// On success the entry stays in the line for at least d after the call, unless it is broken,
	// and is removed shortly afterwards. A store that keeps no record of waiters, such as Redlock's,
	// removes a waiting entry at once. A store may round d up to a full second or to its minimum
	// TTL. If the entry was already gone, the error matches [ErrGone] or [ErrNotKnown], as with
	// Withdraw. If d is zero or negative, WithdrawAfter is Withdraw. If d is longer than the store
	// can represent, which is years, the store uses the longest time that it can.
	//
	// After any other error the store continues in the background until the entry is removed or the
	// session has ended. The entry may then end with its session, or stay until d after the call.
	//
	// The session treats the entry as withdrawn: it may enqueue another one with the same name,
	// which then waits behind this one. Withdraw removes the entry early, even if the session has
	// ended; if it is already removed, the error matches [ErrGone]. Calling WithdrawAfter again
	// sets a new time; if the earlier call failed, either time may apply.
	WithdrawAfter func(ctx context.Context, d time.Duration) error

	// Mark leaves a marker for the entry. The store keeps markers beside the line, and they do not
	// end with the session. Withdraw and WithdrawAfter remove the entry's marker in the same step
	// as they remove or detach the entry. If the entry ends in another way, because its session
	// ended or because it was broken, the marker stays until [Capabilities.ClearMarks] removes it.
	// So a marker without an entry shows that the entry's owner did not release it.
	//
	// If such markers exist for the name, from entries of any mode, Mark leaves no marker and
	// returns the unreleased entries; fields that only concern current entries may be missing. If
	// it returns neither entries nor an error, the marker was left.
	//
	// The entry must be admitted and not withdrawn. If it is gone, the error matches [ErrGone] or
	// [ErrSessionLost] and no marker was left. After any other error the marker may have been left,
	// but never after the entry is gone. Mark may be called again.
	Mark func(ctx context.Context) (unreleased []Entry, err error)

	// SetOwner replaces the owner that others see. It changes nothing else about the entry, and
	// Notify is not called.
	//
	// The entry may be waiting or admitted. If it is gone, or Withdraw or WithdrawAfter was called,
	// the error matches [ErrGone] or [ErrSessionLost] and nothing changes: a removed entry is never
	// restored. After any other error others may see either owner, and an unanswered request may
	// still take effect, but not after the entry is gone or detached, or after a later call has
	// succeeded. SetOwner may be called again and concurrently; then any of the concurrent calls may
	// take effect last.
	SetOwner func(ctx context.Context, owner Owner) error

	// Downgrade changes the mode of an admitted exclusive entry to [line.Shared], in one step. It
	// changes nothing else: the entry keeps its order, place, session and owner, and its Notify is not
	// called. From then on the rules of package line decide with the new mode: shared entries directly
	// behind are admitted, others keep waiting. [Store.Line] shows the new mode.
	//
	// If the entry is gone, or Withdraw or WithdrawAfter was called, the error matches [ErrGone] or
	// [ErrSessionLost] and nothing changes. After any other error the entry may have either mode, and
	// an unanswered request may still take effect, but not after the entry is gone or detached.
	// Downgrade may be called again and concurrently; for an entry that is shared by then it does
	// nothing and returns nil. A changed entry never becomes exclusive again.
	Downgrade func(ctx context.Context) error

	// NotifyContended makes the store call f once when another entry waits behind this one: at once
	// if one already does, and never if this entry is removed first. It may be called once for an entry.
	// f must not block or call the store.
	//
	// It is not part of [Request], because watching for later entries can cost a store more than
	// everything else. Only entries for which it is called have that cost.
	NotifyContended func(f func())

	// Requeue removes the entry and adds another one at the end of the line, in one step: nobody ever
	// finds the line with neither of the two, and the new entry is behind all entries that were in the
	// line at that moment. The new entry has the same session, name and mode, and an owner and a Notify
	// function of its own; see [Request]. The marker of the old entry is removed in the same step.
	//
	// On success the entry was in the line until now, and the ticket is that of the new entry. notify
	// receives its standings as after [Session.Enqueue]. Its order is larger than those of all earlier
	// entries. It is never refused with a [*KindError], because the line already has
	// the kind of the entry that it replaces.
	//
	// If the entry was already gone, the error matches [ErrGone] and no entry was added. If it is gone
	// and an earlier request of this call was not answered, the error matches [ErrNotKnown], and no
	// entry of the call is in the line. After any other error the outcome is unknown: the store
	// continues in the background, beyond ctx, until both entries are removed or the session has ended.
	// So a failed call leaves nothing, and the new entry is never admitted after it.
	//
	// The entry may be waiting or admitted. Its Notify is not called after the call starts, except for
	// a call under way. After the call, whatever it returns, the entry counts as withdrawn: of its
	// ticket only Withdraw may be called, which returns [ErrGone] after a success. The entry must not
	// have been withdrawn before.
	Requeue func(ctx context.Context, owner Owner, notify func(Standing)) (Ticket, error)

	// ClaimNumber gives the entry of a slot a number that no other entry in the line has. Numbers go from 0
	// to n − 1; n is the entry's number of slots, or the operator's limit if that is smaller
	// ([Capabilities.SetLimit]). It returns the number, and the order of the claim, which is larger than
	// that of every earlier claim of the same number, and at least that of the entry. An entry that has a
	// number keeps it: calling ClaimNumber again returns the same.
	//
	// The entry must be admitted and not withdrawn. If it is gone, the error matches [ErrGone] or
	// [ErrSessionLost] and no number is taken. If the entries in the line have all numbers, the error
	// matches [ErrNoNumber]. After any other error the entry may have a number, or get one as long as
	// it is in the line.
	//
	// The number is free again when the entry is removed, in whatever way: it is part of the entry. An
	// entry that WithdrawAfter has detached keeps it.
	ClaimNumber func(ctx context.Context) (number int, order uint64, err error)

	// SetRecord replaces the record of the entry's name: see [Capabilities.Record]. An empty value removes
	// it. The record is written in one step with a check that the entry is in its line. The caller keeps
	// the value within [MaxRecordBytes], and does not change it during the call.
	//
	// On success the entry was in its line when the record was written, and no request of the call takes
	// effect any more, even if other entries write meanwhile. The entry must be admitted and not withdrawn.
	// If it is gone, or Withdraw or WithdrawAfter was called, the error matches [ErrGone] or
	// [ErrSessionLost] and the record is unchanged. If it is gone, and an earlier request of this call was
	// not answered and has left no trace in the record, the error matches [ErrNotKnown]: the record may
	// have had this value for a time. After any other error the record may have either value, and an
	// unanswered request may still take effect, but not after the entry is gone or detached, or after a
	// later call for this entry has succeeded. SetRecord may be called again and concurrently; then any of
	// the concurrent calls may take effect last.
	SetRecord func(ctx context.Context, value []byte) error

	// Key is where the entry is in the store: the key on etcd, the path of the node on ZooKeeper. A
	// transaction that finds an entry with this key and this order has found this entry, so a guard
	// can check that it is still in the line. Key is empty on stores without such transactions.
	Key string
}
