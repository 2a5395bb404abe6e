package redlockstore

import (
	"context"
	"slices"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
)

// renew renews claims. It returns when each is known to be at a majority of the masters, or to be lost because it cannot be;
// lost has the indexes of those.
func (s *Store) renew(ctx context.Context, claims []*claim, ttl time.Duration) (lost []int, err error) {
	keys, args := []string{s.keys.index()}, []string{millis(ttl), millis(fenceTTL)}
	for _, c := range claims {
		keys = append(keys, s.keys.lock(c.name), s.keys.fence(c.name))
		args = append(args, c.id, c.name)
	}
	r := &renewal{store: s, claims: claims, have: make([]int, len(claims)), lack: make([]int, len(claims)), heard: s.newTally()}
	answers := s.poll(ctx, renewScript, keys, args)
	defer r.complete(answers)
	for !r.decided() {
		if r.heard.all() {
			return nil, r.heard.err()
		}
		select {
		case a := <-answers:
			r.count(a)
		case <-ctx.Done():
			return nil, attempts.EndedBy(ctx, r.heard.err())
		}
	}
	for i := range claims {
		if r.lack[i] > len(s.masters)-s.quorum {
			lost = append(lost, i)
		}
	}
	return lost, nil
}

// A renewal counts the answers to the renewal of some claims.
type renewal struct {
	store      *Store
	claims     []*claim
	have, lack []int // masters, for each claim
	heard      *tally
	absent     [][2]int // claims and masters that have nothing in their place
}

// decided reports whether it is known how each claim stands.
func (r *renewal) decided() bool {
	n := len(r.store.masters)
	for i := range r.claims {
		if r.have[i] < r.store.quorum && r.lack[i] <= n-r.store.quorum {
			return false
		}
	}
	return r.heard.answered() >= r.store.quorum
}

func (r *renewal) count(a answer) {
	said, err := readRenewed(a, len(r.claims))
	r.heard.note(a.master, err)
	if err != nil {
		return
	}
	for i, c := range r.claims {
		if said[i] == 1 {
			r.have[i]++
		} else {
			r.lack[i]++
		}
		if c.said(a.master, said[i]) {
			r.absent = append(r.absent, [2]int{i, a.master.number})
		}
	}
}

func readRenewed(a answer, n int) ([]int64, error) {
	if a.err != nil {
		return nil, a.err
	}
	said, err := a.reply.AsIntSlice()
	if err == nil && len(said) != n {
		err = errStrange
	}
	return said, err
}

// complete puts the claims that a majority has in where they are missing, also at the masters that answer later. It
// does not wait for that, and of those masters none waits for another.
func (r *renewal) complete(answers <-chan answer) {
	r.store.work.Start(func() {
		for r.restore(); !r.heard.all(); r.restore() {
			r.count(<-answers)
		}
	})
}

// restore puts the claims that a majority has in where they are known to be missing.
func (r *renewal) restore() {
	r.absent = slices.DeleteFunc(r.absent, func(missing [2]int) bool {
		c, m := r.claims[missing[0]], r.store.masters[missing[1]]
		return r.have[missing[0]] >= r.store.quorum && r.store.work.Start(func() { c.restore(m) })
	})
}
