package stile

import (
	"context"
	"errors"

	"github.com/stilelock/stile/store"
)

// A slotNumber is the slot number of a tenure, and the order of its claim.
type slotNumber struct {
	number int
	order  uint64
}

// claimNumber claims a slot number for the admitted entry. The claim is part of the entry: whatever
// its outcome, nothing of it is left when the entry is withdrawn.
func (t *tenure) claimNumber(ctx context.Context) error {
	number, order, err := t.ticket.Extensions().ClaimNumber(ctx)
	switch {
	case err == nil:
		t.number = slotNumber{number, order}
		return nil
	case errors.Is(err, store.ErrSessionLost):
		return t.sessionEnded(err)
	case errors.Is(err, store.ErrGone):
		t.withdraw() // until then the session keeps its record of the entry
		return t.rejoinError(err)
	case ctx.Err() != nil:
		return errGaveUp
	}
	return err
}

// Slot returns the slot number of a hold of [Semaphore.Numbered]: from 0 to the number of slots − 1. No
// other valid hold of the name has this number. It does not change. Another hold gets the number when
// this one has ended. After [Hold.ReleaseAfter] the entry keeps the number until it is removed.
//
// Slot returns -1 for all other holds.
func (h *Hold) Slot() int {
	if !h.tenure.numbered {
		return -1
	}
	return h.tenure.number.number
}

// SlotToken returns the fencing token of the slot number: larger than that of every earlier hold with
// the same number, as long as the store keeps its data. Something that belongs to one slot and
// remembers the largest token it has seen is protected from the slot's earlier holders. [Hold.Token]
// does not protect it: a hold with a larger Token may get the number before one with a smaller Token.
//
// It is positive and below 2^63, and does not change. It is zero if the hold has no number. Commands
// and methods that name a hold by its token need Token instead.
func (h *Hold) SlotToken() uint64 { return tokenOf(h.tenure.number.order) }
