package zkstore

import (
	"context"
	"errors"
	"strconv"

	"github.com/go-zookeeper/zk"
)

// limitNode is the node, in the directory of a line, with the operator's limit of slots. It is the
// directory of no name, because no name is written like that.
const limitNode = string(escape) + "limit" + otherSuffix

// setLimit is [store.Capabilities.SetLimit]. The node is not ephemeral. The requests name the version
// that they replace.
func (s *Store) setLimit(ctx context.Context, name string, limit int) error {
	dir, data := s.paths.dir(name), []byte(strconv.Itoa(limit))
	path := join(dir, limitNode)
	return s.withReader(ctx, "limit the slots", func(ctx context.Context, c *client) error {
		if err := c.sync(ctx, path); err != nil {
			return err
		}
		for {
			last, version, err := c.limitAt(ctx, path)
			if err != nil || last == limit {
				return err // nil also if an attempt that was not answered has set it
			}
			_, err = attempt(ctx, c, func(int) (struct{}, error) {
				var err error
				switch {
				case version < 0:
					_, err = c.Create(path, data, zk.FlagPersistent, s.acl)
				case limit == 0:
					err = c.Delete(path, version)
				default:
					_, err = c.Set(path, data, version)
				}
				return struct{}{}, err
			})
			switch {
			case errors.Is(err, zk.ErrNoNode) && version < 0:
				err = s.makeDir(ctx, c, dir)
			case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrNodeExists), errors.Is(err, zk.ErrBadVersion):
				continue // changed meanwhile, perhaps by an attempt that was not answered
			case err == nil:
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
}

// limitAt reads a limit, and the version of its node: zero and -1 if there is none.
func (c *client) limitAt(ctx context.Context, path string) (limit int, version int32, err error) {
	type reading struct {
		limit   int
		version int32
	}
	r, err := attempt(ctx, c, func(int) (reading, error) {
		data, stat, err := c.Get(path)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			return reading{version: -1}, nil
		case err != nil:
			return reading{}, err
		}
		limit, err := strconv.Atoi(string(data))
		if err != nil {
			limit = 0 // not by Stile
		}
		return reading{limit, stat.Version}, nil
	})
	return r.limit, r.version, err
}

// readLimit reads the limit of the entry's line, if it concerns the entry. Reads of a session are never
// older than its last write. So if the entry is in its line, the limit is one that has applied since.
func (e *entry) readLimit(ctx context.Context) (int, error) {
	if e.req.Mode.Slots() == 0 {
		return 0, nil
	}
	limit, _, err := e.session.client.limitAt(ctx, join(e.line.dir, limitNode))
	return limit, err
}

// limitChanged handles that the limit of a line has changed.
func (se *session) limitChanged(dir string) {
	if w := se.lineOf(dir); w != nil {
		w.mu.Lock()
		w.limitStale = true
		w.mu.Unlock()
		w.wake()
	}
}

// followLimit reads the limit of the line if slots wait and it may have changed, and watches it.
func (w *lineWatch) followLimit() error {
	w.mu.Lock()
	wanted := false
	for e := range w.mine {
		wanted = wanted || e.state == inLine && e.req.Mode.Slots() > 0 && e.blocking() > 0
	}
	if !wanted || !w.limitStale {
		w.mu.Unlock()
		return nil
	}
	w.limitStale = false
	w.mu.Unlock()

	path := join(w.dir, limitNode)
	limit, err := withSem(w.session, w.session.readings, func() (int, error) {
		// A watch that can also be set if there is no node. It comes first: a later change is an event.
		if _, _, err := w.session.client.Exists(watched(path)); err != nil {
			return 0, err
		}
		limit, _, err := w.session.client.limitAt(w.ctx, path)
		return limit, err
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.limitStale = true
		return err
	}
	w.limit = limit
	for e := range w.mine {
		if e.state == inLine && !e.delivery.Admitted() {
			w.advanceLocked(e, true)
		}
	}
	return nil
}
