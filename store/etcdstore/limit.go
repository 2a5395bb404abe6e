package etcdstore

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store/internal/attempts"
)

// setLimit is [store.Capabilities.SetLimit]. The request names the revision that it replaces, so an
// attempt that is carried out late, after another change, has no effect. For the same reason a limit that
// is removed leaves a key with the value 0: after a deletion, an old attempt to put the first limit could
// not be told from a new one.
func (s *Store) setLimit(ctx context.Context, name string, limit int) error {
	op := "limit the slots"
	bounded, cancel := context.WithTimeoutCause(ctx, attempts.MaxDuration, errNoAnswer)
	defer cancel()
	if err := s.keys.check(name); err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	key, text := s.keys.limit(name), strconv.Itoa(limit)
	get := []clientv3.Op{clientv3.OpGet(key)}
	resp, err := s.commit(bounded, nil, get, nil)
	for {
		if err != nil {
			return s.wrapErr(op, endedBy(ctx, err))
		}
		seen, last := int64(0), "0"
		if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
			seen, last = kvs[0].ModRevision, string(kvs[0].Value)
		}
		if last == text {
			return nil // also by an attempt that was not answered
		}
		unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", seen)
		resp, err = s.commit(bounded, []clientv3.Cmp{unchanged}, []clientv3.Op{clientv3.OpPut(key, text)}, get)
		if err == nil && resp.Succeeded {
			return nil
		}
	}
}

// readLimit reads the operator's limit with a linearizable read: zero if there is none.
func (s *Store) readLimit(ctx context.Context, name string) (limit int, at int64, err error) {
	var resp *clientv3.GetResponse
	err = s.attempt(ctx, func(ctx context.Context) (err error) {
		resp, err = s.cli.Get(ctx, s.keys.limit(name))
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	return parseLimit(resp.Kvs), resp.Header.Revision, nil
}

// limit returns the key of the operator's limit of a line. It begins like those of the line's claims, so
// one read shows all of them, and no number is claimed while a limit is set: see [entry.putClaim].
func (k keys) limit(name string) string { return k.claims(name) + limitKey }

const limitKey = "limit"

// limits returns the prefix of the keys of the limits of all lines whose name begins with prefix. Keys of
// claims begin with it too.
func (k keys) limits(prefix string) string { return k.prefix + slotKeys + prefix }

// limitsAmong reports whether the keys of the limits of lines whose name begins with prefix also begin like those of
// their entries: for "", and for prefixes like ".s".
func (k keys) limitsAmong(prefix string) bool {
	return strings.HasPrefix(k.limits(prefix), k.prefix+prefix)
}

// limitName returns the name of the line whose limit a key has.
func (k keys) limitName(key []byte) (name string, ok bool) {
	rest, ok1 := strings.CutPrefix(string(key), k.prefix+slotKeys)
	name, ok2 := strings.CutSuffix(rest, "//"+limitKey)
	return name, ok1 && ok2
}

// parseLimit returns the limit in the read of its key; zero if there is none.
func parseLimit(kvs []*mvccpb.KeyValue) int {
	if len(kvs) == 0 {
		return 0
	}
	limit, err := strconv.Atoi(string(kvs[0].Value))
	if err != nil {
		return 0 // not by Stile
	}
	return limit
}

// followLimitLocked starts the goroutine that follows the limit of the line for the slots that wait.
func (w *lineWatch) followLimitLocked() {
	if !w.followingLimit {
		w.followingLimit = true
		w.prepareLocked()
		w.session.life.Start(w.runLimit)
	}
}

// runLimit follows the limit until the lineWatch is dropped.
func (w *lineWatch) runLimit() {
	_ = attempts.KeepUp(w.ctx, firstPause, func() error {
		err := w.watchLimit(w.ctx)
		if w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		w.session.store.logger.LogAttrs(w.ctx, slog.LevelDebug, "watch of a limit ended; opening another",
			slog.String("lock", w.name), slog.Any("error", err))
		return nil
	})
}

// watchLimit watches the limit until the watch ends. The reads cover what happened before the watch
// started, and what it may have missed.
func (w *lineWatch) watchLimit(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := w.session.store
	events, err := s.openWatch(ctx, cancel, s.keys.limit(w.name))
	if err != nil {
		return err
	}
	ticker := time.NewTicker(s.times.resyncInterval)
	defer ticker.Stop()
	for read := true; ; {
		if read {
			limit, at, err := s.readLimit(ctx, w.name)
			if err != nil {
				return err
			}
			w.setLimit(limit, at)
		}
		select {
		case resp, ok := <-events:
			if !ok || resp.Err() != nil {
				return resp.Err()
			}
			read = true // also if nothing waits: an entry that is being inserted may have read the old limit
		case <-ticker.C:
			read = w.ahead() > 0
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// setLimit applies the limit that was read at a revision to the entries that wait.
func (w *lineWatch) setLimit(limit int, at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at <= w.limitAt {
		return
	}
	w.limit, w.limitAt = limit, at
	for e := range w.mine {
		if e.state == inLine && e.tracker != nil {
			e.tracker.SetLimit(limit)
			w.deliverLocked(e)
		}
	}
}

// noteLimitLocked records the limit that was read when an entry joined, if it is the newest.
func (w *lineWatch) noteLimitLocked(limit int, at int64) {
	if at > w.limitAt {
		w.limit, w.limitAt = limit, at
	}
}
