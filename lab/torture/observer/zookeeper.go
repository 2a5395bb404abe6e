package observer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/lab/torture/history"
)

type zookeeper struct {
	conn  *zk.Conn
	dir   string // the parent of all locks, "/torture"
	token func(uint64) uint64
	known sync.Map // the tokens of the entries that Follow has seen and that have not left, by their paths
}

// discardLogger is a logger that discards everything.
type discardLogger struct{}

func (discardLogger) Printf(string, ...any) {}

func openZooKeeper(addrs []string, prefix string, token func(uint64) uint64) (*zookeeper, error) {
	conn, _, err := zk.Connect(addrs, 10*time.Second, zk.WithLogger(discardLogger{}))
	return &zookeeper{conn: conn, dir: "/" + strings.TrimSuffix(prefix, "/"), token: token}, err
}

// Follow follows the children of the locks' directories. An entry that appears and disappears
// between two reads is not reported.
func (o *zookeeper) Follow(ctx context.Context, emit func(history.Entry)) {
	var followers sync.WaitGroup
	defer followers.Wait()
	known := map[string]bool{}
	o.followChildren(ctx, o.dir, func(locks []string) {
		for _, lock := range locks {
			if !known[lock] {
				known[lock] = true
				followers.Go(func() { o.entries(ctx, lock, emit) })
			}
		}
	})
}

// followChildren calls changed with the children of a directory, first at once and then after each
// change, until ctx ends.
func (o *zookeeper) followChildren(ctx context.Context, dir string, changed func([]string)) {
	for ctx.Err() == nil {
		children, _, events, err := o.conn.ChildrenW(dir)
		if err != nil {
			pause(ctx)
			continue
		}
		changed(children)
		select {
		case <-events:
		case <-ctx.Done():
		}
	}
}

func (o *zookeeper) entries(ctx context.Context, lock string, emit func(history.Entry)) {
	tokens := map[string]uint64{}
	name := strings.TrimPrefix(o.dir, "/") + "/" + lock
	o.followChildren(ctx, o.dir+"/"+lock, func(children []string) {
		for _, child := range children {
			if _, ok := tokens[child]; ok || !isEntry(child) {
				continue
			}
			if ok, stat, err := o.conn.Exists(o.dir + "/" + lock + "/" + child); ok && err == nil {
				tokens[child] = o.token(uint64(stat.Czxid))
				o.known.Store("/"+name+"/"+child, tokens[child])
				emit(history.Entry{Lock: name, Key: child, Token: tokens[child]})
			}
		}
		for child, token := range tokens {
			if !slices.Contains(children, child) {
				delete(tokens, child)
				o.known.Delete("/" + name + "/" + child)
				emit(history.Entry{Lock: name, Key: child, Token: token, Gone: true})
			}
		}
	})
}

// Remaining omits empty directories: they are containers, which the server deletes in its own time.
// The claims of slot numbers are in one of them, beside the entries.
func (o *zookeeper) Remaining(context.Context) (map[string][]string, error) {
	left := map[string][]string{}
	locks, err := o.children(o.dir)
	if err != nil {
		return nil, err
	}
	for _, lock := range locks {
		entries, err := o.children(o.dir + "/" + lock)
		if err != nil {
			return nil, err
		}
		for _, child := range slices.Clone(entries) {
			if isEntry(child) {
				continue
			}
			claims, err := o.children(o.dir + "/" + lock + "/" + child)
			if err != nil {
				return nil, err
			}
			entries = slices.DeleteFunc(entries, func(other string) bool { return other == child })
			for _, claim := range claims {
				entries = append(entries, child+"/"+claim)
			}
		}
		if len(entries) > 0 {
			left[strings.TrimPrefix(o.dir, "/")+"/"+lock] = entries
		}
	}
	return left, nil
}

// Evict deletes the first entry, or the whole line, in one transaction. If one of the entries has
// left meanwhile, it deletes nothing.
func (o *zookeeper) Evict(_ context.Context, lock string, all bool) (Eviction, error) {
	entries, err := o.children("/" + lock)
	entries = slices.DeleteFunc(entries, func(child string) bool { return !isEntry(child) })
	if err != nil || len(entries) == 0 {
		return Eviction{}, err
	}
	// Names end in the sequence number, which has ten digits.
	slices.SortFunc(entries, func(a, b string) int { return strings.Compare(sequenceNumber(a), sequenceNumber(b)) })
	if !all {
		entries = entries[:1]
	}
	var took []uint64
	var ops []any
	for _, entry := range entries {
		path := "/" + lock + "/" + entry
		token, err := o.tokenOf(path)
		if err != nil || token == 0 {
			return Eviction{}, err
		}
		took = append(took, token)
		ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
	}
	_, err = o.conn.Multi(ops...)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return Eviction{}, nil
	case err != nil:
		return Eviction{Took: took}, err
	}
	return Eviction{What: fmt.Sprintf("delete /%s/%s: %d", lock, entries[0], len(entries)), Took: took}, nil
}

// tokenOf returns the token of an entry; zero if it does not exist, unless Follow has seen it. A long line
// would change while all of its entries are read.
func (o *zookeeper) tokenOf(path string) (uint64, error) {
	if token, ok := o.known.Load(path); ok {
		return token.(uint64), nil
	}
	there, stat, err := o.conn.Exists(path)
	if err != nil || !there {
		return 0, err
	}
	return o.token(uint64(stat.Czxid)), nil
}

// Length also counts the directory of claims, if there is one.
func (o *zookeeper) Length(_ context.Context, lock string) (int, error) {
	there, stat, err := o.conn.Exists("/" + lock)
	if err != nil || !there {
		return 0, err
	}
	return int(stat.NumChildren), nil
}

// children returns the children of a directory, none if it does not exist.
func (o *zookeeper) children(dir string) ([]string, error) {
	children, _, err := o.conn.Children(dir)
	if errors.Is(err, zk.ErrNoNode) {
		err = nil
	}
	return children, err
}

// isEntry reports whether a node in a lock's directory is an entry: whether its name ends in a sequence
// number. Stile's other nodes, which begin with ~, end in a number too.
func isEntry(name string) bool {
	return len(name) >= 10 && name[0] != '~' && !strings.ContainsFunc(sequenceNumber(name), func(r rune) bool { return r < '0' || r > '9' })
}

func sequenceNumber(s string) string { return s[max(0, len(s)-10):] }

// Compact does nothing: clients of ZooKeeper cannot read past states.
func (o *zookeeper) Compact(context.Context) error { return nil }

func (o *zookeeper) Close() { o.conn.Close() }
