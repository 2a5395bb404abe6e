package etcdstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/watchpump"
)

// followLines is [store.Capabilities.Follow]. It reads all keys of entries and limits at one revision, and keeps
// what they say in memory. From then on the events of a watch say everything.
//
// The keys of limits have a watch of their own, unless they are among those that begin with prefix. Then a changed
// limit may be seen a moment before or after the entries that changed with it.
func (s *Store) followLines(ctx context.Context, prefix string, changed func(store.Changes)) error {
	f := &follower{store: s, prefix: prefix, lines: make(map[string]*followedLine)}
	return watchpump.Follow(ctx, f, changed, func(ctx context.Context, feed *watchpump.Feed) error {
		f.feed = feed
		run := func(keys string, stream int) func(ctx context.Context) error {
			part := &followedKeys{follower: f, keys: keys}
			f.parts = append(f.parts, part)
			return (&prefixWatch{store: s, prefix: prefix, keys: keys, stream: stream, to: part}).run
		}
		lines := run(s.keys.prefix+prefix, 0)
		if s.keys.limitsAmong(prefix) {
			return lines(ctx)
		}
		return runBoth(ctx, lines, run(s.keys.limits(prefix), 1))
	})
}

// follower is one call of followLines in progress. It implements [watchpump.Lines].
type follower struct {
	store  *Store
	prefix string
	feed   *watchpump.Feed
	parts  []*followedKeys

	sync.Mutex
	lines  map[string]*followedLine // by name; only lines with an entry, a stray or a limit
	strays int                      // in all lines
	more   bool                     // there were strays that are not kept
}

// followedLine is what is known of one line.
type followedLine struct {
	entries []*followedEntry // in order
	strays  []followedStray  // keys beside the entries, sorted
	limit   int
	limitAt int64 // the revision of the limit's key; zero if there is none
}

type followedEntry struct {
	decodedEntry
	at int64 // the revision of the key
}

// followedStray is a key that begins like those of the entries of a line, but is not an entry.
type followedStray struct {
	key string
	at  int64 // the revision of the key
}

func (s followedStray) compare(key string) int { return cmp.Compare(s.key, key) }

// maxStrays is the number of strays that are kept. Without a prefix of the store they may be all keys of the
// cluster. Others are not mentioned in the remarks of their lines.
const maxStrays = 10_000

// LenLocked implements [watchpump.Lines].
func (f *follower) LenLocked(name string) int {
	if l := f.lines[name]; l != nil {
		return len(l.entries)
	}
	return 0
}

// LineLocked implements [watchpump.Lines].
func (f *follower) LineLocked(name string) store.Line {
	l := f.lines[name]
	if l == nil {
		l = &followedLine{}
	}
	entries := make([]*decodedEntry, 0, len(l.entries))
	for _, e := range l.entries {
		entries = append(entries, &e.decodedEntry)
	}
	var strays []string
	for _, s := range l.strays {
		strays = append(strays, s.key)
	}
	return makeLine(name, entries, strays, l.limit)
}

// AllLocked implements [watchpump.Lines].
func (f *follower) AllLocked() []store.Line {
	var all []store.Line
	for _, name := range slices.Sorted(maps.Keys(f.lines)) {
		if f.LenLocked(name) > 0 {
			all = append(all, f.LineLocked(name))
		}
	}
	return all
}

// putLocked records that a key was put. It returns the name of the line, and whether that has changed.
func (f *follower) putLocked(kv *mvccpb.KeyValue) (name string, changed bool) {
	key := string(kv.Key)
	if name, ok := f.limitOf(key); ok {
		l := f.lineLocked(name)
		l.limit, l.limitAt = parseLimit([]*mvccpb.KeyValue{kv}), kv.ModRevision
		return name, true
	}
	name, ok := f.lineOf(key)
	if !ok {
		return "", false
	}
	l := f.lineLocked(name)
	i, entry := l.find(uint64(kv.CreateRevision), key)
	stray := f.removeStrayLocked(l, key)
	d, _, ok := f.store.keys.decode(kv)
	if ok && !entry {
		l.entries = slices.Insert(l.entries, i, nil)
	}
	if ok {
		l.entries[i] = &followedEntry{*d, kv.ModRevision}
		return name, true
	}
	if entry {
		l.entries = slices.Delete(l.entries, i, i+1)
	}
	if f.strays < maxStrays {
		i, _ := slices.BinarySearchFunc(l.strays, key, followedStray.compare)
		l.strays = slices.Insert(l.strays, i, followedStray{key, kv.ModRevision})
		f.strays++
		stray = true
	} else {
		f.more = true
	}
	f.dropLocked(name)
	return name, entry || stray && len(l.entries) > 0
}

// find returns the index of the entry with an order and a key, or where it belongs.
func (l *followedLine) find(order uint64, key string) (i int, found bool) {
	return slices.BinarySearchFunc(l.entries, line.Entry{ID: key, Order: order}, func(e *followedEntry, with line.Entry) int {
		return cmp.Or(cmp.Compare(e.Order, with.Order), cmp.Compare(e.ID, with.ID))
	})
}

// deleteLocked is putLocked for a key that was deleted.
func (f *follower) deleteLocked(key string) (name string, changed bool) {
	name, limit := f.limitOf(key)
	if !limit {
		name, _ = f.lineOf(key)
	}
	l := f.lines[name]
	if l == nil {
		return "", false
	}
	entry := slices.IndexFunc(l.entries, func(e *followedEntry) bool { return e.ID == key }) // the first ones leave most often
	stray := false
	switch {
	case limit:
		l.limit, l.limitAt = 0, 0
	case entry >= 0:
		l.entries = slices.Delete(l.entries, entry, entry+1)
	default:
		stray = f.removeStrayLocked(l, key)
	}
	f.dropLocked(name)
	return name, limit || entry >= 0 || stray && len(l.entries) > 0
}

// removeStrayLocked removes a stray from a line, and returns whether it was there.
func (f *follower) removeStrayLocked(l *followedLine, key string) bool {
	i, found := slices.BinarySearchFunc(l.strays, key, followedStray.compare)
	if found {
		l.strays = slices.Delete(l.strays, i, i+1)
		f.strays--
	}
	return found
}

func (f *follower) lineLocked(name string) *followedLine {
	l := f.lines[name]
	if l == nil {
		l = &followedLine{}
		f.lines[name] = l
	}
	return l
}

// dropLocked forgets a line of which nothing is known.
func (f *follower) dropLocked(name string) {
	if l := f.lines[name]; len(l.entries)+len(l.strays) == 0 && l.limitAt == 0 {
		delete(f.lines, name)
	}
}

// limitOf returns the name of the followed line whose limit a key has.
func (f *follower) limitOf(key string) (name string, ok bool) {
	name, ok = f.store.keys.limitName([]byte(key))
	return name, ok && strings.HasPrefix(name, f.prefix)
}

// lineOf returns the name of the followed line that a key is an entry or a stray of.
func (f *follower) lineOf(key string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(key, f.store.keys.prefix)
	slash := strings.LastIndexByte(rest, '/')
	if !ok || slash < 1 || strings.HasPrefix(rest, reservedName+"/") || !strings.HasPrefix(rest[:slash], f.prefix) {
		return "", false
	}
	return rest[:slash], true
}

// followedKeys is the part of the lines that one watch is about: entries, limits, or both. It is the sink of
// that watch.
type followedKeys struct {
	*follower
	keys string // the prefix of the keys

	known        bool          // they were read, and not unknown since
	unknownSince time.Time     // since when no watch has started; zero if one is open
	failed       bool          // the feed was told
	verifyAt     time.Time     // when they are compared with etcd's again
	took         time.Duration // how long the last reading took
}

// begin implements [watchSink]. It reads all keys.
func (p *followedKeys) begin(ctx context.Context) (from int64, err error) {
	began := time.Now()
	var kvs []*mvccpb.KeyValue
	listed, revision, err := p.list(ctx, 0)
	if err == nil {
		kvs, err = p.read(ctx, listed, revision)
	}
	p.Lock()
	defer p.Unlock()
	if err != nil {
		if p.unknownSince.IsZero() {
			p.unknownSince = began
		}
		return 0, err
	}
	p.forgetLocked()
	for _, kv := range kvs {
		p.putLocked(kv)
	}
	p.known, p.failed = true, false
	p.took = time.Since(began)
	p.scheduleLocked()
	if p.allKnownLocked() {
		p.feed.All(began)
	}
	return revision + 1, nil
}

// allKnownLocked reports whether all parts are known. Until then nothing is passed on: a line without one of its
// parts is no state that it was ever in.
func (f *follower) allKnownLocked() bool {
	return !slices.ContainsFunc(f.parts, func(p *followedKeys) bool { return !p.known })
}

// forgetLocked forgets what the keys have said.
func (p *followedKeys) forgetLocked() {
	limits, lines := strings.HasPrefix(p.store.keys.limits(p.prefix), p.keys), strings.HasPrefix(p.store.keys.prefix+p.prefix, p.keys)
	for name, l := range p.lines {
		if limits {
			l.limit, l.limitAt = 0, 0
		}
		if lines {
			p.strays -= len(l.strays)
			l.entries, l.strays, p.more = nil, nil, false
		}
		p.dropLocked(name)
	}
}

// listedTogether is how many keys are listed in one request.
const listedTogether = 10_000

// list returns all keys and their revisions, but neither values nor leases, at a revision, and that revision. Zero
// is the present. etcd has this in memory.
func (p *followedKeys) list(ctx context.Context, revision int64) (kvs []*mvccpb.KeyValue, at int64, err error) {
	from := p.keys
	end := clientv3.GetPrefixRangeEnd(from)
	if from == "" {
		from, end = "\x00", "\x00" // the whole key space
	}
	for {
		var resp *clientv3.GetResponse
		err := p.store.attemptWithTimeout(ctx, func(ctx context.Context) (err error) {
			resp, err = p.store.cli.Get(ctx, from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(listedTogether),
				clientv3.WithRev(revision))
			return err
		})
		if err != nil {
			return nil, 0, err
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			_, limit := p.limitOf(string(kv.Key))
			if _, ok := p.lineOf(string(kv.Key)); ok || limit {
				kvs = append(kvs, kv)
			}
		}
		if !resp.More || len(resp.Kvs) == 0 {
			return kvs, revision, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// read returns the keys with their values and leases at a revision, if they are limits or may be entries. Other
// values may be large, and are not needed.
func (p *followedKeys) read(ctx context.Context, listed []*mvccpb.KeyValue, revision int64) ([]*mvccpb.KeyValue, error) {
	var keys []string
	kvs := make([]*mvccpb.KeyValue, 0, len(listed))
	for _, kv := range listed {
		_, limit := p.limitOf(string(kv.Key))
		if _, entry := p.store.keys.name(kv.Key); entry || limit {
			keys = append(keys, string(kv.Key))
		} else {
			kvs = append(kvs, kv)
		}
	}
	for chunk := range slices.Chunk(keys, maxReadsPerTxn) {
		gets := make([]clientv3.Op, 0, len(chunk))
		for _, key := range chunk {
			gets = append(gets, clientv3.OpGet(key, clientv3.WithRev(revision)))
		}
		var resp *clientv3.TxnResponse
		err := p.store.attemptWithTimeout(ctx, func(ctx context.Context) (err error) {
			resp, err = p.store.cli.Txn(ctx).Then(gets...).Commit()
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, r := range resp.Responses {
			kvs = append(kvs, r.GetResponseRange().Kvs...)
		}
	}
	return kvs, nil
}

// opened implements [watchSink].
func (p *followedKeys) opened(bool) {
	p.Lock()
	defer p.Unlock()
	p.unknownSince = time.Time{}
}

// events implements [watchSink]. The events of one revision are one step.
func (p *followedKeys) events(evs []*clientv3.Event) {
	now := time.Now()
	p.Lock()
	defer p.Unlock()
	var names []string
	for i, ev := range evs {
		var name string
		var changed bool
		if ev.Type == clientv3.EventTypeDelete {
			name, changed = p.deleteLocked(string(ev.Kv.Key))
		} else {
			name, changed = p.putLocked(ev.Kv)
		}
		if changed {
			names = append(names, name)
		}
		if i+1 == len(evs) || evs[i+1].Kv.ModRevision != ev.Kv.ModRevision {
			if p.allKnownLocked() {
				slices.Sort(names)
				p.feed.Step(slices.Compact(names), now)
			}
			names = nil
		}
	}
}

// unknown implements [watchSink]. A server that is restarted is back soon, and then nothing was missed.
func (p *followedKeys) unknown(err error) (anew bool) {
	p.Lock()
	defer p.Unlock()
	now := time.Now()
	if p.unknownSince.IsZero() {
		p.unknownSince = now
	}
	if p.failed || now.Sub(p.unknownSince) < p.store.times.watchTimeout {
		return p.failed
	}
	p.failed, p.known = true, false
	p.feed.Fail(p.store.wrapErr("follow the lines", err))
	return true
}

// defaultVerifyShare says how often the keys are compared with etcd's at most: reading them takes one part in so
// many of the time.
const defaultVerifyShare = 1000

// scheduleLocked decides when the keys are compared again.
func (p *followedKeys) scheduleLocked() {
	p.verifyAt = time.Now().Add(max(p.store.times.verifyInterval, (p.store.verifyShare-1)*p.took))
}

// verifyIn implements [watchSink].
func (p *followedKeys) verifyIn() time.Duration {
	p.Lock()
	defer p.Unlock()
	return max(0, time.Until(p.verifyAt))
}

// verify implements [watchSink]. It returns errOutOfStep if etcd has other keys at the revision. Data that were
// restored from a backup may have reached the revision again before the watch noticed.
func (p *followedKeys) verify(ctx context.Context, revision int64) error {
	began := time.Now()
	kvs, _, err := p.list(ctx, revision)
	if err != nil {
		return err
	}
	p.Lock()
	defer p.Unlock()
	defer func() {
		p.took = time.Since(began)
		p.scheduleLocked()
	}()
	missing, once := p.revisionsLocked()
	if !once {
		return errOutOfStep
	}
	for _, kv := range kvs {
		at, ok := missing[string(kv.Key)]
		if ok && at != kv.ModRevision || !ok && !p.more {
			return errOutOfStep
		}
		delete(missing, string(kv.Key))
	}
	if len(missing) > 0 {
		return errOutOfStep
	}
	return nil
}

// revisionsLocked returns the revision of each key that is known, and whether each is known once. A key whose
// deletion was lost is known twice when it is created again.
func (p *followedKeys) revisionsLocked() (all map[string]int64, once bool) {
	all, once = make(map[string]int64), true
	add := func(key string, at int64) {
		if at > 0 && strings.HasPrefix(key, p.keys) {
			_, twice := all[key]
			all[key], once = at, once && !twice
		}
	}
	for name, l := range p.lines {
		add(p.store.keys.limit(name), l.limitAt)
		for _, e := range l.entries {
			add(e.ID, e.at)
		}
		for _, s := range l.strays {
			add(s.key, s.at)
		}
	}
	return all, once
}
