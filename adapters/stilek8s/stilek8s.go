// Package stilek8s lets client-go's leader election use a Stile lock. It is for programs that cannot do
// without leaderelection.LeaderElector, or without the manager of controller-runtime, which uses it. The
// candidates need no API server. So they can be in several clusters, or in none.
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
// For controller-runtime, set these fields of manager.Options: LeaderElection and
// LeaderElectionReleaseOnCancel to true, and LeaderElectionResourceLockInterface to the lock. Without
// LeaderElection the manager ignores the lock, and all candidates lead. Start the manager with the context
// that [New] returns. After a loss, the manager's Start may return nil; context.Cause of the context is
// then the loss.
//
// # If you can change the program, use an Election
//
// [stile.Election.Run] is better. Each LeaderElector polls: it sends two requests every RetryPeriod. After
// a leader has left, the first candidate that polls leads next. In an Election the candidates wait in line,
// the next leader is the one that arrived first, and it gets one message. Run campaigns again after a loss.
//
// # What decides who leads
//
// A candidate leads only while it holds the client's mutex of that name. LeaseDuration has no effect. If a
// leader dies, the mutex becomes free after the client's TTL, and the next candidate that polls leads.
// LeaderElector's record is the record of the name ([stile.Hold.SetRecord]): each write checks that the
// mutex is held. [Lock.Hold] has the fencing token.
//
// LeaderElector is not notified of a loss: it leads until RenewDeadline has passed since its last renewal.
// It also releases the lock before it ends the leader's context, if its renewals fail for RenewDeadline. So
// start it with the context that [New] returns, which ends at a loss, and before a release. With another
// context two candidates may lead at once. The work may still go on for a moment after its context has
// ended: pass the token to the resources that it changes.
//
// Set ReleaseOnCancel. Without it, a candidate that has stopped leading keeps the lock until its client is
// closed.
package stilek8s

import (
	"cmp"
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

// A Lock is a [resourcelock.Interface] for one elector and one leadership. It is safe for concurrent use.
type Lock struct {
	client   *stile.Client
	name     string
	identity string
	ctx      context.Context // returned by New
	end      context.CancelCauseFunc

	changing sync.Mutex // held during a change
	mu       sync.Mutex // guards hold and record; not held during requests
	hold     *stile.Hold
	record   resourcelock.LeaderElectionRecord // what was written last with the hold
}

var _ resourcelock.Interface = (*Lock)(nil)

// New returns a lock on the client's mutex of that name, and a context. The context ends with ctx, and with
// the leadership: before a release, with [stile.ErrReleased] as the cause, and at a loss, with the
// [*stile.LostError]. New sends no request. Redlock keeps no records: there all requests fail with
// [stile.ErrUnsupported].
//
// Each candidate needs an identity of its own. Lock the name with electors only: while another program
// holds the mutex, Get returns the record of the last leader.
//
// When the context has ended, the lock refuses to lead. Otherwise an elector that has not noticed a loss
// could lead again, and its work would not notice that another candidate has led in between. To campaign
// again, call New again.
func New(ctx context.Context, client *stile.Client, name, identity string) (*Lock, context.Context) {
	ctx, end := context.WithCancelCause(ctx)
	return &Lock{client: client, name: name, identity: identity, ctx: ctx, end: end}, ctx
}

// Get returns the record that the leader has written last, and the same as JSON. While this candidate holds
// the lock, Get sends no request, and so does not fail: LeaderElector releases the lock only after a
// successful Get.
//
// If nobody holds the lock, HolderIdentity is empty. Then LeaderElector calls Update at once, and does not
// wait for the end of a lease. HolderIdentity is also empty if another Lock with the same identity has
// written the record: it may be that of an earlier process, which has died. If there is no record, the
// error is a NotFound error of package k8s.io/apimachinery/pkg/api/errors.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if record, ok := l.own(); ok {
		raw, err := json.Marshal(record)
		return &record, raw, err
	}
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
	if len(line.Holders) == 0 || record.HolderIdentity == l.identity {
		record.HolderIdentity = ""
		if raw, err = json.Marshal(record); err != nil {
			return nil, nil, err
		}
	}
	return &record, raw, nil
}

// own returns the record that this candidate has written, if it holds the lock.
func (l *Lock) own() (record resourcelock.LeaderElectionRecord, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record, l.hold != nil && l.hold.Valid()
}

// Create is [Lock.Update].
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

// Update writes the record. If this candidate does not hold the lock, Update tries to take it first; if the
// lock is not free, the error matches [stile.ErrHeld]. If HolderIdentity is empty, Update ends the context
// of [New], writes the record, and releases the lock.
//
// On success this candidate held the lock when the record was written. After a loss the error is a
// [*stile.LostError], and after a release it matches [stile.ErrReleased].
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	raw, err := json.Marshal(record)
	if err != nil {
		return err
	}
	l.changing.Lock()
	defer l.changing.Unlock()
	hold := l.Hold()
	switch {
	case hold != nil && record.HolderIdentity == "":
		l.end(cmp.Or(hold.Err(), stile.ErrReleased)) // before another candidate can lead
		return errors.Join(hold.SetRecord(ctx, raw), hold.Release(ctx))
	case hold != nil:
		if err := hold.SetRecord(ctx, raw); err != nil {
			return err
		}
		l.lead(hold, record)
		return nil
	case record.HolderIdentity != l.identity:
		return fmt.Errorf("stilek8s: lock %q: %q does not hold it, and cannot write a record for %q", l.name, l.identity, record.HolderIdentity)
	case l.ctx.Err() != nil:
		return fmt.Errorf("stilek8s: lock %q: the context of its candidate has ended: call New again: %w", l.name, context.Cause(l.ctx))
	}
	if hold, err = l.client.Mutex(l.name).TryLock(ctx); err != nil {
		return err
	}
	if err := hold.SetRecord(ctx, raw); err != nil {
		return errors.Join(err, hold.Release(ctx))
	}
	l.lead(hold, record)
	context.AfterFunc(hold.Context(), func() { l.end(context.Cause(hold.Context())) })
	return nil
}

// lead notes that the record was written with the hold.
func (l *Lock) lead(hold *stile.Hold, record resourcelock.LeaderElectionRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold, l.record = hold, record
}

// Hold returns the hold of this candidate, or nil if it has not led yet. After the leadership the hold has
// ended. Pass its token to every resource that can refuse smaller ones.
func (l *Lock) Hold() *stile.Hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hold
}

// RecordEvent does nothing. Events belong to objects of a cluster, and a Stile lock is none. The client's
// hooks and log report who has got the lock, and who has lost it.
func (l *Lock) RecordEvent(string) {}

// Identity returns the identity of this candidate.
func (l *Lock) Identity() string { return l.identity }

// Describe returns a description of the lock for logs.
func (l *Lock) Describe() string { return fmt.Sprintf("stile lock %q", l.name) }
