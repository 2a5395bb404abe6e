package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// setRecord is [store.Extensions.SetRecord]. The record is a key of its own, which does not expire. The
// entry's id is never reused, so a late request writes nothing once the entry is gone. The calls are
// numbered, so a request that is carried out after its repetition, or after one of a later call, writes
// nothing either. Like an entry, a record counts when enough replicas have it.
func (e *entry) setRecord(ctx context.Context, value []byte) error {
	se := e.session
	op := "write the record"
	if e.over() {
		return fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	server := se.store.server
	o := operation{line: e.line, op: "setrecord", args: []string{e.id, strconv.FormatInt(e.records.Add(1), 10), string(value)}}
	var done int64
	unanswered := false
	err := retry(bounded, func(ctx context.Context) (err error) {
		done, err = server.evalAll(ctx, server.replicas, nil, []operation{o})[0].number()
		unanswered = unanswered || err != nil && !notExecuted(err)
		return err
	})
	switch {
	case err != nil:
		return se.wrapErr(ctx, op, err)
	case done == 0 && unanswered:
		return fmt.Errorf("%s: %s: %w", se.store, op, errUnanswered)
	case done == 0:
		return fmt.Errorf("%s: %s: %w", se.store, op, errRemovedByOther)
	}
	return nil
}

// record is [store.Capabilities.Record].
func (s *Store) record(ctx context.Context, name string) ([]byte, error) {
	var text string
	err := retryBounded(ctx, func(ctx context.Context) (err error) {
		r := s.server.eval(ctx, s.server.keys.forLine(name), "record", strconv.Itoa(maxWriterBytes+store.MaxRecordBytes+1))
		if r.err != nil {
			return r.err
		}
		text, err = r.ToString()
		return err
	})
	if err != nil {
		return nil, s.wrapErr("read the record", attempts.WithContextErr(ctx, err))
	}
	return []byte(parseRecord(text)), nil
}

// maxWriterBytes bounds what comes before the record in its key: the id of the entry and the number of
// the call that has written it.
const maxWriterBytes = 100

// parseRecord returns the record from the value of its key.
func parseRecord(text string) string {
	parts := strings.SplitN(text, " ", 3)
	if len(parts) < 3 {
		return "" // there is none, or it is not by Stile
	}
	return parts[2]
}
