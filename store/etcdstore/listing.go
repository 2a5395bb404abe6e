package etcdstore

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stilelock/stile/store"
)

// pageSizes bound the pages in which [Store.Lines] reads: [defaultPageSizes], unless a test sets others.
type pageSizes struct {
	first, most int64 // keys
	bytes       int   // of keys and values, about
}

// The first page is small, so that the first lines come soon. For each page the server counts all keys to the
// end of the range. So small pages cost the server time, and large ones cost this process memory.
var defaultPageSizes = pageSizes{first: 64, most: 2000, bytes: 512 << 10}

// maxListedName bounds the names that are listed, in bytes: each slash of a hostile key may end a name that
// must be read. It is twice the limit of names, because a wrapper of the store may add a prefix.
const maxListedName = 2 * store.MaxNameBytes

// maxReadsPerTxn is less than the 128 operations that a server allows in a transaction by default.
const maxReadsPerTxn = 100

// A listing reads lines in the order of their names, page by page. All positions are keys without the
// store's prefix.
//
// etcd returns keys in order, but the keys of a name may come after those of a later name. The names "a",
// "a-b" and "a/b" have their keys in the order "a-b/1", "a/1", "a/b/1", "a/f". In general, let a
// name m sort before n. A key of m comes after one of n only if n begins with m and continues with a
// character up to "/". So when the keys up to a position have been read, all keys of all names below it are known, except
// for the names that the position itself begins with. The rest of their keys is read too, at the revision
// of the page. Then all lines of the page are complete and can be yielded. Only the
// position passes to the next page.
type listing struct {
	store    *Store
	prefix   string
	done     string // all keys up to here have been read, and all names less than it have been handled
	pageKeys int64  // how many keys are read at a time
	maxSpans int    // how many spans are read at a time
	queries  *leaseQueries
	finished bool
}

// next reads the next page.
func (l *listing) next(ctx context.Context) (p *page, err error) {
	for {
		if p, err = l.read(ctx); !errors.Is(err, rpctypes.ErrCompacted) {
			break
		}
		// The revision of the page was compacted before the rest of its lines was read.
	}
	if err != nil {
		return nil, err
	}
	l.done, l.finished = p.next, p.final
	p.remaining = l.store.remaining(ctx, p.leases(), l.queries)
	return p, nil
}

// A page is what was read for some lines, all at one revision.
type page struct {
	listing *listing
	rev     int64
	last    string                        // all keys up to this position have been read
	next    string                        // the position after which the next page begins
	final   bool                          // there is no next page
	keys    map[string][]*mvccpb.KeyValue // the keys of a line, by its name
	limits  map[string][]*mvccpb.KeyValue // the key of a line's limit

	remaining map[clientv3.LeaseID]time.Duration
}

// lines yields the lines of the page that have entries. Each is made when it is used, because a line
// takes more memory than its keys.
func (p *page) lines() iter.Seq[store.Line] {
	return func(yield func(store.Line) bool) {
		for _, name := range slices.Sorted(maps.Keys(p.keys)) {
			line, cs := p.listing.store.keys.buildLine(name, p.keys[name], p.limits[name])
			setRemaining(line, cs, p.remaining)
			if len(line.Entries) > 0 && !yield(line) {
				return
			}
		}
	}
}

// leases yields the leases of the page's keys.
func (p *page) leases() iter.Seq[clientv3.LeaseID] {
	return func(yield func(clientv3.LeaseID) bool) {
		for _, kvs := range p.keys {
			for _, kv := range kvs {
				if !yield(clientv3.LeaseID(kv.Lease)) {
					return
				}
			}
		}
	}
}

// read reads a page: some keys, the rest of the lines that are incomplete then, and the limits.
func (l *listing) read(ctx context.Context) (*page, error) {
	k, own := l.store.keys, reservedName+"/"
	end, skip := clientv3.GetPrefixRangeEnd(k.prefix+l.prefix), false
	if l.done < own && strings.HasPrefix(own, l.prefix) {
		end, skip = k.prefix+own, true // Stile's own keys: records are large
	}
	var resp *clientv3.GetResponse
	err := l.store.attemptWithTimeout(ctx, func(ctx context.Context) (err error) {
		resp, err = l.store.cli.Get(ctx, k.prefix+l.done+"\x00", clientv3.WithRange(end), clientv3.WithLimit(l.pageKeys))
		if tooMuch(ctx, err) {
			l.halve()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	p := &page{
		listing: l, rev: resp.Header.Revision,
		keys: make(map[string][]*mvccpb.KeyValue), limits: make(map[string][]*mvccpb.KeyValue),
	}
	switch {
	case resp.More:
		p.last = strings.TrimPrefix(string(resp.Kvs[len(resp.Kvs)-1].Key), k.prefix)
		p.next = p.last
	case skip:
		p.last, p.next = own, clientv3.GetPrefixRangeEnd(own)
	default:
		p.final = true
	}
	p.add(resp.Kvs, "")
	err = p.complete(ctx) // begins with the size for which the server has just been fast enough
	l.resize(resp.Kvs)
	return p, err
}

// tooMuch reports whether an attempt has failed because its answer was too large, or took too long.
func tooMuch(attempt context.Context, err error) bool {
	return tooLarge(err) || err != nil && attempt.Err() != nil
}

// halve makes the next attempt ask for a page of half the size.
func (l *listing) halve() { l.pageKeys = max(1, l.pageKeys/2) }

// tooLarge reports whether an answer was larger than the client accepts.
func tooLarge(err error) bool {
	_, etcds := errors.AsType[rpctypes.EtcdError](err)
	return !etcds && status.Code(err) == codes.ResourceExhausted
}

// resize chooses the size of the next page. It at most doubles, so that the first large values are met in a
// small page.
func (l *listing) resize(kvs []*mvccpb.KeyValue) {
	size := 1
	for _, kv := range kvs {
		size += len(kv.Key) + len(kv.Value)
	}
	sizes := l.store.pageSizes
	l.pageKeys = max(1, min(2*l.pageKeys, l.pageKeys*int64(sizes.bytes)/int64(size), sizes.most))
	l.maxSpans = min(2*l.maxSpans, maxReadsPerTxn)
}

// add adds keys to their lines, or to the line of one name only.
func (p *page) add(kvs []*mvccpb.KeyValue, only string) {
	k := p.listing.store.keys
	for _, kv := range kvs {
		if name, ok := k.limitName(kv.Key); ok {
			if _, listed := p.keys[name]; listed || name == only {
				p.limits[name] = append(p.limits[name], kv)
			}
			continue
		}
		name, ok := k.entryRangeOf(kv.Key)
		if ok && (name == only || only == "" && p.listing.lists(name)) {
			p.keys[name] = append(p.keys[name], kv)
		}
	}
}

// lists reports whether a name is to be listed, and has not been handled.
func (l *listing) lists(name string) bool {
	return name != "" && len(name) <= maxListedName && strings.HasPrefix(name, l.prefix) && name >= l.done &&
		name != reservedName && !strings.HasPrefix(name, reservedName+"/")
}

// A span is a range of keys that is read to complete a page.
type span struct {
	from, end string // end is empty for a single key
	name      string // only what belongs to this name is kept; all if it is empty
}

// complete reads the rest of the incomplete lines, and the limits.
func (p *page) complete(ctx context.Context) error {
	k := p.listing.store.keys
	var spans []span
	if len(p.keys) > 0 {
		// The keys of limits are in the order of the lines' keys.
		first := slices.Min(slices.Collect(maps.Keys(p.keys)))
		end := clientv3.GetPrefixRangeEnd(k.limits(p.listing.prefix))
		if !p.final {
			end = k.limits(p.last)
		}
		spans = append(spans, span{from: k.limits(first), end: end})
	}
	for _, name := range p.incomplete() {
		from, end := k.entries(name)
		spans = append(spans, span{max(from, k.prefix+p.last+"\x00"), end, name}, span{from: k.limit(name), name: name})
	}
	for len(spans) > 0 {
		asked := spans[:min(len(spans), p.listing.maxSpans)]
		read, resp, err := p.listing.readSpans(ctx, asked, p.rev)
		if err != nil {
			return err
		}
		if len(read) < len(asked) {
			p.listing.maxSpans = len(read)
		}
		spans = spans[len(read):]
		for i, sp := range read {
			r := resp.Responses[i].GetResponseRange()
			p.add(r.Kvs, sp.name)
			if r.More {
				sp.from = k.after(r.Kvs[len(r.Kvs)-1].Key, sp.name)
				spans = append(spans, sp)
			}
		}
	}
	return nil
}

// readSpans reads spans at a revision. It asks for at least one key of each, and for about as many in all as a page
// has. After an attempt that took too long it asks for the first half of the spans only. It returns those that it has
// read, with the responses in their order. Each call has a time limit of its own, because a page may need many calls.
func (l *listing) readSpans(ctx context.Context, spans []span, rev int64) (read []span, resp *clientv3.TxnResponse, err error) {
	err = l.store.attemptWithTimeout(ctx, func(ctx context.Context) (err error) {
		limit := max(1, l.pageKeys/int64(len(spans)))
		gets := make([]clientv3.Op, 0, len(spans))
		for _, sp := range spans {
			gets = append(gets, clientv3.OpGet(sp.from, clientv3.WithRange(sp.end), clientv3.WithLimit(limit), clientv3.WithRev(rev)))
		}
		resp, err = l.store.cli.Txn(ctx).Then(gets...).Commit()
		if tooMuch(ctx, err) {
			l.halve()
			spans = spans[:max(1, len(spans)/2)]
		}
		return err
	})
	return spans, resp, err
}

// incomplete returns the names of which keys may come after the last one that was read.
func (p *page) incomplete() []string {
	var names []string
	for i := range min(len(p.last), maxListedName+1) {
		name := p.last[:i]
		if p.last[i] <= '/' && p.listing.lists(name) && name+"/g" > p.last {
			names = append(names, name)
		}
	}
	return names
}

// entryRangeOf returns the name in whose range of entries a key is; see [keys.entries].
func (k keys) entryRangeOf(key []byte) (name string, ok bool) {
	rest, ok := strings.CutPrefix(string(key), k.prefix)
	slash := strings.LastIndexByte(rest, '/')
	if !ok || slash < 0 || rest[slash+1:] < "-" || rest[slash+1:] >= "g" {
		return "", false
	}
	return rest[:slash], true
}

// after returns the first key after a key that may be an entry of the name: the keys of another name below
// it are passed over.
func (k keys) after(key []byte, name string) string {
	rest, ok := strings.CutPrefix(string(key), k.line(name))
	if slash := strings.IndexByte(rest, '/'); ok && name != "" && slash >= 0 {
		return clientv3.GetPrefixRangeEnd(k.line(name) + rest[:slash+1])
	}
	return string(key) + "\x00"
}
