package etcdstore

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// Line implements [store.Store].
func (s *Store) Line(ctx context.Context, name string) (store.Line, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, attempts.MaxDuration, errNoAnswer)
	defer cancel()
	l, cs, err := s.read(ctx, name)
	if err != nil {
		return store.Line{}, s.wrapErr("read the line", err)
	}
	leases := func(yield func(clientv3.LeaseID) bool) {
		for _, c := range cs {
			if !yield(c.Lease) {
				return
			}
		}
	}
	setRemaining(l, cs, s.remaining(ctx, leases, newLeaseQueries()))
	return l, nil
}

// Lines implements [store.Store]. It reads every key that begins with the store's prefix and the
// given one, with its value, in pages. On a cluster with many other keys, use a prefix.
//
// Names that are more than twice as long as [store.MaxNameBytes], which no client of Stile uses, are
// left out. A key that is not an entry, but that other clients would wait for, has a remark only if its
// last part begins like a lease id; [Store.Line] has all remarks.
//
// A name above others, like "jobs" beside "jobs/backup", comes before them, so all keys that may be entries
// of it are read first. If there are many names below it that begin with a character from "-" to "f",
// their keys are read twice, and the first line comes after the first reading. The memory stays the same.
func (s *Store) Lines(ctx context.Context, prefix string) iter.Seq2[store.Line, error] {
	return func(yield func(store.Line, error) bool) {
		l := &listing{store: s, prefix: prefix, done: prefix, pageKeys: s.pageSizes.first, maxSpans: maxReadsPerTxn, queries: newLeaseQueries()}
		l.finished = strings.HasPrefix(prefix, reservedName+"/")
		for !l.finished {
			page, err := l.next(ctx)
			if err != nil {
				yield(store.Line{}, s.wrapErr("list the lines", endedBy(ctx, err)))
				return
			}
			for line := range page.lines() {
				if !yield(line, nil) {
					return
				}
			}
		}
	}
}

// read reads one line with a linearizable read; see [keys.buildLine].
func (s *Store) read(ctx context.Context, name string) (store.Line, []listedEntry, error) {
	resp, err := s.commit(ctx, nil, s.lineReads(name), nil)
	if err != nil {
		return store.Line{}, nil, err
	}
	l, cs := s.keys.buildLine(name, resp.Responses[0].GetResponseRange().Kvs, resp.Responses[1].GetResponseRange().Kvs)
	return l, cs, nil
}

// lineReads returns the operations that read a line and its limit.
func (s *Store) lineReads(name string) []clientv3.Op {
	return []clientv3.Op{clientv3.OpGet(s.keys.line(name), clientv3.WithPrefix()), clientv3.OpGet(s.keys.limit(name))}
}

// buildLine makes a line of the keys that begin with its name and a slash, and its limit. The
// contenders are in the order of the line's entries.
func (k keys) buildLine(name string, kvs, limit []*mvccpb.KeyValue) (store.Line, []listedEntry) {
	cs, strays := k.contenders(name, kvs)
	slices.SortFunc(cs, listedEntry.compare)
	all := make([]*decodedEntry, 0, len(cs))
	for _, c := range cs {
		all = append(all, &decodedEntry{c.Entry, storeEntry(c), k.overwritten(c)})
	}
	return makeLine(name, all, strays, parseLimit(limit)), cs
}

// decodedEntry is an entry with what its value says.
type decodedEntry struct {
	line.Entry
	entry       store.Entry // whether it is admitted depends on the others
	overwritten bool
}

// decode returns the entry that a key is, and the name of its line.
func (k keys) decode(kv *mvccpb.KeyValue) (d *decodedEntry, name string, ok bool) {
	name, nonce, ok := k.parse(kv)
	if !ok {
		return nil, "", false
	}
	v, ours := decode(kv.Value)
	c := listedAs(kv, nonce, v)
	return &decodedEntry{c.Entry, decodedStoreEntry(c, v, ours), k.overwritten(c)}, name, true
}

func storeEntry(c listedEntry) store.Entry {
	v, ours := decode(c.Value)
	return decodedStoreEntry(c, v, ours)
}

// decodedStoreEntry is storeEntry for a value that was decoded.
func decodedStoreEntry(c listedEntry, v value, ours bool) store.Entry {
	session := leaseText(c.Lease)
	if c.Lease == 0 { // it was overwritten
		session = keyLease(c.ID)
	}
	return store.Entry{
		Order:   c.Order,
		Mode:    c.Mode,
		Session: session,
		Foreign: !ours,
		Owner:   v.Owner,
	}
}

// makeLine makes a line of its entries, which are in order, and of other keys that begin with its name and a
// slash.
func makeLine(name string, all []*decodedEntry, strays []string, limit int) store.Line {
	l := store.Line{Name: name, Entries: make([]store.Entry, 0, len(all)), Limit: limit}
	entries := make([]line.Entry, 0, len(all))
	for _, d := range all {
		entries = append(entries, d.Entry)
	}
	admitted := line.Admitted(entries, limit)
	for i, d := range all {
		e := d.entry
		// The limit may have been lowered after the entry was admitted.
		e.Admitted = admitted[i] || limit > 0 && !e.Owner.Obtained.IsZero()
		if d.overwritten {
			l.Remarks = append(l.Remarks, fmt.Sprintf("key %q is not attached to the lease that it is named after: somebody has "+
				"overwritten it, and it keeps the lock closed until its owner notices or it is broken", d.ID))
		}
		l.Entries = append(l.Entries, e)
	}
	for _, key := range strays {
		l.Remarks = append(l.Remarks, fmt.Sprintf("key %q is not an entry of the lock, and Stile takes no notice of it, but "+
			"concurrency.Mutex and etcdctl lock would wait for it: delete it, or keep it elsewhere", key))
	}
	return l
}

// leaseQueries limits the queries of leases for one reading, to keep it fast.
type leaseQueries struct {
	left int
	time time.Duration
}

func newLeaseQueries() *leaseQueries { return &leaseQueries{left: 256, time: time.Second} }

// setRemaining sets how long the sessions of a line's entries have left.
func setRemaining(l store.Line, cs []listedEntry, remaining map[clientv3.LeaseID]time.Duration) {
	for i := range l.Entries {
		l.Entries[i].Remaining = remaining[cs[i].Lease]
	}
}

// remaining returns how long leases have left, as far as the queries suffice. Unknown values are zero.
func (s *Store) remaining(ctx context.Context, leases iter.Seq[clientv3.LeaseID], queries *leaseQueries) map[clientv3.LeaseID]time.Duration {
	const parallel = 8
	remaining := make(map[clientv3.LeaseID]time.Duration)
	var unknown []clientv3.LeaseID
	now := time.Now()
	for id := range leases {
		if _, seen := remaining[id]; seen || id == 0 {
			continue
		}
		left, known := s.leases.remaining(id, now)
		remaining[id] = left
		if !known && len(unknown) < queries.left {
			unknown = append(unknown, id)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, queries.time)
	defer cancel()
	var (
		mu     sync.Mutex
		askers sync.WaitGroup
		sem    = make(chan struct{}, parallel)
	)
	for _, id := range unknown {
		sem <- struct{}{}
		askers.Go(func() {
			defer func() { <-sem }()
			at := time.Now()
			resp, err := s.cli.TimeToLive(ctx, id)
			if err != nil || resp.TTL <= 0 {
				return
			}
			r := leaseReading{at, time.Duration(resp.TTL) * time.Second, time.Duration(resp.GrantedTTL) * time.Second}
			s.leases.add(id, r)
			mu.Lock()
			remaining[id] = r.left
			mu.Unlock()
		})
	}
	askers.Wait()
	queries.left -= len(unknown)
	queries.time -= time.Since(now)
	return remaining
}

// Break implements [store.Store]. It works on the entries of any client.
func (s *Store) Break(ctx context.Context, name string, order uint64) (store.Entry, error) {
	op := "break the entry"
	ctx, cancel := context.WithTimeoutCause(ctx, attempts.MaxDuration, errNoAnswer)
	defer cancel()
	l, cs, err := s.read(ctx, name)
	if err != nil {
		return store.Entry{}, s.wrapErr(op, err)
	}
	gone := fmt.Errorf("%s: %s: %w: no entry with order %d", s, op, store.ErrGone, order)
	for i, e := range l.Entries {
		if e.Order != order {
			continue
		}
		var claim []clientv3.Op
		if e.Mode.Slots() > 0 {
			if claim, err = s.deleteClaimOps(ctx, name, order); err != nil {
				return store.Entry{}, s.wrapErr(op, err)
			}
		}
		r, err := s.remove(ctx, cs[i].ID, int64(cs[i].Order), claim...)
		switch {
		case err != nil:
			return store.Entry{}, s.wrapErr(op, err)
		case !r.removed && !r.unanswered:
			return store.Entry{}, gone
		}
		return e, nil
	}
	return store.Entry{}, gone
}
