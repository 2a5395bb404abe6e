package redlockstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// view is the state of one name at one master.
type view struct {
	master *master
	value  string
	there  bool
	fence  string
	ttl    time.Duration // negative if it never expires
	other  bool          // the key holds something other than a string
}

// Line implements [store.Store]. It shows a hold if a majority of the masters has it; a remark
// mentions what a minority has. Waiters are not shown, because the masters have no record of them.
func (s *Store) Line(ctx context.Context, name string) (store.Line, error) {
	ls, err := s.readChunk(ctx, []string{name})
	if err != nil {
		return store.Line{}, s.wrapErr("read the line", attempts.WithContextErr(ctx, err))
	}
	return ls[0], nil
}

// Lines implements [store.Store]. It lists the locks taken by clients of this package. Those of
// other clients are shown by [Store.Line] only, because their keys look like any others.
func (s *Store) Lines(ctx context.Context, prefix string) iter.Seq2[store.Line, error] {
	return func(yield func(store.Line, error) bool) {
		fail := func(err error) {
			yield(store.Line{}, s.wrapErr(fmt.Sprintf("read the locks that begin with %q", prefix), attempts.WithContextErr(ctx, err)))
		}
		names, err := s.names(ctx, prefix)
		if err != nil {
			fail(err)
			return
		}
		for chunk := range slices.Chunk(names, batchSize) {
			lines, err := s.readChunk(ctx, chunk)
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

// readChunk is readLines with the time limit of a call.
func (s *Store) readChunk(ctx context.Context, names []string) ([]store.Line, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, attempts.MaxDuration, errNoMajority)
	defer cancel()
	return s.readLines(ctx, names)
}

// names returns the sorted names in the masters' indexes that begin with prefix.
func (s *Store) names(ctx context.Context, prefix string) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, attempts.MaxDuration, errNoMajority)
	defer cancel()
	answers, err := s.readAll(ctx, namesScript, []string{s.keys.index()}, []string{prefix})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, a := range answers {
		of, err := a.reply.AsStrSlice()
		if err != nil {
			return nil, err
		}
		names = append(names, of...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// readAll runs a read-only script at all masters until a majority has answered or refused.
func (s *Store) readAll(ctx context.Context, script *rueidis.Lua, keys, args []string) (answers []answer, err error) {
	_, err = s.retry(ctx, func() error {
		answers, err = s.askMajority(ctx, readStragglerWait, script, keys, args)
		return err
	})
	return answers, err
}

// readLines reads the lines of the given names.
func (s *Store) readLines(ctx context.Context, names []string) ([]store.Line, error) {
	views, err := s.readViews(ctx, names)
	if err != nil {
		return nil, err
	}
	lines := make([]store.Line, len(names))
	for i, name := range names {
		lines[i] = s.line(name, views[i])
	}
	return lines, nil
}

// readViews returns, for each name, what at least a majority of the masters has.
func (s *Store) readViews(ctx context.Context, names []string) ([][]view, error) {
	var keys []string
	for _, name := range names {
		keys = append(keys, s.keys.lock(name), s.keys.fence(name))
	}
	answers, err := s.readAll(ctx, readScript, keys, nil)
	if err != nil {
		return nil, err
	}
	views := make([][]view, len(names))
	for _, a := range answers {
		seen, err := a.reply.ToArray()
		if err != nil || len(seen) != len(names) {
			return nil, errUnexpectedReply
		}
		for i := range names {
			v, err := parseView(seen[i])
			if err != nil {
				return nil, err
			}
			v.master = a.master
			views[i] = append(views[i], v)
		}
	}
	return views, nil
}

func parseView(m rueidis.RedisMessage) (view, error) {
	parts, err := m.ToArray()
	if err != nil || len(parts) != 3 {
		return view{}, errUnexpectedReply
	}
	ms, err := parts[1].AsInt64()
	if err != nil {
		return view{}, err
	}
	v := view{other: ms == -3, ttl: time.Duration(ms) * time.Millisecond}
	if !parts[0].IsNil() {
		v.there = true
		if v.value, err = parts[0].ToString(); err != nil {
			return view{}, err
		}
	}
	if !parts[2].IsNil() {
		v.fence, err = parts[2].ToString()
	}
	return v, err
}

// line combines the views of the masters into a line.
func (s *Store) line(name string, views []view) store.Line {
	l := store.Line{Name: name}
	for _, v := range views {
		switch {
		case v.other:
			l.Remarks = append(l.Remarks, fmt.Sprintf("at %s the key %q is in use for something else, so no client can lock there",
				v.master.addr, s.keys.lock(name)))
		case v.there && firstWith(views, v.value) == v.master:
			l = s.addHold(l, v.value, views)
		}
	}
	if len(views) < len(s.masters) {
		l.Remarks = append(l.Remarks, fmt.Sprintf("%d of %d masters did not answer: %s",
			len(s.masters)-len(views), len(s.masters), strings.Join(s.missingMasters(views), ", ")))
	}
	return l
}

// firstWith returns the first of the masters that have a value.
func firstWith(views []view, value string) *master {
	for _, v := range views {
		if v.there && v.value == value {
			return v.master
		}
	}
	return nil
}

// missingMasters returns the addresses of the masters without a view, and why.
func (s *Store) missingMasters(views []view) []string {
	var missing []string
	for _, m := range s.masters {
		if !slices.ContainsFunc(views, func(v view) bool { return v.master == m }) {
			why := m.connErr()
			if why == nil {
				why = errNoReply
			}
			missing = append(missing, fmt.Sprintf("%s: %v", m.addr, why))
		}
	}
	return missing
}

// addHold adds the hold with the given value to the line if a majority has it; otherwise it adds a
// remark.
func (s *Store) addHold(l store.Line, text string, views []view) store.Line {
	id, info, ours := decode(text)
	e := store.Entry{Mode: line.Exclusive, Session: info.Session, Foreign: !ours, Owner: info.Owner}
	var left []time.Duration
	for _, v := range views {
		if !v.there || v.value != text {
			continue
		}
		if v.ttl < 0 {
			v.ttl = maxDetached
		}
		left = append(left, v.ttl)
		e.Order = max(e.Order, orderOf(v.fence, id))
	}
	slices.Sort(left)
	slices.Reverse(left)
	if len(left) < s.quorum {
		ends := fmt.Sprintf("it ends there within %v", left[0].Round(time.Millisecond))
		if left[0] == maxDetached {
			ends = "it never ends: delete the key there"
		}
		l.Remarks = append(l.Remarks, fmt.Sprintf("%d of %d masters, no majority, have an entry of session %s; %s",
			len(left), len(s.masters), e.Session, ends))
		return l
	}
	if len(left) < len(views) {
		l.Remarks = append(l.Remarks, fmt.Sprintf("session %s is at %d of %d masters", e.Session, len(left), len(s.masters)))
	}
	if left[s.quorum-1] != maxDetached {
		e.Remaining = left[s.quorum-1]
	} else if !ours {
		l.Remarks = append(l.Remarks, fmt.Sprintf("session %s, of another client, never ends by itself", e.Session))
	}
	e.Admitted = !ours || e.Order != 0
	l.Entries = append(l.Entries, e)
	return l
}

// Break implements [store.Store]. Entries of other clients have no order and cannot be broken:
// delete their keys at the masters instead.
func (s *Store) Break(ctx context.Context, name string, order uint64) (store.Entry, error) {
	op := "break the entry"
	within, cancel := context.WithTimeoutCause(ctx, attempts.MaxDuration, errNoMajority)
	defer cancel()
	views, err := s.readViews(within, []string{name})
	if err != nil {
		return store.Entry{}, s.wrapErr(op, attempts.WithContextErr(ctx, err))
	}
	l := s.line(name, views[0])
	gone := fmt.Errorf("%s: %s: %w: %s", s, op, store.ErrGone,
		strings.Join(append([]string{fmt.Sprintf("no entry with order %d", order)}, l.Remarks...), "; "))
	if order == 0 || len(l.Entries) == 0 || l.Entries[0].Order != order {
		return store.Entry{}, gone
	}
	d := newRemoval(s)
	id := s.majorityID(views[0])
	for _, m := range s.masters {
		s.removeAt(m, name, id, false, true, d)
	}
	found, err := d.wait(within, s)
	switch {
	case err != nil:
		return store.Entry{}, s.wrapErr(op, attempts.WithContextErr(ctx, err))
	case found == wasGone: // otherwise it was there when it was read, and is gone now
		return store.Entry{}, gone
	}
	return l.Entries[0], nil
}

// majorityID returns the id of the entry that a majority has. It panics if there is none.
func (s *Store) majorityID(views []view) string {
	for _, v := range views {
		n := 0
		for _, other := range views {
			if other.there && other.value == v.value {
				n++
			}
		}
		if v.there && n >= s.quorum {
			id, _, _ := decode(v.value)
			return id
		}
	}
	panic(errors.New("redlockstore: there is an entry, and no majority has it"))
}
