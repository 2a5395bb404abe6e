package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// Line implements [store.Store]. The key of another kind of client is the first entry of the line, if its name is asked for.
func (s *Store) Line(ctx context.Context, name string) (store.Line, error) {
	var l store.Line
	err := patiently(ctx, func(ctx context.Context) (err error) {
		lines, err := s.read(ctx, []string{name})
		if err == nil {
			l = lines[0]
		}
		return err
	})
	if err != nil {
		return store.Line{}, s.explain("read the line", attempts.EndedBy(ctx, err))
	}
	return l, nil
}

// Lines implements [store.Store]. It walks through all keys of the database, on every master of a cluster, without holding
// up others: that takes about a second for a million keys. A lock that only another kind of client holds is not among the
// lines, because its key cannot be told from any other string.
func (s *Store) Lines(ctx context.Context, prefix string) ([]store.Line, error) {
	doing := fmt.Sprintf("list the locks that begin with %q", prefix)
	names, err := s.names(ctx, prefix)
	if err != nil {
		return nil, s.explain(doing, attempts.EndedBy(ctx, err))
	}
	var lines []store.Line
	for some := range slices.Chunk(names, 100) {
		err := patiently(ctx, func(ctx context.Context) error {
			read, err := s.read(ctx, some)
			for _, l := range read {
				if len(l.Entries) > 0 {
					lines = append(lines, l)
				}
			}
			return err
		})
		if err != nil {
			return nil, s.explain(doing, attempts.EndedBy(ctx, err))
		}
	}
	return lines, nil
}

// names returns the names that begin with prefix and have keys of Stile's, sorted.
func (s *Store) names(ctx context.Context, prefix string) ([]string, error) {
	pattern := "*" + literally(s.server.keys.prefix+prefix) + "*" + entries
	if s.server.keys.prefix+prefix == "" {
		pattern = "*" + entries
	}
	found := make(map[string]struct{})
	for _, node := range s.server.masters(ctx) {
		for cursor := uint64(0); ; {
			var page rueidis.ScanEntry
			from := cursor // a request that was given up may be made later
			err := patiently(ctx, func(ctx context.Context) (err error) {
				r := s.server.ask(ctx, node, func(b rueidis.Builder) rueidis.Completed {
					return b.Scan().Cursor(from).Match(pattern).Count(1000).Build()
				})
				if r.err != nil {
					return r.err
				}
				page, err = r.AsScanEntry()
				return err
			})
			if err != nil {
				return nil, err
			}
			for _, key := range page.Elements {
				if name, ok := s.server.keys.name(key); ok && strings.HasPrefix(name, prefix) {
					found[name] = struct{}{}
				}
			}
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
	}
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// masters returns a client for each server that has keys of its own.
func (s *server) masters(ctx context.Context) []rueidis.Client {
	if !s.cluster {
		return []rueidis.Client{s.cli}
	}
	var masters []rueidis.Client
	for _, node := range s.cli.Nodes() {
		r := s.ask(ctx, node, func(b rueidis.Builder) rueidis.Completed { return b.Role().Build() })
		var role []message
		if r.err == nil {
			role, _ = r.ToArray()
		}
		if len(role) == 0 {
			masters = append(masters, node) // to find out why
			continue
		}
		if what, _ := role[0].ToString(); what == "master" {
			masters = append(masters, node)
		}
	}
	return masters
}

var patterns = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// literally returns a pattern that matches text and nothing else.
func literally(text string) string { return patterns.Replace(text) }

// read reads lines, each as it is at one moment.
func (s *Store) read(ctx context.Context, names []string) ([]store.Line, error) {
	operations := make([]operation, 0, len(names))
	for _, name := range names {
		operations = append(operations, operation{line: s.server.keys.of(name), op: "read"})
	}
	lines := make([]store.Line, 0, len(names))
	for i, r := range s.server.evalAll(ctx, 0, nil, operations) {
		if r.err != nil {
			return nil, r.err
		}
		parts, err := r.ToArray()
		if err != nil || len(parts) != 7 {
			return nil, errors.New("unexpected script reply")
		}
		lines = append(lines, reading(names[i], parts))
	}
	return lines, nil
}

// reading makes a line of what the script has read: the time, what is in the lock's key, how long that lives, who holds and
// who waits, with their orders, the ends of all leases, and what is known of the entries.
func reading(name string, parts []message) store.Line {
	l := store.Line{Name: name, Entries: []store.Entry{}}
	text, _ := parts[0].ToString()
	now := integer(text)
	value, err := parts[1].ToString()
	there := err == nil
	left, _ := parts[2].AsInt64()
	ends := make(map[string]int64)
	for _, lease := range pairs(parts[5]) {
		ends[lease[0]] = integer(lease[1])
	}
	known, _ := parts[6].AsStrMap()

	ours := there && value == known["held"]
	add := func(who [][2]string, admitted bool) {
		for _, w := range who {
			id, order := w[0], w[1]
			if ends[id] < now {
				continue // its lease has ended: whoever comes next will take it out
			}
			e := described(id, order, known[id])
			e.Admitted, e.Remaining = admitted, lasting(ends[id]-now)
			l.Entries = append(l.Entries, e)
		}
	}
	switch {
	case ours:
		add(pairs(parts[3]), true)
	case there:
		l.Entries = append(l.Entries, foreign(value, time.Duration(left)*time.Millisecond))
		l.Remarks = append(l.Remarks, remark(left))
	}
	add(pairs(parts[4]), false)
	return l
}

// lasting returns a duration of so many milliseconds, or the longest there is.
func lasting(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// remark says what is odd about a lock's key that is not Stile's.
func remark(left int64) string {
	if left < 0 {
		return "another kind of client holds the lock, and its key has no end: if nobody is behind it any more, delete the key"
	}
	return fmt.Sprintf("another kind of client holds the lock, for %v if it does not renew",
		(time.Duration(left) * time.Millisecond).Round(time.Second))
}

// pairs returns the members of a set and their scores.
func pairs(m message) [][2]string {
	flat, err := m.AsStrSlice()
	if err != nil {
		return nil
	}
	all := make([][2]string, 0, len(flat)/2)
	for i := 0; i+1 < len(flat); i += 2 {
		all = append(all, [2]string{flat[i], flat[i+1]})
	}
	return all
}

// described makes an entry of its id, its order, and what the script knows of it: client, flag and text.
func described(id, order, known string) store.Entry {
	e := store.Entry{Mode: modeOf(id)}
	if n, err := strconv.ParseUint(order, 10, 64); err == nil && n <= store.MaxOrder {
		e.Order = n
	}
	parts := strings.SplitN(known, "|", 3)
	var said payload
	if len(parts) == 3 && json.Unmarshal([]byte(parts[2]), &said) == nil {
		e.Session, e.Owner = said.Session, said.Owner
	}
	return e
}

// foreign is the entry of another kind of client, of which there is a value and nothing else. The value is not shown: who has
// it can release the lock.
func foreign(value string, left time.Duration) store.Entry {
	sum := sha256.Sum256([]byte(value))
	return store.Entry{
		Admitted: true, Foreign: true, Session: "key-" + hex.EncodeToString(sum[:4]), Remaining: max(left, 0),
	}
}

// Break implements [store.Store].
func (s *Store) Break(ctx context.Context, name string, order uint64) (store.Entry, error) {
	doing := fmt.Sprintf("take the entry with order %d out of the line", order)
	gone := fmt.Errorf("%s: %s: %w: no entry with order %d", s, doing, store.ErrGone, order)
	l, err := s.Line(ctx, name) // first: the reply to what takes it out may be lost
	if err != nil {
		return store.Entry{}, err
	}
	i := slices.IndexFunc(l.Entries, func(e store.Entry) bool { return e.Order == order && !e.Foreign })
	if i < 0 {
		return store.Entry{}, gone
	}
	var broken, doubt bool // doubt: a request was given up that may have been carried out
	err = patiently(ctx, func(ctx context.Context) error {
		n, err := s.server.eval(ctx, s.server.keys.of(name), "break", strconv.FormatUint(order, 10)).number()
		broken, doubt = n > 0 || doubt, doubt || err != nil
		return err
	})
	switch {
	case err != nil:
		return store.Entry{}, s.explain(doing, attempts.EndedBy(ctx, err))
	case !broken:
		return store.Entry{}, gone
	}
	return l.Entries[i], nil
}
