package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// Line implements [store.Store]. If the lock's key is another locker's, that hold is the first
// entry of the line.
func (s *Store) Line(ctx context.Context, name string) (store.Line, error) {
	var l store.Line
	err := retryBounded(ctx, func(ctx context.Context) (err error) {
		lines, err := s.read(ctx, []string{name})
		if err == nil {
			l = lines[0]
		}
		return err
	})
	if err != nil {
		return store.Line{}, s.wrapErr("read the line", attempts.WithContextErr(ctx, err))
	}
	return l, nil
}

// Lines implements [store.Store]. It scans all keys of the database, on every master of a cluster,
// without blocking other clients; a million keys take about a second. A lock that only another
// locker holds is not listed, because its key looks like any other string.
func (s *Store) Lines(ctx context.Context, prefix string) iter.Seq2[store.Line, error] {
	return func(yield func(store.Line, error) bool) {
		fail := func(err error) {
			yield(store.Line{}, s.wrapErr(fmt.Sprintf("list the locks that begin with %q", prefix), attempts.WithContextErr(ctx, err)))
		}
		names, err := s.names(ctx, prefix)
		if err != nil {
			fail(err)
			return
		}
		for chunk := range slices.Chunk(names, 100) {
			var lines []store.Line
			err := retryBounded(ctx, func(ctx context.Context) (err error) {
				lines, err = s.read(ctx, chunk)
				return err
			})
			if err != nil {
				fail(err)
				return
			}
			for _, l := range lines {
				if len(l.Entries) > 0 && !yield(l, nil) {
					return
				}
			}
		}
	}
}

// names returns the sorted names that begin with prefix and have keys of Stile's.
func (s *Store) names(ctx context.Context, prefix string) ([]string, error) {
	pattern := "*" + escapePattern(s.server.keys.prefix+prefix) + "*" + entriesSuffix
	if s.server.keys.prefix+prefix == "" {
		pattern = "*" + entriesSuffix
	}
	found := make(map[string]struct{})
	for _, node := range s.server.masters(ctx) {
		for cursor := uint64(0); ; {
			var page rueidis.ScanEntry
			from := cursor // an abandoned request may be built later
			err := retryBounded(ctx, func(ctx context.Context) (err error) {
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

// masters returns a client for each server that owns keys.
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
			masters = append(masters, node) // the next request to it reports the error
			continue
		}
		if what, _ := role[0].ToString(); what == "master" {
			masters = append(masters, node)
		}
	}
	return masters
}

var patterns = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// escapePattern returns a glob pattern that matches text only.
func escapePattern(text string) string { return patterns.Replace(text) }

// read reads lines, each one atomically.
func (s *Store) read(ctx context.Context, names []string) ([]store.Line, error) {
	operations := make([]operation, 0, len(names))
	for _, name := range names {
		operations = append(operations, operation{line: s.server.keys.forLine(name), op: "read"})
	}
	lines := make([]store.Line, 0, len(names))
	for i, r := range s.server.evalAll(ctx, 0, nil, operations) {
		if r.err != nil {
			return nil, r.err
		}
		parts, err := r.ToArray()
		if err != nil || len(parts) != 8 {
			return nil, errors.New("unexpected script reply")
		}
		lines = append(lines, parseLine(names[i], parts))
	}
	return lines, nil
}

// parseLine converts the script's reply: the time, the value of the lock's key and its TTL, the
// holders and the waiters with their orders, the ends of all leases, the information about the
// entries, and the limit.
func parseLine(name string, parts []message) store.Line {
	l := store.Line{Name: name, Entries: []store.Entry{}}
	text, _ := parts[0].ToString()
	now := parseInt(text)
	value, err := parts[1].ToString()
	there := err == nil
	left, _ := parts[2].AsInt64()
	ends := make(map[string]int64)
	for _, lease := range pairs(parts[5]) {
		ends[lease[0]] = parseInt(lease[1])
	}
	known, _ := parts[6].AsStrMap()
	if limit, err := parts[7].ToString(); err == nil { // otherwise there is none
		l.Limit = parseLimit(limit)
	}

	ours := there && value == known["held"]
	add := func(members [][2]string, admitted bool) {
		for _, w := range members {
			id, order := w[0], w[1]
			if ends[id] < now {
				continue // its lease has ended; the next operation removes it
			}
			e := parseEntry(id, order, known[id], known["downgraded"])
			e.Admitted, e.Remaining = admitted, milliDuration(ends[id]-now)
			l.Entries = append(l.Entries, e)
		}
	}
	switch {
	case ours:
		add(pairs(parts[3]), true)
	case there:
		l.Entries = append(l.Entries, foreignEntry(value, time.Duration(left)*time.Millisecond))
		l.Remarks = append(l.Remarks, foreignRemark(left))
	}
	add(pairs(parts[4]), false)
	return l
}

// milliDuration returns a duration of ms milliseconds, or the largest whole number of them that
// fits.
func milliDuration(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// foreignRemark describes the hold of another locker, whose key expires after left milliseconds, or
// never if that is negative.
func foreignRemark(left int64) string {
	if left < 0 {
		return "another kind of client holds the lock, and its key never expires: if that client is gone, delete the key"
	}
	return fmt.Sprintf("another kind of client holds the lock; its key expires in %v unless renewed",
		(time.Duration(left) * time.Millisecond).Round(time.Second))
}

// pairs returns the members of a sorted set and their scores.
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

// parseEntry returns the entry with an id and an order. known is what the script stores about it:
// "client|flag|payload". downgraded is the id of the entry of the line that was downgraded, if any.
func parseEntry(id, order, known, downgraded string) store.Entry {
	e := store.Entry{Mode: modeOf(id)}
	if id == downgraded {
		e.Mode = line.Shared
	}
	if n, err := strconv.ParseUint(order, 10, 64); err == nil && n <= store.MaxOrder {
		e.Order = n
	}
	parts := strings.SplitN(known, "|", 3)
	var p payload
	if len(parts) == 3 && json.Unmarshal([]byte(parts[2]), &p) == nil {
		e.Session, e.Owner = p.Session, p.Owner
	}
	return e
}

// foreignEntry returns the entry of another locker with the given value in the lock's key. The
// value is hashed: a client that knows it can release the lock.
func foreignEntry(value string, left time.Duration) store.Entry {
	sum := sha256.Sum256([]byte(value))
	return store.Entry{
		Admitted: true, Foreign: true, Session: "key-" + hex.EncodeToString(sum[:4]), Remaining: max(left, 0),
	}
}

// Break implements [store.Store].
func (s *Store) Break(ctx context.Context, name string, order uint64) (store.Entry, error) {
	op := fmt.Sprintf("break the entry with order %d", order)
	gone := fmt.Errorf("%s: %s: %w: no entry with order %d", s, op, store.ErrGone, order)
	l, err := s.Line(ctx, name) // read first: the reply to the removal may be lost
	if err != nil {
		return store.Entry{}, err
	}
	i := slices.IndexFunc(l.Entries, func(e store.Entry) bool { return e.Order == order && !e.Foreign })
	if i < 0 {
		return store.Entry{}, gone
	}
	var broken, inDoubt bool // inDoubt: a request failed that may have been carried out
	err = retryBounded(ctx, func(ctx context.Context) error {
		n, err := s.server.eval(ctx, s.server.keys.forLine(name), "break", strconv.FormatUint(order, 10)).number()
		broken, inDoubt = n > 0 || inDoubt, inDoubt || err != nil
		return err
	})
	switch {
	case err != nil:
		return store.Entry{}, s.wrapErr(op, attempts.WithContextErr(ctx, err))
	case !broken:
		return store.Entry{}, gone
	}
	return l.Entries[i], nil
}
