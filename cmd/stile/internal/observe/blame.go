package observe

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/stilelock/stile"
)

// Blame says for how long others waited while an owner held a lock.
type Blame struct {
	Name string
	// Holder is the owner of the latest hold, without what belongs to that hold alone. Holds of a name
	// count together if host, user, command and reason are the same.
	Holder stile.Owner
	// Waited is the sum over all waiters. Several holders share it equally.
	Waited time.Duration
	// Waiters is how many waiters waited, and Holds how many holds they waited for.
	Waiters, Holds int
}

// Blame charges the waiting of the last hour to the holders at that time, the largest sum first. Waiting for a
// free lock is charged to no holder. Waiting is known from since on: a whole minute, unless the holders of one minute
// were too many.
func (o *Observer) Blame() (since time.Time, blame []Blame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for name := range o.blame.lines {
		o.blame.charge(o.lines[name].line, now) // it has entries
	}
	for _, c := range o.blame.sums(now) {
		blame = append(blame, *c)
	}
	slices.SortFunc(blame, func(a, b Blame) int {
		return cmp.Or(cmp.Compare(b.Waited, a.Waited), strings.Compare(a.Name, b.Name), strings.Compare(a.Holder.String(), b.Holder.String()))
	})
	return latest(windowBegin(now), o.began, o.blame.begin), blame
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// blameInterval is the time whose waiting is summed up. The sums of an hour are kept, so what a lock costs does not
// depend on how often it changes hands.
const blameInterval = time.Minute

// windowBegin returns when the hour begins that counts.
func windowBegin(now time.Time) time.Time {
	return now.Add(blameInterval - 1 - maxAge).Truncate(blameInterval)
}

// maxCharges and maxChargedBytes limit the memory. What is beyond them is forgotten, the earliest first.
const (
	maxCharges      = 65536
	maxChargedBytes = 64 << 20 // as sizeOfCharge counts them
)

// charges are what is charged to holders.
type charges struct {
	intervals []*chargedInterval   // in order
	n, bytes  int                  // in all intervals
	begin     time.Time            // what was charged before has been forgotten
	lines     map[string]*chargees // lines with waiters, or with holders that were charged, by name
}

// chargedInterval has the sums of an interval.
type chargedInterval struct {
	begin time.Time
	sums  map[chargeKey]*Blame
	bytes int
}

// chargeKey is what holds that count together have in common.
type chargeKey struct{ name, host, user, command, reason string }

func keyOfCharge(name string, o *stile.Owner) chargeKey {
	return chargeKey{name, o.Host, o.User, o.Command, o.Reason}
}

// hashSeed is random, so that nobody can choose holders of equal hashes.
var hashSeed = maphash.MakeSeed()

// chargees are the entries of a line.
type chargees struct {
	at time.Time // until when the waiting is charged
	// The sum that each entry is counted in, so that it is counted once: that of the last interval. It may be forgotten.
	holds map[identity]*Blame
	waits map[identity][]counted
}

// maxCounted is for how many of the last holders it is known that a waiter has been counted. After so many others it
// counts for a holder again.
const maxCounted = 16

// counted says where a waiter counts for a holder.
type counted struct {
	by uint64 // hash of the key: it must not keep the texts of a holder whose sum is forgotten
	in *Blame
}

func newCharges() charges { return charges{lines: make(map[string]*chargees)} }

// change charges what was waited for until a line has changed. steps explain the change; they may be nil.
func (c *charges) change(was, is stile.Line, steps []Event, now time.Time) {
	c.charge(was, now)
	of := c.lines[is.Name]
	if of == nil {
		if len(is.Waiters) > 0 {
			c.lines[is.Name] = &chargees{at: now, holds: make(map[identity]*Blame), waits: make(map[identity][]counted)}
		}
		return
	}
	for i := range steps {
		p := place{entry: &steps[i].Entry}
		if steps[i].What == Ended {
			delete(of.holds, p.identity())
		} else if steps[i].What != Waits {
			delete(of.waits, p.identity())
			delete(of.waits, p.identityWithoutToken()) // a store may assign tokens late
		}
	}
	if len(is.Waiters) == 0 && len(of.holds) == 0 || Empty(is) {
		delete(c.lines, is.Name)
	}
}

// charge charges what was waited for in a line until now, which may be before what was charged already.
func (c *charges) charge(l stile.Line, now time.Time) {
	of := c.lines[l.Name]
	if of == nil || now.Before(of.at) {
		return
	}
	from := latest(of.at, windowBegin(now), c.begin)
	of.at = now
	if len(l.Holders) == 0 || len(l.Waiters) == 0 {
		return
	}
	for from.Before(now) { // usually once
		in := c.interval(from, now)
		to := in.begin.Add(blameInterval)
		if to.After(now) {
			to = now
		}
		for i := range l.Holders {
			sum := c.count(in, of, l, place{&l.Holders[i], true}, now)
			from = latest(from, c.begin) // count may have forgotten what was before
			if from.Before(to) {
				sum.Waited += to.Sub(from) * time.Duration(len(l.Waiters)) / time.Duration(len(l.Holders))
			}
		}
		from = to
	}
}

// count counts the holder and each waiter of its line once in the holder's sum of an interval, and returns that sum.
// To make room it may forget other sums, and then changes c.begin.
func (c *charges) count(in *chargedInterval, of *chargees, l stile.Line, holder place, now time.Time) *Blame {
	key, owner := keyOfCharge(l.Name, &holder.entry.Owner), ownerOnly(holder.entry.Owner)
	sum := c.sum(in, key, &owner, now)
	if id := holder.identity(); of.holds[id] != sum {
		if before := of.holds[id]; before != nil {
			before.Holds--
		}
		of.holds[id] = sum
		sum.Holds++
	}
	by := maphash.Comparable(hashSeed, key)
	for i := range l.Waiters {
		id := place{entry: &l.Waiters[i]}.identity()
		counts := of.waits[id]
		j := slices.IndexFunc(counts, func(w counted) bool { return w.by == by })
		switch {
		case j < 0:
			if len(counts) == maxCounted {
				counts = counts[1:]
			}
			of.waits[id] = append(counts, counted{by, sum})
		case counts[j].in != sum:
			counts[j].in.Waiters--
			counts[j].in = sum
		default:
			continue
		}
		sum.Waiters++
	}
	return sum
}

// sum returns the sum of an interval for holders with this key, of whom owner is the latest.
func (c *charges) sum(in *chargedInterval, key chargeKey, owner *stile.Owner, now time.Time) *Blame {
	sum := in.sums[key]
	if sum == nil {
		c.makeRoom(in, 1, sizeOfCharge(key)+sizeOfOwner(owner), now)
		sum = &Blame{Name: key.name}
		in.sums[key] = sum
		c.add(in, 1, sizeOfCharge(key))
	} else if more := sizeOfOwner(owner) - sizeOfOwner(&sum.Holder); c.tooMany(0, more) {
		c.makeRoom(in, 0, more, now)
		return c.sum(in, key, owner, now)
	}
	c.add(in, 0, sizeOfOwner(owner)-sizeOfOwner(&sum.Holder))
	sum.Holder = *owner
	return sum
}

// add counts sums of an interval, and their bytes.
func (c *charges) add(in *chargedInterval, n, bytes int) {
	c.n += n
	c.bytes += bytes
	in.bytes += bytes
}

// tooMany reports whether so many more sums, with so many bytes, are too many.
func (c *charges) tooMany(n, bytes int) bool {
	return c.n+n > maxCharges || c.bytes+bytes > maxChargedBytes
}

// makeRoom forgets what is too much beside n more sums of an interval: the earlier intervals, then its own sums.
func (c *charges) makeRoom(in *chargedInterval, n, bytes int, now time.Time) {
	for c.tooMany(n, bytes) && c.intervals[0] != in {
		c.forgetFirst()
	}
	if c.tooMany(n, bytes) {
		c.empty(in)
		c.begin = latest(c.begin, now)
	}
}

// empty forgets the sums of an interval. Entries that count in them do not keep their texts.
func (c *charges) empty(in *chargedInterval) {
	for _, sum := range in.sums {
		sum.Name, sum.Holder = "", stile.Owner{}
	}
	c.add(in, -len(in.sums), -in.bytes)
	clear(in.sums)
}

// interval returns the interval of a time that is not before the last one, and forgets old ones.
func (c *charges) interval(t, now time.Time) *chargedInterval {
	begin := t.Truncate(blameInterval)
	if n := len(c.intervals); n > 0 && !c.intervals[n-1].begin.Before(begin) {
		// A line is charged when it changes, so the interval may not be the last one.
		for i := n - 1; i >= 0; i-- {
			if c.intervals[i].begin.Equal(begin) {
				return c.intervals[i]
			}
		}
	}
	c.forget(now)
	in := &chargedInterval{begin: begin, sums: make(map[chargeKey]*Blame)}
	i, _ := slices.BinarySearchFunc(c.intervals, begin, func(in *chargedInterval, t time.Time) int { return in.begin.Compare(t) })
	c.intervals = slices.Insert(c.intervals, i, in)
	return in
}

// forget forgets what is too old, and what is too much.
func (c *charges) forget(now time.Time) {
	begin := windowBegin(now)
	for len(c.intervals) > 0 && c.intervals[0].begin.Before(begin) || len(c.intervals) > 1 && c.tooMany(0, 0) {
		c.forgetFirst()
	}
}

// forgetFirst forgets the first interval.
func (c *charges) forgetFirst() {
	first := c.intervals[0]
	c.begin = latest(c.begin, first.begin.Add(blameInterval))
	c.empty(first)
	c.intervals = slices.Delete(c.intervals, 0, 1)
}

// sums returns the sums of all intervals that count.
func (c *charges) sums(now time.Time) map[chargeKey]*Blame {
	c.forget(now)
	sums := make(map[chargeKey]*Blame)
	for _, in := range c.intervals {
		for key, part := range in.sums {
			sum := sums[key]
			if sum == nil {
				sum = &Blame{Name: part.Name}
				sums[key] = sum
			}
			sum.Holder = part.Holder
			sum.Waited += part.Waited
			sum.Waiters += part.Waiters
			sum.Holds += part.Holds
		}
	}
	return sums
}

// ownerOnly returns an owner without what belongs to one of its holds.
func ownerOnly(o stile.Owner) stile.Owner {
	o.Since, o.Obtained, o.Waits, o.Under = time.Time{}, time.Time{}, nil, nil
	return o
}
