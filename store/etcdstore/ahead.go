package etcdstore

import (
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
)

// sizes are the numbers of entries from which a line counts as crowded: [defaultSizes], unless a
// test sets others.
type sizes struct {
	// readAtJoin is how many other entries an exclusive entry reads when it joins a line. If there are more,
	// it does not know the line. At least 1.
	readAtJoin int
	// watchLimit is how many entries may be ahead of an exclusive entry for which a watch of its line
	// is opened. If there are more, it follows one of them.
	watchLimit int
	// keepWatchLimit is how many may be ahead if the watch is open, because the session had an entry in
	// the line before. Then it costs less to keep the watch than to follow entries.
	keepWatchLimit int
}

var defaultSizes = sizes{readAtJoin: 7, watchLimit: 8, keepWatchLimit: 32}

// linePart is a part of a line: the entries that joined up to a given order.
type linePart struct {
	entries  []listedEntry // the newest first
	complete bool          // there are no others
	keys     int           // number of keys in the range of the line's entries, with those behind the order
	header   *pb.ResponseHeader
}

// readAhead reads the entries of a line that joined up to order: all of them, or the newest ones if
// limit is not zero. It is a linearizable read.
//
// The servers sort all keys of the line for that, but other requests do not wait for it.
func (s *Store) readAhead(ctx context.Context, name string, order uint64, limit int) (linePart, error) {
	for ask := limit; ; ask *= 64 {
		a, err := s.readAheadOnce(ctx, name, order, ask)
		switch {
		case err != nil || limit == 0:
			return a, err
		case len(a.entries) > limit:
			a.entries, a.complete = slices.Clone(a.entries[:limit]), false
			return a, nil
		case a.complete || len(a.entries) == limit:
			return a, nil
		}
		// Keys of other lines have used up the limit.
	}
}

func (s *Store) readAheadOnce(ctx context.Context, name string, order uint64, limit int) (linePart, error) {
	from, end := s.keys.entries(name)
	var resp *clientv3.GetResponse
	err := s.attempt(ctx, func(ctx context.Context) (err error) {
		resp, err = s.cli.Get(ctx, from, clientv3.WithRange(end), clientv3.WithMaxCreateRev(int64(order)),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(int64(limit)))
		return err
	})
	if err != nil {
		return linePart{}, err
	}
	found, _ := s.keys.contenders(name, resp.Kvs)
	slices.SortFunc(found, func(x, y listedEntry) int { return y.compare(x) }) // ties by key
	return linePart{entries: found, complete: !resp.More, keys: int(resp.Count), header: resp.Header}, nil
}

// readEntries reads all entries of a line with a linearizable read.
func (s *Store) readEntries(ctx context.Context, name string) ([]listedEntry, error) {
	a, err := s.readAhead(ctx, name, store.MaxOrder, 0)
	return a.entries, err
}
