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
	// farLimit is how many may be ahead of an entry without its reads counting towards maxFarReads. If more are ahead,
	// the entry is not admitted while its read waits for others, and the servers have a long line to sort.
	farLimit int
}

var defaultSizes = sizes{readAtJoin: 7, watchLimit: 8, keepWatchLimit: 32, farLimit: 256}

// linePart is a part of a line: the entries that joined up to a given order.
type linePart struct {
	entries  []listedEntry // the newest first
	complete bool          // there are no others
	keys     int           // number of keys in the range of the line's entries, with those behind the order
	header   *pb.ResponseHeader
}

// extent says which entries of a line to read.
type extent struct {
	upTo  uint64 // those that joined up to this order
	limit int    // so many of them, the newest ones; zero for all
	far   bool   // the entry that needs them has more than farLimit others ahead, as far as is known
}

// readAhead reads entries of a line. It is a linearizable read.
//
// To answer it the servers sort all keys of the line, but other requests do not wait for that.
func (s *Store) readAhead(ctx context.Context, name string, x extent) (linePart, error) {
	for ask := x; ; ask.limit *= 64 {
		a, err := s.readAheadOnce(ctx, name, ask)
		switch {
		case err != nil || x.limit == 0:
			return a, err
		case len(a.entries) > x.limit:
			a.entries, a.complete = slices.Clone(a.entries[:x.limit]), false
			return a, nil
		case a.complete || len(a.entries) == x.limit:
			return a, nil
		}
		// Keys of other lines have used up the limit.
	}
}

func (s *Store) readAheadOnce(ctx context.Context, name string, x extent) (linePart, error) {
	from, end := s.keys.entries(name)
	attempt := s.attempt
	if x.far {
		attempt = s.attemptFar
	}
	var resp *clientv3.GetResponse
	err := attempt(ctx, func(ctx context.Context) (err error) {
		resp, err = s.cli.Get(ctx, from, clientv3.WithRange(end), clientv3.WithMaxCreateRev(int64(x.upTo)),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(int64(x.limit)))
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
	a, err := s.readAhead(ctx, name, extent{upTo: store.MaxOrder})
	return a.entries, err
}
