package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store"
)

// MaxTogether is how many locks a client can take in one step. The server does nothing else meanwhile.
const MaxTogether = 1000

// setMark is part of the ids of entries that joined several lines in one step. The script never lets
// others pass such an entry.
const setMark = ".set"

// enqueueAll is [store.Capabilities.EnqueueAll]. One MULTI … EXEC runs the script for each line. If it is
// refused in one line, the entries in others are removed again; so a failed try may be seen for a moment.
func (s *Store) enqueueAll(ctx context.Context, opened store.Session, reqs []store.Request) ([]store.Ticket, error) {
	op := "join several lines"
	se, ok := opened.(*session)
	switch {
	case !ok || se.store != s:
		return nil, fmt.Errorf("%s: %s: session %s was not opened by this store", s, op, opened.ID())
	case len(reqs) > MaxTogether:
		return nil, fmt.Errorf("%s: %s: a client can take %d locks in one step, not %d: take fewer at once, "+
			"or one lock for several of them", s, op, MaxTogether, len(reqs))
	}
	entries := make([]*entry, 0, len(reqs))
	for _, req := range reqs {
		e, err := se.newEntry(req, setMark)
		if err != nil {
			return nil, s.wrapErr(op, err)
		}
		entries = append(entries, e)
	}
	for i, e := range entries {
		if err := se.add(e); err != nil {
			se.undoJoin(ctx, entries[:i])
			return nil, err
		}
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	if err := se.join(bounded, entries); err != nil {
		se.undoJoin(bounded, entries)
		if held, ok := errors.AsType[*store.HeldError](err); ok {
			return nil, held
		}
		if kind, ok := errors.AsType[*store.KindError](err); ok {
			return nil, kind
		}
		return nil, se.wrapErr(ctx, op, err)
	}
	tickets := make([]store.Ticket, 0, len(entries))
	for _, e := range entries {
		tickets = append(tickets, e)
	}
	return tickets, nil
}

// undoJoin ends a join of several entries that has failed. It returns when they are removed, or when ctx
// ends; then that continues in the background.
func (se *session) undoJoin(ctx context.Context, entries []*entry) {
	var in []*entry
	for _, e := range entries {
		e.silence()
		if e.mayBeIn() {
			se.markLeaving(e)
			in = append(in, e)
		} else {
			se.remove(e)
		}
	}
	if len(in) == 0 {
		return
	}
	done := make(chan struct{})
	se.life.Start(func() {
		defer close(done)
		var leaving sync.WaitGroup
		for _, e := range in {
			leaving.Go(e.removeUntilDone)
		}
		leaving.Wait()
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// evalTogether is evalAll for operations that the server carries out in one step.
func (s *server) evalTogether(ctx context.Context, replicas int, operations []operation) []reply {
	requests := make([]request, 0, len(operations))
	for _, o := range operations {
		requests = append(requests, s.evalshaRequest(o))
	}
	replies := s.doTogether(ctx, replicas, requests)
	unknown := func(r reply) bool {
		reply, ok := rueidis.IsRedisErr(r.err)
		return ok && reply.IsNoScript()
	}
	if slices.ContainsFunc(replies, unknown) { // then none was carried out
		requests[0] = s.evalRequest(operations[0]) // loads the script for the others
		replies = s.doTogether(ctx, replicas, requests)
	}
	return replies
}

// doTogether is do for requests that the server carries out in one step.
func (s *server) doTogether(ctx context.Context, replicas int, requests []request) []reply {
	all, err := call(ctx, s.calls, func() []reply { return s.sendTogether(ctx, replicas, requests) })
	if err != nil {
		return failures(len(requests), err)
	}
	s.leaveReplica(all)
	return all
}

// sendTogether sends requests in a transaction, on a connection of their own: on a shared one, requests
// of others would become part of it.
func (s *server) sendTogether(ctx context.Context, replicas int, requests []request) []reply {
	var all []reply
	err := s.cli.Dedicated(func(c rueidis.DedicatedClient) error {
		commands := append([]rueidis.Completed{c.B().Multi().Build()}, build(c.B(), requests)...)
		queued := replies(c.DoMulti(ctx, append(commands, c.B().Exec().Build())...))
		if err := firstError(queued); err != nil { // why a request was refused comes before the error of EXEC
			c.Close() // the transaction may still be open
			return err
		}
		results, err := queued[len(queued)-1].ToArray()
		if err == nil && len(results) != len(requests) {
			err = fmt.Errorf("unexpected reply to EXEC: %d results for %d requests", len(results), len(requests))
		}
		if err != nil {
			c.Close()
			return err
		}
		for _, m := range results {
			all = append(all, reply{m, m.Error()})
		}
		if replicas == 0 || firstError(all) != nil {
			return nil
		}
		return s.awaitReplicas(ctx, c, replicas)
	})
	if err != nil {
		return failures(len(requests), err)
	}
	return all
}
