// Package stilek8s makes a Stile lock the lock of client-go's leader election, for programs that are bound to it:
// leaderelection.LeaderElector, and the manager of controller-runtime. The candidates need no API server, so they
// can be in several clusters, or in none.
//
//	lock, ctx := stilek8s.New(ctx, client, "controllers/dns", hostname)
//	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{ // ctx ends if the lock is lost
//		Lock:            lock,
//		ReleaseOnCancel: true,
//		LeaseDuration:   15 * time.Second,
//		RenewDeadline:   10 * time.Second,
//		RetryPeriod:     2 * time.Second,
//		Callbacks:       callbacks,
//	})
//
// For controller-runtime, set manager.Options.LeaderElectionResourceLockInterface to the lock, and start the manager
// with the context.
//
// # Where there is a choice, use an Election
//
// Use [stile.Election.Run] instead, unless the program cannot be changed. LeaderElector asks every RetryPeriod whether it
// can become the leader, and so do all other candidates, with two requests each. The first one to ask after a leader has
// left is the next leader. In an Election the candidates wait in line, in order of arrival, and the next leader
// gets one message. The leader of an Election renews by a deadline that counts from when the last confirmed
// renewal was sent. LeaderElector counts from the end of one, and its Lease cannot keep a leader that was paused
// from acting; it gives no number to fence with.
//
// # What is kept, and what is lost
//
// The client's mutex of that name decides who leads. A candidate becomes leader only if it holds the mutex; so
// LeaseDuration decides nothing, and the TTL of the client takes its place: when a leader dies, the mutex becomes free
// after the TTL, and the next candidate that asks leads. The record that LeaderElector writes is kept in the record of
// the name, and is written in one step with a check that the lock is held. [Lock.Hold] has the fencing token.
//
// LeaderElector has no means to be told of a loss. It goes on until RenewDeadline has passed since its last renewal.
// So start it with the context that [New] returns: that one ends when the lock is lost. If you do not, there may be
// two leaders for that long.
//
// Set ReleaseOnCancel. Without it, a candidate that has stopped leading holds the lock until its client is closed, because
// the client goes on renewing.
package stilek8s

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/stilelock/stile"
)

// A Lock is a [resourcelock.Interface] for one elector. It is safe for concurrent use.
type Lock struct {
	client   *stile.Client
	name     string
	identity string
	end      context.CancelCauseFunc

	changing sync.Mutex // held during a change
	mu       sync.Mutex // guards hold; not held during requests
	hold     *stile.Hold
}

var _ resourcelock.Interface = (*Lock)(nil)

// New returns a lock on the client's mutex of that name, and a context that ends with ctx, and when the lock is lost,
// with the [*stile.LostError] as its cause. The identity names the candidate, and must be that of no other one. New
// sends no request. On a store without records, as Redlock is, all requests fail with [stile.ErrUnsupported].
//
// After a loss, the lock refuses every renewal, and cannot be used again: otherwise an elector that has not stopped yet
// would go on as if nobody had led in between. To campaign again, call New again.
func New(ctx context.Context, client *stile.Client, name, identity string) (*Lock, context.Context) {
	ctx, end := context.WithCancelCause(ctx)
	return &Lock{client: client, name: name, identity: identity, end: end}, ctx
}

// Get returns what the leader has written last, and the same as JSON. If nobody holds the lock, the holder's identity is
// empty, so that LeaderElector does not wait for the end of a lease before it calls Update. The error is a NotFound
// error of package k8s.io/apimachinery/pkg/api/errors if no leader has written anything yet.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	line, err := l.client.Line(ctx, l.name)
	if err != nil {
		return nil, nil, err
	}
	raw, err := l.client.Record(ctx, l.name)
	if err != nil {
		return nil, nil, err
	}
	if len(raw) == 0 {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Group: "stile", Resource: "locks"}, l.name)
	}
	var record resourcelock.LeaderElectionRecord
	if err := json.Unmarshal(raw, &record); err != nil {
		return nil, nil, fmt.Errorf("stilek8s: the record of lock %q was not written by stilek8s: use another name: %w", l.name, err)
	}
	if len(line.Holders) == 0 && record.HolderIdentity != "" {
		record.HolderIdentity = ""
		if raw, err = json.Marshal(record); err != nil {
			return nil, nil, err
		}
	}
	return &record, raw, nil
}

// Create becomes the leader if nobody holds the lock, and writes the record. It is [Lock.Update].
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

// Update writes the record. If this candidate does not hold the lock, it tries to take it first; the error matches
// [stile.ErrHeld] if it is not free. A record without the identity of a holder releases the lock.
//
// On success this candidate held the lock when the record was written. If the lock was lost, the error is a
// [*stile.LostError], now and for every later call.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	raw, err := json.Marshal(record)
	if err != nil {
		return err
	}
	l.changing.Lock()
	defer l.changing.Unlock()
	switch hold := l.Hold(); {
	case hold != nil && record.HolderIdentity == "":
		err := errors.Join(hold.SetRecord(ctx, raw), hold.Release(ctx))
		if !errors.Is(err, stile.ErrLost) {
			l.set(nil)
		}
		return err
	case hold != nil:
		return hold.SetRecord(ctx, raw)
	case record.HolderIdentity != l.identity:
		return fmt.Errorf("stilek8s: lock %q: %q does not hold it, and cannot write a record for %q", l.name, l.identity, record.HolderIdentity)
	}
	hold, err := l.client.Mutex(l.name).TryLock(ctx)
	if err != nil {
		return err
	}
	if err := hold.SetRecord(ctx, raw); err != nil {
		return errors.Join(err, hold.Release(ctx))
	}
	l.set(hold)
	context.AfterFunc(hold.Context(), func() {
		if err := hold.Err(); err != nil {
			l.end(err)
		}
	})
	return nil
}

// Hold returns the hold of this candidate, or nil if it has none. After a loss it returns the lost hold. Pass its token to
// every resource that can refuse smaller ones.
func (l *Lock) Hold() *stile.Hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hold
}

func (l *Lock) set(hold *stile.Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = hold
}

// RecordEvent does nothing: there is no object in a cluster that an event could be about. The hooks and the log of the
// client tell who got the lock, and who lost it.
func (l *Lock) RecordEvent(string) {}

// Identity returns the identity of this candidate.
func (l *Lock) Identity() string { return l.identity }

// Describe returns a description of the lock for logs.
func (l *Lock) Describe() string { return fmt.Sprintf("stile lock %q", l.name) }
