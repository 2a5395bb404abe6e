package zkstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// Ping returns nil if the ensemble has just answered a read of the store's root, whether or not
// that exists. It fails if no server answers, or if the client may not read the root. It waits half
// as long as other reads.
func (s *Store) Ping(ctx context.Context) error {
	return s.withReaderTimeout(ctx, s.callTimeout/2, "read "+s.paths.top(), func(ctx context.Context, c *client) error {
		if err := c.sync(ctx, s.paths.top()); err != nil {
			return err
		}
		_, err := c.list(ctx, s.paths.top())
		if errors.Is(err, zk.ErrNoNode) {
			return nil
		}
		return err
	})
}

// Line implements [store.Store].
func (s *Store) Line(ctx context.Context, name string) (l store.Line, err error) {
	err = s.withReader(ctx, "read the line", func(ctx context.Context, c *client) error {
		l, _, err = s.read(ctx, c, name)
		return err
	})
	return l, err
}

// Lines implements [store.Store]. It lists every node below the store's root whose path may be the
// beginning of a name with the prefix. So if the ensemble also stores other data, give Stile its
// own root. The lines are read after all have been listed; entries that join meanwhile are left out.
// Requests are made side by side, and there is no time limit as long as they are answered.
func (s *Store) Lines(ctx context.Context, prefix string) iter.Seq2[store.Line, error] {
	return func(yield func(store.Line, error) bool) {
		const op = "list the lines"
		var found []*listing
		err := s.withReaderWhileAnswered(ctx, s.callTimeout, op, func(ctx context.Context, c *client, answered func()) (err error) {
			if err := c.sync(ctx, s.paths.top()); err != nil {
				return err
			}
			found, err = s.list(ctx, c, prefix, answered)
			return err
		})
		slices.SortFunc(found, func(a, b *listing) int { return strings.Compare(a.name, b.name) })
		for len(found) > 0 && err == nil {
			chunk := found[:min(len(found), linesPerRead)]
			found = found[len(chunk):]
			err = s.withReaderWhileAnswered(ctx, s.callTimeout, op, func(ctx context.Context, c *client, answered func()) error {
				return s.readEntries(ctx, c, chunk, answered)
			})
			for i, l := range chunk {
				chunk[i] = nil // its entries are not kept in memory
				if err != nil {
					break
				}
				if line, _ := s.lineOf(l); len(line.Entries) > 0 && !yield(line, nil) {
					return
				}
			}
		}
		if err != nil {
			yield(store.Line{}, err)
		}
	}
}

// linesPerRead is how many lines are read side by side in a listing.
const linesPerRead = 1000

// A listing is the contenders of one line, and what their nodes contain.
type listing struct {
	name       string
	contenders []listedEntry
	entries    []store.Entry
	errs       []error
	limited    bool // there is a limit
	limit      int
	limitErr   error
}

func newListing(name string, children []string) *listing {
	cs := contenders(children)
	return &listing{
		name: name, contenders: cs, entries: make([]store.Entry, len(cs)), errs: make([]error, len(cs)),
		limited: slices.Contains(children, limitNode),
	}
}

// list returns the lines whose names begin with prefix, without what their nodes contain.
// Directories that the client may not read count as empty.
func (s *Store) list(ctx context.Context, c *client, prefix string, answered func()) (found []*listing, err error) {
	for level := []string{""}; len(level) > 0; {
		children, errs := make([][]string, len(level)), make([]error, len(level))
		inParallel(len(level), func(i int) {
			children[i], errs[i] = c.list(ctx, s.dirOf(level[i]))
			answered()
		})
		var below []string
		for i, name := range level {
			switch err := errs[i]; {
			case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrNoAuth) && name != "":
				continue
			case err != nil:
				return nil, err
			}
			if l := newListing(name, children[i]); name != "" && strings.HasPrefix(name, prefix) && len(l.contenders) > 0 {
				found = append(found, l)
			}
			below = append(below, s.below(name, prefix, children[i])...)
		}
		level = below
	}
	return found, nil
}

// inParallel calls f with 0 to n-1, up to maxInFlight of them at the same time.
func inParallel(n int, f func(i int)) {
	var all sync.WaitGroup
	places := make(chan struct{}, maxInFlight)
	for i := range n {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			f(i)
		})
	}
	all.Wait()
}

// dirOf returns the directory of a name, or the top for the empty one.
func (s *Store) dirOf(name string) string {
	if name == "" {
		return s.paths.top()
	}
	return s.paths.dir(name)
}

// below returns the names whose directories are children of the directory of name, except those at
// and below which no name can begin with prefix.
func (s *Store) below(name, prefix string, children []string) []string {
	var names []string
	for _, child := range children {
		if _, entry := parseNode(child); entry {
			continue
		}
		n, ok := s.paths.nameBelow(name, child)
		if ok && (strings.HasPrefix(n, prefix) || strings.HasPrefix(prefix, n+"/")) {
			names = append(names, n)
		}
	}
	return names
}

// read reads one line. The contenders are those of the line's entries, in the same order.
func (s *Store) read(ctx context.Context, c *client, name string) (store.Line, []listedEntry, error) {
	dir := s.paths.dir(name)
	if err := c.sync(ctx, dir); err != nil {
		return store.Line{}, nil, err
	}
	children, err := c.list(ctx, dir)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return store.Line{}, nil, err
	}
	l := newListing(name, children)
	if err := s.readEntries(ctx, c, []*listing{l}, func() {}); err != nil {
		return store.Line{}, nil, err
	}
	line, there := s.lineOf(l)
	return line, there, nil
}

// readEntries reads the nodes of listed lines, and their limits. A node that has left meanwhile has
// [zk.ErrNoNode].
func (s *Store) readEntries(ctx context.Context, c *client, listings []*listing, answered func()) error {
	type node struct {
		of *listing
		i  int
	}
	const limit = -1
	var nodes []node
	for _, l := range listings {
		if l.limited {
			nodes = append(nodes, node{l, limit})
		}
		for i := range l.contenders {
			nodes = append(nodes, node{l, i})
		}
	}
	inParallel(len(nodes), func(i int) {
		l, n := nodes[i].of, nodes[i].i
		if dir := s.paths.dir(l.name); n == limit {
			l.limit, _, l.limitErr = c.limitAt(ctx, join(dir, limitNode))
		} else {
			l.entries[n], l.errs[n] = readEntry(ctx, c, dir, l.contenders[n])
		}
		answered()
	})
	for _, n := range nodes {
		err := n.of.limitErr
		if n.i != limit {
			err = n.of.errs[n.i]
		}
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	return nil
}

// lineOf returns the line of a listing whose entries have been read, and the contenders that are still
// there.
func (s *Store) lineOf(listed *listing) (store.Line, []listedEntry) {
	l := store.Line{Name: listed.name, Entries: make([]store.Entry, 0, len(listed.entries)), Limit: listed.limit}
	there := make([]listedEntry, 0, len(listed.entries))
	for i, e := range listed.entries {
		if listed.errs[i] != nil {
			continue // it has left
		}
		c := listed.contenders[i]
		l.Entries, there = append(l.Entries, e), append(there, c)
		l.Remarks = append(l.Remarks, s.remarks(s.paths.dir(listed.name), c, e)...)
	}
	rules := make([]line.Entry, 0, len(there))
	for _, c := range there {
		rules = append(rules, line.Entry{Mode: c.mode})
	}
	for i, admitted := range line.Admitted(rules, l.Limit) {
		// The limit may have been lowered after the entry was admitted.
		l.Entries[i].Admitted = admitted || l.Limit > 0 && !l.Entries[i].Owner.Obtained.IsZero()
	}
	return l, there
}

// remarks returns what an operator should know about an entry of another client.
func (s *Store) remarks(dir string, c listedEntry, e store.Entry) []string {
	path := join(dir, c.name)
	switch {
	case e.Session == sessionText(0):
		return []string{fmt.Sprintf("node %q is not ephemeral, so it stays when all sessions have ended: delete it if no client needs it", path)}
	case c.unseen(s.readWrite):
		theirs, option := curatorOf(!s.readWrite)
		return []string{fmt.Sprintf("node %q is of Curator's %s, which does not see the entries of this store: "+
			"open the store %s", path, theirs, option)}
	case c.suffix == markKazoo || c.suffix == markKazooReader:
		patterns := "['" + markLock + "']"
		if s.readWrite {
			patterns = "['" + markWrite + "', '" + markRead + "']"
		}
		return []string{fmt.Sprintf("node %q is kazoo's, which sees Stile's entries only with "+
			"extra_lock_patterns=%s", path, patterns)}
	}
	return nil
}

// readEntry reads one entry, except for whether it is admitted.
func readEntry(ctx context.Context, c *client, dir string, who listedEntry) (store.Entry, error) {
	return attempt(ctx, c, func(int) (store.Entry, error) {
		path := join(dir, who.name)
		data, st, err := c.Get(path)
		if errors.Is(err, zk.ErrNoAuth) { // its data may not be read; that it exists may be known
			var there bool
			if there, st, err = c.Exists(path); err == nil && !there {
				err = zk.ErrNoNode
			}
		}
		if err != nil {
			return store.Entry{}, err
		}
		v, ours := decode(data)
		return store.Entry{
			Order: uint64(st.Czxid), Mode: who.mode, Session: sessionText(st.EphemeralOwner),
			Foreign: !ours && !who.ours(), Owner: v.Owner,
		}, nil
	})
}

// Break implements [store.Store]. It works on the entries of any client.
func (s *Store) Break(ctx context.Context, name string, order uint64) (broken store.Entry, err error) {
	op := "break the entry"
	gone := fmt.Errorf("%s: %s: %w: no entry with order %d", s, op, store.ErrGone, order)
	err = s.withReader(ctx, op, func(ctx context.Context, c *client) error {
		l, cs, err := s.read(ctx, c, name)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(l.Entries, func(e store.Entry) bool { return e.Order == order })
		if i < 0 {
			return gone
		}
		dir, claim := s.paths.dir(name), ""
		if l.Entries[i].Mode.Slots() > 0 {
			if claim, err = c.claimOf(ctx, dir, cs[i].name); err != nil {
				return err
			}
		}
		removed, err := c.remove(ctx, join(dir, cs[i].name), claim)
		if err == nil && !removed {
			return gone
		}
		broken = l.Entries[i]
		return err
	})
	if err != nil {
		return store.Entry{}, err
	}
	return broken, nil
}
