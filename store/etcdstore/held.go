package etcdstore

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"reflect"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/work"
)

// watchHeld watches the key of an entry that has held its lock for heldWatchDelay, if it still
// stands. The watch of the line filters out puts, so it does not show that the key was overwritten.
func (w *lineWatch) watchHeld(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.state == inLine {
		e.heldWatchTimer = nil
		w.session.store.heldKeys.add(e)
	}
}

// keyWatches watches the keys of entries that hold their locks, for all sessions of a store, on one
// stream. A client may hold thousands of locks, and each watch of the etcd client takes two
// goroutines and ten kilobytes. So this uses gRPC directly.
//
// A watch starts at the present, and the read after its start covers what happened before. If the
// stream ends, all watches are started on another one. Two goroutines run while there are any watches: one
// receives events, the other sends requests and reads keys.
type keyWatches struct {
	store *Store
	wake  work.Signal

	// mu is locked after the mutex of a lineWatch.
	mu      sync.Mutex
	entries map[int64]*entry // those whose keys are watched, by the id of the watch
	lastID  int64
	running bool
	close   context.CancelCauseFunc // ends the stream; nil if there is none

	// Ids of watches, by what comes next.
	changed   []int64 // the request to start, if the watch is in entries, or else to stop
	requested []int64 // the server's answer, in the order of the requests
	started   []int64 // the read of the key
	refused   []int64 // another attempt: the server has refused or ended the watch
	unread    []int64 // another attempt to read the key
}

func newKeyWatches(s *Store) *keyWatches {
	return &keyWatches{store: s, entries: make(map[int64]*entry), wake: work.NewSignal()}
}

// errNoKeys ends a stream on which nothing is watched.
var errNoKeys = errors.New("no key is watched any more")

// add watches the key of an entry until remove is called.
func (k *keyWatches) add(e *entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.addLocked(e)
	k.wake.Set()
	if !k.running {
		k.running = true
		go k.run()
	}
}

func (k *keyWatches) addLocked(e *entry) {
	k.lastID++
	e.keyWatch = k.lastID
	k.entries[e.keyWatch] = e
	k.changed = append(k.changed, e.keyWatch)
}

// remove ends the watch of an entry's key, if there is one.
func (k *keyWatches) remove(e *entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e.keyWatch == 0 {
		return
	}
	delete(k.entries, e.keyWatch)
	k.changed = append(k.changed, e.keyWatch)
	k.wake.Set()
	e.keyWatch = 0
	if len(k.entries) == 0 && k.close != nil {
		k.close(errNoKeys)
	}
}

// run watches keys until there are none.
func (k *keyWatches) run() {
	_ = attempts.KeepUp(context.Background(), firstPause, func() error {
		for {
			ctx, end := context.WithCancelCause(clientv3.WithRequireLeader(context.Background()))
			if !k.begin(end) {
				end(nil)
				return errNoKeys
			}
			k.follow(ctx, end)
			if err := context.Cause(ctx); err != errNoKeys {
				k.store.logger.LogAttrs(ctx, slog.LevelDebug, "watches of held entries ended; opening others", slog.Any("error", err))
				return nil
			}
		}
	})
}

// begin requests all watches anew, for another stream. It reports false if there are none.
func (k *keyWatches) begin(end context.CancelCauseFunc) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changed = slices.Collect(maps.Keys(k.entries))
	k.requested, k.started, k.refused, k.unread = nil, nil, nil, nil
	k.running, k.close = len(k.entries) > 0, end
	return k.running
}

// A watchStream is what keyWatches uses of a [pb.Watch_WatchClient].
type watchStream interface {
	Send(*pb.WatchRequest) error
	Recv() (*pb.WatchResponse, error)
}

// open opens a stream. If a program has replaced the client's Watcher, such as by that of etcd's package
// namespace, it must see all watches, so the stream is made of watches of the client.
func (k *keyWatches) open(ctx context.Context) (watchStream, error) {
	cli := k.store.cli
	if reflect.TypeOf(cli.Watcher) != reflect.TypeOf(clientv3.NewWatcher(cli)) {
		return &clientStream{ctx: ctx, watcher: cli.Watcher, responses: make(chan *pb.WatchResponse), cancel: make(map[int64]context.CancelFunc)}, nil
	}
	return pb.NewWatchClient(cli.ActiveConnection()).Watch(ctx, grpc.MaxCallRecvMsgSize(math.MaxInt32))
}

// A clientStream is a watchStream that uses one watch of the etcd client for each watch.
type clientStream struct {
	ctx       context.Context
	watcher   clientv3.Watcher
	responses chan *pb.WatchResponse
	cancel    map[int64]context.CancelFunc // used only by Send
}

func (s *clientStream) Send(r *pb.WatchRequest) error {
	if c := r.GetCancelRequest(); c != nil {
		if cancel := s.cancel[c.WatchId]; cancel != nil {
			cancel()
			delete(s.cancel, c.WatchId)
		}
		return nil
	}
	c := r.GetCreateRequest()
	ctx, cancel := context.WithCancel(s.ctx)
	s.cancel[c.WatchId] = cancel
	go func() {
		defer cancel()
		err := errWatchEnded
		for resp := range s.watcher.Watch(ctx, string(c.Key), clientv3.WithCreatedNotify()) {
			if err = resp.Err(); err != nil {
				break
			}
			err = errWatchEnded
			s.respond(ctx, &pb.WatchResponse{Header: resp.Header, WatchId: c.WatchId, Created: resp.Created, Events: resp.Events})
		}
		s.respond(ctx, &pb.WatchResponse{WatchId: c.WatchId, Canceled: true, CancelReason: err.Error()})
	}()
	return nil
}

func (s *clientStream) respond(ctx context.Context, r *pb.WatchResponse) {
	select {
	case s.responses <- r:
	case <-ctx.Done():
	}
}

func (s *clientStream) Recv() (*pb.WatchResponse, error) {
	select {
	case r := <-s.responses:
		return r, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// follow watches the keys on one stream until ctx ends, and ends it when the stream does.
func (k *keyWatches) follow(ctx context.Context, end context.CancelCauseFunc) {
	stream, err := k.open(ctx)
	if err != nil {
		end(err)
		return
	}
	var receiver sync.WaitGroup
	receiver.Go(func() { end(k.receive(stream)) })
	defer receiver.Wait()
	var retry <-chan time.Time
	for {
		for _, r := range k.takeRequests() {
			if err := stream.Send(r); err != nil {
				return // the stream is over: Recv returns the reason
			}
		}
		k.readStarted(ctx)
		if retry == nil && k.anyFailed() {
			retry = time.After(attempts.MaxPause)
		}
		select {
		case <-k.wake:
		case <-retry:
			retry = nil
			k.retryFailed()
		case <-ctx.Done():
			return
		}
	}
}

// takeRequests returns the requests that are to be sent.
func (k *keyWatches) takeRequests() []*pb.WatchRequest {
	k.mu.Lock()
	defer k.mu.Unlock()
	requests := make([]*pb.WatchRequest, 0, len(k.changed))
	for _, id := range k.changed {
		if e := k.entries[id]; e != nil {
			create := &pb.WatchCreateRequest{Key: []byte(e.key), WatchId: id}
			requests = append(requests, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
			k.requested = append(k.requested, id)
		} else {
			cancel := &pb.WatchCancelRequest{WatchId: id}
			requests = append(requests, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: cancel}})
		}
	}
	k.changed = nil
	return requests
}

// receive handles responses until the stream ends.
func (k *keyWatches) receive(stream watchStream) error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		e := k.noteResponse(resp)
		if e == nil {
			continue
		}
		e.session.noteRevision(resp.Header)
		for _, ev := range resp.Events {
			if string(ev.Kv.Key) == e.key { // an etcd grpc-proxy chooses other ids for watches
				e.line.handleKeyEvent(e, ev)
			}
		}
	}
}

// noteResponse notes what a response says about its watch, and returns the entry that it concerns;
// nil if that watch was removed.
func (k *keyWatches) noteResponse(resp *pb.WatchResponse) *entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := resp.WatchId
	if resp.Created && resp.Canceled && len(k.requested) > 0 {
		id = k.requested[0] // a refusal has no watch id, but the server answers in order
	}
	if i := slices.Index(k.requested, id); resp.Created && i >= 0 {
		k.requested[i] = k.requested[0] // i is zero, except on a clientStream
		k.requested = k.requested[1:]
	}
	e := k.entries[id]
	switch {
	case resp.Canceled && staleToken(resp.CancelReason):
		k.close(errors.New(resp.CancelReason)) // the next stream has another token
	case e == nil:
	case resp.Canceled:
		k.store.logger.LogAttrs(context.Background(), slog.LevelDebug, "watch of a held entry ended; opening another",
			slog.String("lock", e.req.Name), slog.String("reason", resp.CancelReason))
		k.refused = append(k.refused, id)
		k.wake.Set()
	case resp.Created:
		k.started = append(k.started, id)
		k.wake.Set()
	}
	return e
}

// staleToken reports whether a server has refused a watch because of the token that its stream was opened
// with. The etcd client gets a new token for each stream, and the server checks it at each watch.
func staleToken(reason string) bool {
	return reason == rpctypes.ErrGRPCInvalidAuthToken.Error() || reason == rpctypes.ErrGRPCAuthOldRevision.Error() ||
		reason == rpctypes.ErrGRPCUserEmpty.Error()
}

// readStarted reads the keys whose watches have started.
func (k *keyWatches) readStarted(ctx context.Context) {
	k.mu.Lock()
	started := k.started
	k.started = nil
	k.mu.Unlock()
	for batch := range slices.Chunk(started, maxReadsPerTxn) {
		if k.read(ctx, batch) == nil {
			continue
		}
		for i, id := range batch { // one of them may be the reason
			if k.read(ctx, batch[i:i+1]) != nil {
				k.mu.Lock()
				k.unread = append(k.unread, id)
				k.mu.Unlock()
			}
		}
	}
}

// read reads the keys of watches with a linearizable read.
func (k *keyWatches) read(ctx context.Context, ids []int64) error {
	var watched []*entry
	var before []int64 // the revisions that their sessions have seen
	var gets []clientv3.Op
	k.mu.Lock()
	for _, id := range ids {
		if e := k.entries[id]; e != nil {
			watched, before = append(watched, e), append(before, e.session.seenRevision.Load())
			gets = append(gets, clientv3.OpGet(e.key))
		}
	}
	k.mu.Unlock()
	if len(watched) == 0 {
		return nil
	}
	var resp *clientv3.TxnResponse
	// Urgent, because no watch is requested before it is answered: a holder would learn late that its entry is gone.
	err := k.store.attemptUrgent(ctx, func(ctx context.Context) (err error) {
		resp, err = k.store.cli.Txn(ctx).Then(gets...).Commit()
		return err
	})
	if err != nil {
		return err
	}
	for i, e := range watched {
		if e.session.checkRevision(before[i], resp.Header) != nil {
			continue // the session is lost, and the entry with it
		}
		e.line.handleKey(e, firstKey(resp.Responses[i]), resp.Header.Revision)
		e.line.markKeyWatched(e)
	}
	return nil
}

func (k *keyWatches) anyFailed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.refused)+len(k.unread) > 0
}

// retryFailed makes the watches that were refused start again, and the keys that could not be read be
// read again.
func (k *keyWatches) retryFailed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range k.refused {
		if e := k.entries[id]; e != nil {
			// After a compaction the server still has the old watch: it must be stopped, and its id cannot be used.
			delete(k.entries, id)
			k.changed = append(k.changed, id)
			k.addLocked(e)
		}
	}
	k.started = append(k.started, k.unread...)
	k.refused, k.unread = nil, nil
}

// handleKeyEvent handles an event of the entry's key.
func (w *lineWatch) handleKeyEvent(e *entry, ev *clientv3.Event) {
	if ev.Type == clientv3.EventTypeDelete {
		w.handleKey(e, nil, ev.Kv.ModRevision)
	} else {
		w.handleKey(e, ev.Kv, ev.Kv.ModRevision)
	}
}

// handleKey handles the state of the entry's key at a revision; kv is nil if the key did not exist.
func (w *lineWatch) handleKey(e *entry, kv *mvccpb.KeyValue, at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.state != inLine || uint64(at) < e.order:
	case kv == nil || uint64(kv.CreateRevision) != e.order:
		w.goneLocked(e, w.evictedErr())
	case kv.Lease != int64(w.session.lease):
		w.overwrittenLocked(e)
	}
}

// markKeyWatched records that the watch of the entry's key has started.
func (w *lineWatch) markKeyWatched(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.keyWatched = true
}
