package etcdstore

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

// txn is a transaction that has not been sent.
type txn struct {
	conditions      []clientv3.Cmp
	then, otherwise []clientv3.Op

	canWait bool // it is not urgent: a batcher sends it at once only if nothing is under way, and else with others
	// enter waits until the transaction may be sent alone, and returns a function to call afterwards. It may be nil.
	enter func(context.Context) (leave func(), err error)
}

// commit sends the transaction alone.
func (t txn) commit(ctx context.Context, cli *clientv3.Client) (*clientv3.TxnResponse, error) {
	if t.enter != nil {
		leave, err := t.enter(ctx)
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	return cli.Txn(ctx).If(t.conditions...).Then(t.then...).Else(t.otherwise...).Commit()
}

// createdAt returns the condition that a key has the given create revision; zero if it is not there. It costs
// half of what [clientv3.Compare] does, which copies the condition that it is given.
func createdAt(key string, revision int64) clientv3.Cmp {
	var c clientv3.Cmp
	compare := c.GetCompare()
	compare.Key, compare.Result, compare.Target = []byte(key), pb.Compare_EQUAL, pb.Compare_CREATE
	compare.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: revision}
	return c
}

// bytes returns about how large the transaction is in a request.
func (t txn) bytes() int {
	const keysAndReads = 512
	n := keysAndReads
	for _, op := range t.then {
		n += len(op.KeyBytes()) + len(op.ValueBytes())
	}
	return n
}

const (
	// maxUnderWay is how many transactions may be under way before the next ones wait. While they are few,
	// most of their time is that of the network and the disks, and waiting for a batch would gain nothing.
	// With more, the processors are the limit, and batches relieve them.
	maxUnderWay = 4
	// maxBatch is the largest number of requests in a batch. A server allows 128 operations by default
	// (--max-txn-ops). It counts the requests and the operations of the largest one: at most 104.
	maxBatch = 100
	// maxBatchBytes is about the largest size of a batch. A server allows requests of 1.5 MiB by default
	// (--max-request-bytes).
	maxBatchBytes = 512 << 10
)

// A batcher sends the requests with which the entries of one session join and leave their lines, or change their
// owner or mode. Each is a transaction. While maxUnderWay transactions are under way, further requests wait until
// one of those is answered, but not longer than batchDelay. Then all that wait are sent in one transaction, the
// batch, in which they are nested. That costs the servers and this process much less than sending them one by one.
//
// A request that can wait, like the change of an owner, waits while any transaction is under way. So a burst of them is
// sent in a few batches, and hardly makes others wait.
//
// Three rules keep the outcome of a request what it would be alone:
//
//   - No lock name is in a batch twice: a request is sent alone if another one for its lock waits. etcd
//     evaluates the conditions of all requests before the changes of any, and gives all changes one revision:
//     two entries of one line would have the same order.
//   - Each request keeps its own conditions. So a late batch does no more than its requests would do if each
//     were late.
//   - If the batch was refused, the same attempt sends each request alone. Otherwise, if the batch has failed,
//     the outcome is unknown: the attempt fails, and the next one is sent alone.
type batcher struct {
	cli    *clientv3.Client
	logger *slog.Logger
	delay  time.Duration // times.batchDelay

	mu       sync.Mutex
	limit    int             // the largest number of requests in a batch; less than maxBatch after a refusal
	underWay int             // transactions under way, single ones and batches
	queue    []*pending      // requests that wait, the oldest first
	names    map[string]bool // the names in the queue; none is there twice
	overdue  *time.Timer     // sends a batch; running if requests wait
}

func newBatcher(cli *clientv3.Client, delay time.Duration, logger *slog.Logger) *batcher {
	b := &batcher{cli: cli, logger: logger, delay: delay, limit: maxBatch, names: make(map[string]bool)}
	b.overdue = time.AfterFunc(delay, func() {
		for next := b.another(); next != nil; next = b.another() {
			go b.run(next)
		}
	})
	b.overdue.Stop()
	return b
}

// pending is a request that waits for its batch, or is under way in it.
type pending struct {
	ctx  context.Context
	name string // of the lock
	txn  txn

	batch *batch // nil while it waits; guarded by the batcher's mutex

	answered chan struct{} // closed when the fields below are set
	resp     *clientv3.TxnResponse
	err      error
	alone    bool // the batch was refused: the request must be sent alone
}

// batch is the requests of one transaction.
type batch struct {
	requests []*pending
	waiting  int                // how many of them wait for the answer; guarded by the batcher's mutex
	cancel   context.CancelFunc // guarded by the batcher's mutex; nil before the batch is sent
}

// notSentError says that the context ended before the request was sent.
type notSentError struct{ error }

func (e notSentError) Unwrap() error { return e.error }

// commit sends a request that concerns the line of one lock, alone or in a batch. If ctx ends before the
// answer, outcomeUnknown tells by the error whether the request may have been sent.
func (b *batcher) commit(ctx context.Context, name string, t txn) (*clientv3.TxnResponse, error) {
	p := b.enter(ctx, name, t)
	if p == nil {
		defer b.done()
		return t.commit(ctx, b.cli)
	}
	select {
	case <-p.answered:
	case <-ctx.Done():
		if err := b.abandon(p); err != nil {
			return nil, err
		}
	}
	if p.alone {
		return t.commit(ctx, b.cli)
	}
	return p.resp, p.err
}

// enter returns the request, which will be answered. It returns nil if the caller must send the request
// itself, and call done afterwards.
func (b *batcher) enter(ctx context.Context, name string, t txn) *pending {
	b.mu.Lock()
	defer b.mu.Unlock()
	// Requests for one lock, like those for the slots of a semaphore, would need a batch each, one after the other.
	alone := b.names[name]
	places := maxUnderWay
	if t.canWait {
		places = 1
	}
	if b.underWay < places || b.limit == 1 || alone {
		b.underWay++
		return nil
	}
	p := &pending{ctx: ctx, name: name, txn: t, answered: make(chan struct{})}
	if len(b.queue) == 0 {
		b.overdue.Reset(b.delay)
	}
	b.queue, b.names[name] = append(b.queue, p), true
	return p
}

// done is called when a request that was sent alone is answered.
func (b *batcher) done() {
	if next := b.next(); next != nil {
		go b.run(next)
	}
}

// run sends a batch, unless it is nil, and others after it as long as requests wait.
func (b *batcher) run(next *batch) {
	for ; next != nil; next = b.next() {
		b.send(next)
	}
}

// next is called when a transaction is answered. It returns the batch to send in its place, or nil if no
// request waits or more than maxUnderWay transactions are still under way.
func (b *batcher) next() *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 || b.underWay > maxUnderWay {
		b.underWay--
		return nil
	}
	return b.takeLocked()
}

// another returns a batch to send although none of the transactions under way is answered, or nil if no
// request waits.
func (b *batcher) another() *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return nil
	}
	b.underWay++
	return b.takeLocked()
}

// takeLocked takes a batch from the queue, which is not empty.
func (b *batcher) takeLocked() *batch {
	n, size := 0, 0
	for n < min(len(b.queue), b.limit) {
		if size += b.queue[n].txn.bytes(); n > 0 && size > maxBatchBytes {
			break
		}
		n++
	}
	next := &batch{requests: b.queue[:n:n], waiting: n}
	for _, p := range next.requests {
		p.batch = next
		delete(b.names, p.name)
	}
	if b.queue = b.queue[n:]; len(b.queue) > 0 {
		b.overdue.Reset(b.delay)
	} else {
		b.queue = nil
		b.overdue.Stop()
	}
	return next
}

// send sends a batch and answers its requests.
func (b *batcher) send(sent *batch) {
	first, n := sent.requests[0], len(sent.requests)
	parent := context.Background() // the values of one context, like its trace, do not concern the other requests
	if n == 1 {
		parent = context.WithoutCancel(first.ctx)
	}
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	b.mu.Lock()
	sent.cancel = cancel
	if sent.waiting == 0 {
		cancel()
	}
	b.mu.Unlock()
	if n == 1 {
		first.resp, first.err = first.txn.commit(ctx, b.cli)
		close(first.answered)
		return
	}
	ops := make([]clientv3.Op, 0, n)
	for _, p := range sent.requests {
		ops = append(ops, clientv3.OpTxn(p.txn.conditions, p.txn.then, p.txn.otherwise))
	}
	resp, err := b.cli.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		b.noteFailure(n, err)
	}
	for i, p := range sent.requests {
		switch {
		case err == nil:
			p.resp = responseTo(i, resp)
		case errors.Is(err, rpctypes.ErrNoSpace):
			// A server that runs out of space while it applies a transaction carries it out, and still replies
			// with this error. A deletion that is sent alone never gets it.
			p.err = errBatchNoSpace
		default:
			p.err, p.alone = err, refused(err)
		}
		close(p.answered)
	}
}

var errBatchNoSpace = errors.New("the cluster is out of space")

// responseTo returns the response to one request of a batch.
func responseTo(i int, resp *clientv3.TxnResponse) *clientv3.TxnResponse {
	inner := resp.Responses[i].GetResponseTxn()
	return &clientv3.TxnResponse{Header: resp.Header, Succeeded: inner.Succeeded, Responses: inner.Responses}
}

// noteFailure makes the next batches smaller, if the one that has failed may have been too large for the
// server or for the client's own limit of messages. With a limit of one there are no batches any more.
func (b *batcher) noteFailure(requests int, err error) {
	_, byEtcd := errors.AsType[rpctypes.EtcdError](err)
	beyondMessage := code(err) == codes.ResourceExhausted && !byEtcd // by gRPC, in the client or the server
	if !errors.Is(err, rpctypes.ErrTooManyOps) && !errors.Is(err, rpctypes.ErrRequestTooLarge) && !beyondMessage {
		return
	}
	b.mu.Lock()
	b.limit = max(1, min(b.limit, requests/2))
	limit := b.limit
	b.mu.Unlock()
	b.logger.LogAttrs(context.Background(), slog.LevelDebug, "batch of requests refused; sending smaller batches",
		slog.Int("requests", requests), slog.Int("limit", limit), slog.Any("error", err))
}

// abandon gives up a request whose context has ended. It returns nil if the request is answered. If all
// requests of a batch are given up, so is the batch: it must not keep others from being sent.
func (b *batcher) abandon(p *pending) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-p.answered:
		return nil
	default:
	}
	if p.batch == nil {
		b.queue = slices.DeleteFunc(b.queue, func(other *pending) bool { return other == p })
		delete(b.names, p.name)
		return notSentError{p.ctx.Err()}
	}
	p.batch.waiting--
	if p.batch.waiting == 0 && p.batch.cancel != nil {
		p.batch.cancel()
	}
	return p.ctx.Err()
}

type commitFunc = func(txn) (*clientv3.TxnResponse, error)

// attempt is [Store.attempt] for a request that concerns the line of one lock. Only the first attempt may be
// part of a batch: if it is not answered, the batch may be the reason.
func (se *session) attempt(ctx context.Context, name string, request func(commitFunc) error) error {
	first := true
	return se.store.attempt(ctx, func(ctx context.Context) error {
		inBatch := first
		first = false
		return request(func(t txn) (*clientv3.TxnResponse, error) {
			if inBatch {
				return se.batcher.commit(ctx, name, t)
			}
			return t.commit(ctx, se.store.cli)
		})
	})
}
