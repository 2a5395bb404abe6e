package stile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/stilelock/stile/store"
)

// MaxRecordBytes is the maximum length of a record; see [Hold.SetRecord].
const MaxRecordBytes = store.MaxRecordBytes

// SetRecord replaces the record of the lock's name by value; an empty value removes it. A name has one
// record: some bytes that say what was done under the lock, for example that a job has succeeded. It is
// kept in the store after the hold, the session and the client have ended, until it is replaced or removed.
// [Client.Record] reads it. The value is copied.
//
// The record is written in one step with a check that the hold's entry is in its line. So a holder that
// has been replaced, and does not know it yet, cannot overwrite what the next holder records. If all
// writers hold the lock exclusively, and each reads the record after it has got the lock, none of them
// overwrites a record that it has not read.
//
// On success the lock was held when the record was written. The errors are:
//   - a [*LostError] if the hold was lost
//   - one matching [ErrReleased] if it was released, or yielded
//   - one matching [ErrUnsupported] if the store keeps no records, as Redlock does not
//   - an error if the value is longer than [MaxRecordBytes]
//   - one matching [ErrNotKnown] if the entry is gone, and it is not known whether the record was written
//     before: a request got no reply
//   - any other error: either record may be there; SetRecord may be called again
//
// A request that got no reply may still be carried out, but not after the hold's entry has left its line,
// or after a later SetRecord of the hold has succeeded. If SetRecord returns a [*LostError], a record may
// have been written nevertheless, while the lock was still held: by a request of this call, or of an
// earlier call, that got no reply. SetRecord is safe for concurrent use, but which of two concurrent calls
// takes effect last is not determined.
//
// A record is as durable as the store's other data: see docs/stores.md for what a restore, a failover and an
// eviction do. So if a record is lost, what it recorded as done may be done again.
func (h *Hold) SetRecord(ctx context.Context, value []byte) error {
	t, q := h.tenure, h.tenure.queue
	fail := func(err error) error {
		return fmt.Errorf("stile: lock %q (token %d): write the record: %w", q.name, h.token, err)
	}
	switch {
	case q.client.caps.Record == nil:
		return fail(fmt.Errorf("%w by the %s store", ErrUnsupported, q.client.caps.Kind))
	case len(value) > MaxRecordBytes:
		return fail(fmt.Errorf("it has %d bytes, more than the maximum of %d", len(value), MaxRecordBytes))
	}
	t.awaitPendingLoss()
	t.pin() // before the check: a release between them would hand the entry to another hold
	if released, loss := h.ended(); loss != nil {
		return loss
	} else if released {
		return fail(ErrReleased)
	}
	err := t.ticket.Extensions().SetRecord(ctx, slices.Clone(value))
	if reason := t.reasonIn(err); reason != 0 {
		t.lose(reason, err) // the notification may be late
	}
	if err == nil {
		return nil
	}
	released, loss := h.ended()
	switch {
	case errors.Is(err, ErrNotKnown):
		return fail(err)
	case loss != nil:
		return loss
	case released:
		return fail(ErrReleased)
	}
	return fail(err)
}

// ended reports how the hold has ended: false and nil if it has not.
func (h *Hold) ended() (released bool, loss error) {
	h.tenure.queue.mu.Lock()
	defer h.tenure.queue.mu.Unlock()
	if h.loss != nil {
		return false, h.loss
	}
	return h.over.Load(), nil
}

// Record returns the record of a name, which [Hold.SetRecord] has written. It is empty if there is none. It
// shows every write that had succeeded before the call. The bytes may be those of any client that can write
// to the store: do not trust them.
//
// The error matches [ErrBadName] if the name is invalid, and [ErrUnsupported] if the store keeps no records.
func (c *Client) Record(ctx context.Context, name string) ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := store.CheckName(name); err != nil {
		return nil, fmt.Errorf("stile: %w", err)
	}
	err := fmt.Errorf("%w by the %s store", ErrUnsupported, c.caps.Kind)
	var value []byte
	if c.caps.Record != nil {
		value, err = c.caps.Record(ctx, name)
	}
	if err == nil && len(value) > MaxRecordBytes {
		err = fmt.Errorf("it is longer than the maximum of %d bytes, so another client has written it", MaxRecordBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("stile: read the record of lock %q: %w", name, err)
	}
	return value, nil
}
