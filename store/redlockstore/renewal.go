package redlockstore

import (
	"context"
	"slices"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
)

// renew renews bids. It returns when it is known of each that a majority of the masters has it,
// or that none can. lost has the indexes of the latter.
func (s *Store) renew(ctx context.Context, bids []*bid, ttl time.Duration) (lost []int, err error) {
	keys, args := []string{s.keys.index()}, []string{millis(ttl), millis(fenceTTL)}
	for _, c := range bids {
		keys = append(keys, s.keys.lock(c.name), s.keys.fence(c.name))
		args = append(args, c.id, c.name)
	}
	r := &renewal{store: s, bids: bids, have: make([]int, len(bids)), lack: make([]int, len(bids)), replies: s.newTally()}
	answers := s.askAll(ctx, renewScript, keys, args)
	defer r.complete(answers)
	for !r.decided() {
		if r.replies.all() {
			return nil, r.replies.err()
		}
		select {
		case a := <-answers:
			r.count(a)
		case <-ctx.Done():
			return nil, attempts.WithContextErr(ctx, r.replies.err())
		}
	}
	for i := range bids {
		if r.lack[i] > len(s.masters)-s.quorum {
			lost = append(lost, i)
		}
	}
	return lost, nil
}

// renewal counts the answers to the renewal of bids.
type renewal struct {
	store      *Store
	bids       []*bid
	have, lack []int // number of masters, for each bid
	replies    *tally
	absent     [][2]int // pairs of bid and master where the lock is free
}

// decided reports whether the outcome of each bid is known.
func (r *renewal) decided() bool {
	n := len(r.store.masters)
	for i := range r.bids {
		if r.have[i] < r.store.quorum && r.lack[i] <= n-r.store.quorum {
			return false
		}
	}
	return r.replies.answered() >= r.store.quorum
}

func (r *renewal) count(a answer) {
	codes, err := parseRenewal(a, len(r.bids))
	r.replies.record(a.master, err)
	if err != nil {
		return
	}
	for i, c := range r.bids {
		if codes[i] == 1 {
			r.have[i]++
		} else {
			r.lack[i]++
		}
		if c.recordRenewal(a.master, codes[i]) {
			r.absent = append(r.absent, [2]int{i, a.master.number})
		}
	}
}

func parseRenewal(a answer, n int) ([]int64, error) {
	if a.err != nil {
		return nil, a.err
	}
	codes, err := a.reply.AsIntSlice()
	if err == nil && len(codes) != n {
		err = errUnexpectedReply
	}
	return codes, err
}

// complete restores the bids that a majority has at the masters that lack them, including those
// that answer later. It runs in the background, and no master waits for another.
func (r *renewal) complete(answers <-chan answer) {
	r.store.work.Start(func() {
		for r.restore(); !r.replies.all(); r.restore() {
			r.count(<-answers)
		}
	})
}

// restore restores the bids that a majority has where they are known to be missing.
func (r *renewal) restore() {
	r.absent = slices.DeleteFunc(r.absent, func(at [2]int) bool {
		c, m := r.bids[at[0]], r.store.masters[at[1]]
		return r.have[at[0]] >= r.store.quorum && r.store.work.Start(func() { c.restore(m) })
	})
}
