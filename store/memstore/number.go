package memstore

import (
	"context"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A claim is the slot number of an entry.
type claim struct {
	number int
	order  uint64
}

// claimNumber is [store.Extensions.ClaimNumber].
func (e *entry) claimNumber(ctx context.Context) (number int, order uint64, err error) {
	s := e.session.store
	err = e.session.request(ctx, Call{Op: ClaimNumber, Session: e.session.id, Name: e.req.Name}, func() error {
		if e.gone || e.delivery.Over() {
			return e.goneErr()
		}
		if e.claim == nil {
			free, ok := line.FreeNumber(s.numbersLocked(e.req.Name), e.req.Mode.Within(s.limits[e.req.Name]).Slots())
			if !ok {
				return store.ErrNoNumber
			}
			s.order++
			e.claim = &claim{free, s.order}
		}
		number, order = e.claim.number, e.claim.order
		return nil
	}, nil)
	return number, order, err
}

// numbersLocked returns the slot numbers that entries in the line have.
func (s *Store) numbersLocked(name string) []int {
	var taken []int
	for _, e := range s.lines[name] {
		if e.claim != nil {
			taken = append(taken, e.claim.number)
		}
	}
	return taken
}
