package etcdstore

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"math"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store/internal/attempts"
)

// withdrawAfter is [store.Extensions.WithdrawAfter]. It attaches the entry's key to a lease of its
// own. docs/architecture.md lists the failures that are possible between the steps.
func (e *entry) withdrawAfter(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return e.Withdraw(ctx)
	}
	until := time.Now().Add(d)
	detached := e.currentValue()
	detached.Session = e.session.ID()
	text, err := detached.encode()
	if err != nil {
		return e.session.store.wrapErr("detach the entry from its session", err)
	}
	e.session.allowOutlasting() // before another entry of that name can join
	l := &detachedLease{entry: e, value: text, until: until}
	return e.leave(ctx, l.attachUntil)
}

// allowOutlasting makes all later keys of the session differ from those of entries that may outlast
// it.
func (se *session) allowOutlasting() {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.outlast = true
}

// detachedLease is the lease of an entry that outlasts its session. It is not renewed.
type detachedLease struct {
	entry *entry
	value string
	until time.Time
	id    clientv3.LeaseID // zero if it has not been chosen
}

// attachUntil attaches the entry to a lease that ends at l.until. If that time has passed, the
// entry is deleted. It reports whether the entry was there.
func (l *detachedLease) attachUntil(ctx context.Context) (there bool, err error) {
	within, cancel := context.WithDeadline(ctx, l.until)
	defer cancel()
	for within.Err() == nil {
		there, err = l.attach(within)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			l.id, err = 0, nil // it has expired or was revoked: use another for the remaining time
		case err == nil && !there:
			l.entry.gone.Store(true)
			l.entry.session.store.revoke(ctx, l.id) // nothing is attached to it, and nothing will be
			return false, nil
		case err == nil || within.Err() == nil:
			return there, err
		}
	}
	if ctx.Err() != nil {
		return false, attempts.GaveUp(ctx, err) // l.until may not have passed
	}
	return l.entry.deleteKey(ctx)
}

// attach requests the lease and attaches the entry to it. It reports whether the entry was there.
func (l *detachedLease) attach(ctx context.Context) (there bool, err error) {
	if l.id == 0 {
		l.id = randomLeaseID()
	}
	if err := l.grant(ctx); err != nil {
		return false, err
	}
	e := l.entry
	err = l.entry.session.store.attempt(ctx, func(ctx context.Context) error {
		e.outlasts.Store(true)
		keepClaim := e.onClaim(func(key string) clientv3.Op { return clientv3.OpPut(key, e.claimValue(), clientv3.WithLease(l.id)) })
		ops := append(e.deleteMarkerOps(), append(keepClaim, clientv3.OpPut(e.key, l.value, clientv3.WithLease(l.id)))...)
		resp, err := e.session.store.cli.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(e.key), "=", int64(e.order))).
			Then(ops...).
			Commit()
		if err != nil {
			e.unanswered.Store(e.unanswered.Load() || !refused(err))
			return err
		}
		there = resp.Succeeded
		e.unanswered.Store(!there && e.unanswered.Load())
		e.session.noteRevision(resp.Header)
		return nil
	})
	return there, err
}

// maxLeaseTTL is the longest TTL that etcd grants, in seconds: 285 years.
const maxLeaseTTL = 9_000_000_000

// grant requests the lease. It succeeds if an earlier attempt has created it.
func (l *detachedLease) grant(ctx context.Context) error {
	return l.entry.session.store.attempt(ctx, func(ctx context.Context) error {
		seconds := int64(math.Ceil(time.Until(l.until).Seconds()))
		_, err := l.entry.session.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{
			ID:  int64(l.id),
			TTL: min(max(seconds, 1), maxLeaseTTL),
		})
		if err = rpctypes.Error(err); errors.Is(err, rpctypes.ErrLeaseExist) {
			return nil
		}
		return err
	})
}

// randomLeaseID returns a lease id. The client chooses it so that repeated requests create one
// lease. It is as long as those that servers choose; see minLeaseDigits.
func randomLeaseID() clientv3.LeaseID {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return clientv3.LeaseID(binary.BigEndian.Uint64(b[:])>>1 | 1<<62)
}
