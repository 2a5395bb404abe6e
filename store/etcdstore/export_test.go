package etcdstore

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/examine"
)

// MaxAttempts is how many attempts of a store may be under way at the same time.
const MaxAttempts = maxAttempts

// MaxFarReads is how many reads of waiters far back in their lines may be under way at the same time.
const MaxFarReads = maxFarReads

// MaxRemovals is how many removals of a store may be under way at the same time.
const MaxRemovals = maxRemovals

// Times has the fields of times.
type Times struct {
	HeldWatchDelay, IdleTimeout, RecheckInterval, WatchTimeout, ResyncInterval, VerifyInterval, RetryDelay, RemovalPlace, AnswerTimeout, BatchDelay, EpochPause time.Duration
}

// DefaultTimes returns the times that New sets.
func DefaultTimes() Times {
	t := defaultTimes
	return Times{
		t.heldWatchDelay, t.idleTimeout, t.recheckInterval, t.watchTimeout, t.resyncInterval, t.verifyInterval, t.retryDelay, t.removalPlace, t.answerTimeout, t.batchDelay, t.epochPause,
	}
}

// SetTimes replaces the store's times. Call it before the store is used.
func (s *Store) SetTimes(t Times) {
	s.times = times{
		t.HeldWatchDelay, t.IdleTimeout, t.RecheckInterval, t.WatchTimeout, t.ResyncInterval, t.VerifyInterval, t.RetryDelay, t.RemovalPlace, t.AnswerTimeout, t.BatchDelay, t.EpochPause,
	}
}

// SetSizes replaces the store's sizes; farLimit becomes keepWatchLimit. It must be called before the store is used.
func (s *Store) SetSizes(readAtJoin, watchLimit, keepWatchLimit int) {
	s.sizes = sizes{readAtJoin, watchLimit, keepWatchLimit, keepWatchLimit}
}

// SetPageSizes replaces the sizes of the pages in which lines are listed. It must be called before the store is used.
func (s *Store) SetPageSizes(first, most int64, bytes int) {
	s.pageSizes = pageSizes{first, most, bytes}
}

// CompareAlways makes the store compare the keys that it follows all the time, however long that takes. Call it before
// the store is used.
func (s *Store) CompareAlways() { s.times.verifyInterval, s.verifyShare = 10*time.Millisecond, 1 }

// SetMaxCatchUp replaces how many revisions a watch catches up with. It must be called before the store is used.
func (s *Store) SetMaxCatchUp(n int64) { s.maxCatchUp = n }

// ErrOutOfStep is the error with which a sink makes a watch begin anew.
var ErrOutOfStep = errOutOfStep

// BehindAtBegin runs a watch of the keys that begin with keys, from the revision next, after quiet watches that were
// behind. When the watch begins anew, BehindAtBegin ends it and returns how many of them it counts then. verify is
// what its sink finds, and afterFailure what its unknown returns.
func (s *Store) BehindAtBegin(ctx context.Context, keys string, next int64, verify error, afterFailure bool) (behind int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sink := &anewSink{verifyErr: verify, afterFailure: afterFailure}
	c := &prefixWatch{store: s, keys: keys, to: sink, next: next, behind: maxBehind}
	begun := false
	sink.onBegin = func() {
		behind, begun = c.behind, true
		cancel()
	}
	if err := c.run(ctx); !begun {
		return 0, fmt.Errorf("the watch has not begun anew: %w", err)
	}
	return behind, nil
}

// anewSink is a watchSink that makes its watch begin anew for the reasons that it is given.
type anewSink struct {
	onBegin      func()
	verifyErr    error
	afterFailure bool
}

func (s *anewSink) begin(ctx context.Context) (int64, error) {
	s.onBegin()
	return 0, ctx.Err()
}

func (s *anewSink) opened(bool)                         {}
func (s *anewSink) events([]*clientv3.Event)            {}
func (s *anewSink) unknown(error) bool                  { return s.afterFailure }
func (s *anewSink) verifyIn() time.Duration             { return 0 }
func (s *anewSink) verify(context.Context, int64) error { return s.verifyErr }

// LineWatched reports whether a session has an open, complete watch of a line.
func LineWatched(s store.Session, name string) (watched bool) {
	withLineWatch(s, name, func(w *lineWatch) { watched = w.open != 0 })
	return watched
}

// Followed returns the key of the entry that a session follows in a long line; "" if it follows
// none, or has not verified yet that the entry is there.
func Followed(s store.Session, name string) (key string) {
	withLineWatch(s, name, func(w *lineWatch) {
		for e := range w.mine {
			if e.followed != nil && e.following {
				key = e.followed.ID
			}
		}
	})
	return key
}

// KeyWatched reports whether a session watches the key of any of its entries in a line.
func KeyWatched(s store.Session, name string) (watched bool) {
	withLineWatch(s, name, func(w *lineWatch) {
		for e := range w.mine {
			watched = watched || e.keyWatched
		}
	})
	return watched
}

// withLineWatch calls f with a session's lineWatch of a line, if it has one.
func withLineWatch(s store.Session, name string, f func(*lineWatch)) {
	se := s.(*session)
	se.mu.Lock()
	w := se.lines[name]
	se.mu.Unlock()
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w)
}

// LoseSession ends a session as if its lease were found to be gone.
func LoseSession(s store.Session) { _ = s.(*session).endExpired() }

// EntryRange returns the range of the keys of a line's entries, in a store without a prefix.
func EntryRange(name string) (from, end string) { return keys{}.entries(name) }

// EntryKey returns the key of an entry, in a store without a prefix.
func EntryKey(name string, lease clientv3.LeaseID, nonce string) string {
	return keys{}.entry(name, lease, nonce)
}

// SetExamineLimits sets the limits by which Examine judges.
func (s *Store) SetExamineLimits(fsync time.Duration, uncompacted, quotaPercent int64) {
	s.limits = examineLimits{fsync, uncompacted, quotaPercent}
}

// Quantile returns the bound of a quantile of a histogram in a page of metrics, and how many observations it
// has.
func Quantile(page []string, name string, q float64) (bound, n float64) {
	return samples(page).quantile(name, q)
}

// JudgeVersion returns the finding about a version of etcd.
func JudgeVersion(version string) store.Finding {
	return examine.KnownBugs("etcd-version", "etcd", version, oldestSupported, bugs)
}

// MaxUnderWay is how many transactions may be under way before others wait for a batch.
const MaxUnderWay = maxUnderWay

// A Batcher is the batcher of a session.
type Batcher struct{ *batcher }

// NewBatcher returns a batcher without a session.
func NewBatcher(cli *clientv3.Client, delay time.Duration) Batcher {
	return Batcher{newBatcher(cli, delay, slog.New(slog.DiscardHandler))}
}

// BatcherOf returns the batcher of a session.
func BatcherOf(s store.Session) Batcher { return Batcher{s.(*session).batcher} }

// Create sends the transaction that puts a key if it is not there, and reads it, for a lock name.
func (b Batcher) Create(ctx context.Context, name, key, value string) (*clientv3.TxnResponse, error) {
	return b.commit(ctx, name, createTxn(key, value))
}

// CreateAnyTime is Create with a transaction that can wait.
func (b Batcher) CreateAnyTime(ctx context.Context, name, key, value string) (*clientv3.TxnResponse, error) {
	t := createTxn(key, value)
	t.canWait = true
	return b.commit(ctx, name, t)
}

func createTxn(key, value string) txn {
	return txn{
		conditions: []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
		then:       []clientv3.Op{clientv3.OpPut(key, value), clientv3.OpGet(key)},
		otherwise:  []clientv3.Op{clientv3.OpGet(key)},
	}
}

// AttemptCreate sends the transaction of Create until it is answered. The first attempt fails with an error
// before it is sent.
func AttemptCreate(ctx context.Context, s store.Session, name, key string, failure error) (resp *clientv3.TxnResponse, err error) {
	err = s.(*session).attempt(ctx, name, func(commit commitFunc) (err error) {
		err, failure = failure, nil
		if err == nil {
			resp, err = commit(createTxn(key, ""))
		}
		return err
	})
	return resp, err
}

// Waiting returns how many transactions wait for their batch.
func (b Batcher) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

// UnderWay returns how many transactions are under way.
func (b Batcher) UnderWay() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.underWay
}

// Limit returns how many requests a batch has at most.
func (b Batcher) Limit() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limit
}

// MaybeSent reports whether a transaction that has failed with err may have been sent.
func MaybeSent(err error) bool { return outcomeUnknown(err) }

// Occupy takes the place of all transactions that may be under way, so that others wait. The returned
// function gives them up.
func (b Batcher) Occupy() (leave func()) {
	for range maxUnderWay {
		b.enter(context.Background(), "", txn{})
	}
	return func() {
		for range maxUnderWay {
			b.done()
		}
	}
}

// KeysWatched returns how many keys of held entries a store watches, and whether its goroutines for that run.
func (s *Store) KeysWatched() (n int, running bool) {
	s.heldKeys.mu.Lock()
	defer s.heldKeys.mu.Unlock()
	return len(s.heldKeys.entries), s.heldKeys.running
}

// PauseAfterEpoch returns the pause after a write of the epoch key that took so long, with the times of New.
func PauseAfterEpoch(took time.Duration) time.Duration { return defaultTimes.pauseAfterEpoch(took) }

// CallsForNextEpoch returns how many calls wait for a write of a session's epoch key that has not been sent.
func CallsForNextEpoch(s store.Session) int {
	w := &s.(*session).epochWrites
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		return 0
	}
	return w.next.calls
}
