package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// setSizes are the numbers of names that are locked at once.
var setSizes = []int{2, 10, 50}

// A connector connects client number i of a contender.
type connector = func(ctx context.Context, i int) (client, error)

// measureSets compares LockAll with locks that are taken one after another, Stile's own and those of
// a peer, and with one lock, for sets of each size. base has the servers. maxRatio is the expectation
// for Lock of ten names, compared with one lock.
func measureSets(
	ctx context.Context, c config, base setting, sizes []int, r *report, connectStile connector, peer string, connectPeer connector, maxRatio float64,
) error {
	const one = "one lock"
	for _, n := range sizes {
		s := base
		s.name, s.subject = fmt.Sprintf("%s, %d names", base.name, n), "LockAll"
		inTurn := "one after another"
		s.contenders = []contender{
			{name: one, connect: connectStile},
			{name: peer + ", " + inTurn, connect: inSequence(connectPeer, n)},
			{name: stileName + ", " + inTurn, connect: inSequence(connectStile, n)},
			{name: s.subject, connect: lockAll(connectStile, n)},
		}
		b, err := measureSetting(ctx, c, s)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		r.Settings = append(r.Settings, b.report())
		for _, other := range s.contenders[1:3] {
			r.Expected = append(r.Expected, expectation{fmt.Sprintf("%s: pair, LockAll / %s", s.name, other.name), b.pairRatio(other.name), 1, true})
		}
		if n == 10 {
			r.Expected = append(r.Expected, expectation{s.name + ": Lock, LockAll / one lock", b.lockRatio(one), maxRatio, true})
		}
	}
	return nil
}

// members returns the names of a set of n locks.
func members(name string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%02d", name, i))
	}
	return names
}

// sequence acquires n locks, one after another, and releases them in reverse order.
type sequence struct {
	client
	n int
}

func inSequence(connect connector, n int) connector {
	return func(ctx context.Context, i int) (client, error) {
		c, err := connect(ctx, i)
		return sequence{c, n}, err
	}
}

func (s sequence) Lock(ctx context.Context, name string) (func(context.Context) error, error) {
	var unlocks []func(context.Context) error
	unlock := func(ctx context.Context) error {
		var errs []error
		for _, unlock := range slices.Backward(unlocks) {
			errs = append(errs, unlock(ctx))
		}
		return errors.Join(errs...)
	}
	for _, member := range members(name, s.n) {
		u, err := s.client.Lock(ctx, member)
		if err != nil {
			return nil, errors.Join(err, unlock(context.WithoutCancel(ctx)))
		}
		unlocks = append(unlocks, u)
	}
	return unlock, nil
}

// stileSet acquires n locks at once.
type stileSet struct {
	stileClient
	n int
}

func lockAll(connect connector, n int) connector {
	return func(ctx context.Context, i int) (client, error) {
		c, err := connect(ctx, i)
		if err != nil {
			return nil, err
		}
		return stileSet{c.(stileClient), n}, nil
	}
}

func (s stileSet) Lock(ctx context.Context, name string) (func(context.Context) error, error) {
	hold, err := s.client.LockAll(ctx, members(name, s.n)...)
	if err != nil {
		return nil, err
	}
	return hold.Release, nil
}
