package stilek8s_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilek8s"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/store/redisstore"
)

const name = "controllers/dns"

func newClient(t *testing.T, st store.Store) *stile.Client {
	t.Helper()
	client, err := stile.New(st, &stile.Options{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	return client
}

// A candidate runs client-go's LeaderElector.
type candidate struct {
	lock    *stilek8s.Lock
	started chan context.Context // receives the context of each leadership
	ended   chan struct{}        // closed when Run has returned
	stop    context.CancelFunc
}

// The durations of an elector.
type durations struct{ lease, deadline, retry time.Duration }

// campaign starts a candidate. Its lease is so long that only the lock can end a leadership within a test.
func campaign(t *testing.T, client *stile.Client, identity string) *candidate {
	t.Helper()
	return campaignWith(t, client, identity, durations{2 * time.Hour, time.Hour, 10 * time.Millisecond})
}

func campaignWith(t *testing.T, client *stile.Client, identity string, d durations) *candidate {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &candidate{started: make(chan context.Context, 1), ended: make(chan struct{}), stop: stop}
	c.lock, ctx = stilek8s.New(ctx, client, name, identity)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            c.lock,
		ReleaseOnCancel: true,
		LeaseDuration:   d.lease,
		RenewDeadline:   d.deadline,
		RetryPeriod:     d.retry,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { c.started <- ctx },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.ended)
		elector.Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-c.ended })
	return c
}

// usual are the durations that client-go recommends, for tests with a fake clock.
var usual = durations{15 * time.Second, 10 * time.Second, 2 * time.Second}

func (c *candidate) mustNotLead(t *testing.T) {
	t.Helper()
	select {
	case <-c.started:
		t.Error("a second candidate leads")
	default:
	}
}

// run runs two of client-go's electors on a store: one at a time leads; a release, a loss and a death end its
// leadership.
func run(t *testing.T, open func() *stile.Client) {
	ca, cb := open(), open()
	a := campaign(t, ca, "a")
	leading := <-a.started
	b := campaign(t, cb, "b")

	// While a leads, it renews, and b does not lead.
	renewals := make(map[string]bool)
	for len(renewals) < 2 {
		_, raw, err := b.lock.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		renewals[string(raw)] = true
		time.Sleep(10 * time.Millisecond)
	}
	b.mustNotLead(t)

	// An operator breaks a's hold: a stops, and b leads although a's lease would last for hours.
	first := a.lock.Hold()
	if _, err := cb.Break(t.Context(), name, first.Token()); err != nil {
		t.Fatal(err)
	}
	<-leading.Done()
	if !errors.Is(context.Cause(leading), stile.ErrLost) {
		t.Errorf("a's leadership ended with %v, want ErrLost", context.Cause(leading))
	}
	<-a.ended
	<-b.started
	if second := b.lock.Hold(); second.Token() <= first.Token() {
		t.Errorf("the token of the second leader is %d, want more than %d", second.Token(), first.Token())
	}
	err := a.lock.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"})
	if !errors.Is(err, stile.ErrLost) {
		t.Errorf("Update after the loss: %v, want ErrLost", err)
	}

	// b releases: the next candidate leads.
	c := campaign(t, ca, "c")
	c.mustNotLead(t)
	b.stop()
	<-b.ended
	<-c.started
	if record, _, err := c.lock.Get(t.Context()); err != nil || record.HolderIdentity != "c" || record.LeaderTransitions < 2 {
		t.Errorf("the record is %+v, %v; want that of c, after two transitions or more", record, err)
	}

	// The process of c ends without a release.
	d := campaign(t, cb, "d")
	if err := ca.Close(t.Context()); err != nil {
		t.Error(err)
	}
	<-c.ended
	<-d.started
}

// Promise: P1, P3
func TestLeaderElector_memory(t *testing.T) {
	st := memstore.New()
	run(t, func() *stile.Client { return newClient(t, st) })
}

// Promise: P1, P3
func TestLeaderElector_redis(t *testing.T) {
	addr := testservers.StartRedis(t).Addr()
	run(t, func() *stile.Client {
		cli, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableRetry: true, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cli.Close)
		st, err := redisstore.New(cli, nil)
		if err != nil {
			t.Fatal(err)
		}
		return newClient(t, st)
	})
}

// The requests of an elector, one by one.
func TestLock(t *testing.T) {
	st := memstore.New()
	a, ctx := stilek8s.New(t.Context(), newClient(t, st), name, "a")
	b, _ := stilek8s.New(t.Context(), newClient(t, st), name, "b")
	if _, _, err := a.Get(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("Get without a record: %v, want NotFound", err)
	}
	if err := a.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "b"}); err == nil || a.Hold() != nil {
		t.Errorf("a created a record for b: %v", err)
	}
	if err := a.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaderTransitions: 7}); err != nil {
		t.Fatal(err)
	}
	if err := b.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "b"}); !errors.Is(err, stile.ErrHeld) {
		t.Errorf("b's Update while a leads: %v, want ErrHeld", err)
	}
	if record, _, err := b.Get(t.Context()); err != nil || record.HolderIdentity != "a" || record.LeaderTransitions != 7 {
		t.Errorf("Get: %+v, %v; want a's record", record, err)
	}
	if err := a.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err != nil {
		t.Errorf("a's release: %v", err)
	}
	if cause := context.Cause(ctx); !errors.Is(cause, stile.ErrReleased) || a.Hold().Valid() {
		t.Errorf("after a's release its context has ended with %v; want ErrReleased, and no valid hold", cause)
	}
	err := a.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"})
	if !errors.Is(err, stile.ErrReleased) {
		t.Errorf("a's Update after its release: %v, want ErrReleased", err)
	}
	if err := b.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "b"}); err != nil {
		t.Errorf("b's Update after a's release: %v", err)
	}
}

// A leader dies without a release: Get shows the lock as free, so that no candidate waits for the end of the lease.
func TestLock_getAfterDeath(t *testing.T) {
	st := memstore.New()
	dying := newClient(t, st)
	a, _ := stilek8s.New(t.Context(), dying, name, "a")
	if err := a.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := dying.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, _ := stilek8s.New(t.Context(), newClient(t, st), name, "b")
	if record, _, err := b.Get(t.Context()); err != nil || record.HolderIdentity != "" {
		t.Errorf("Get after the leader's death: %+v, %v; want no holder", record, err)
	}
}

// A candidate whose release got no reply does not keep the lock, and its process can campaign again.
func TestLock_releaseUnconfirmed(t *testing.T) {
	st := memstore.New()
	client := newClient(t, st)
	a, _ := stilek8s.New(t.Context(), client, name, "a")
	if err := a.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	st.SetFaults(func(c memstore.Call) memstore.Fault {
		if c.Op == memstore.Withdraw {
			cancel()
			return memstore.Fault{Drop: true}
		}
		return memstore.Fault{}
	})
	if err := a.Update(ctx, resourcelock.LeaderElectionRecord{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a release without a reply: %v, want context.Canceled", err)
	}
	st.SetFaults(nil)
	again, _ := stilek8s.New(t.Context(), client, name, "a")
	for {
		err := again.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"})
		if err == nil {
			return
		}
		if !errors.Is(err, stile.ErrHeld) { // the release continues in the background
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// A candidate that cannot write its record does not lead, and leaves the lock to others.
func TestLock_recordRefused(t *testing.T) {
	st := memstore.New()
	a, _ := stilek8s.New(t.Context(), newClient(t, st), name, "a")
	b, _ := stilek8s.New(t.Context(), newClient(t, st), name, "b")
	refusal := errors.New("refused")
	st.SetFaults(func(c memstore.Call) memstore.Fault {
		if c.Op == memstore.SetRecord {
			return memstore.Fault{Err: refusal}
		}
		return memstore.Fault{}
	})
	if err := a.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"}); !errors.Is(err, refusal) || a.Hold() != nil {
		t.Errorf("Create: %v, hold %v; want the refusal, and no hold", err, a.Hold())
	}
	st.SetFaults(nil)
	if err := b.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "b"}); err != nil {
		t.Errorf("b: %v", err)
	}
}

// The record of another program is not overwritten by an elector.
func TestLock_foreignRecord(t *testing.T) {
	client := newClient(t, memstore.New())
	err := client.Mutex(name).Do(t.Context(), func(ctx context.Context, hold *stile.Hold) error {
		return hold.SetRecord(ctx, []byte("another program's"))
	})
	if err != nil {
		t.Fatal(err)
	}
	lock, _ := stilek8s.New(t.Context(), client, name, "a")
	if _, _, err := lock.Get(t.Context()); err == nil || apierrors.IsNotFound(err) {
		t.Errorf("Get: %v, want an error about the record", err)
	}
}

// A leader whose renewals fail gives the lock up while it is still valid. Its context ends before another
// candidate can lead, although LeaderElector itself ends it only after the release.
// Promise: P6
func TestLeaderElector_renewalsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		a := campaignWith(t, newClient(t, st), "a", usual)
		leading := <-a.started
		b := campaignWith(t, newClient(t, st), "b", usual)
		time.Sleep(time.Minute)
		b.mustNotLead(t)

		withdrawn := false
		st.SetFaults(func(c memstore.Call) memstore.Fault {
			switch c.Op {
			case memstore.Withdraw:
				withdrawn = true
				return memstore.Fault{LoseReply: true}
			case memstore.SetRecord:
				if !withdrawn {
					return memstore.Fault{Err: errors.New("refused")}
				}
			}
			return memstore.Fault{}
		})
		<-b.started
		if leading.Err() == nil {
			t.Error("b leads, and a's context has not ended")
		}
		<-a.ended
	})
}

// A candidate that stops while the store cannot be read does not keep the lock.
func TestLeaderElector_releaseWithoutReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		a := campaignWith(t, newClient(t, st), "a", usual)
		<-a.started
		st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Read || c.Op == memstore.ReadRecord {
				return memstore.Fault{Err: errors.New("refused")}
			}
			return memstore.Fault{}
		})
		a.stop()
		<-a.ended
		st.SetFaults(nil)
		b := campaignWith(t, newClient(t, st), "b", usual)
		time.Sleep(10 * time.Minute)
		select {
		case <-b.started:
		default:
			t.Error("nobody leads ten minutes after a has stopped")
		}
	})
}

// A process that was restarted with the same identity is not shown as the leader while the store still has
// the hold of the process before it.
func TestLock_getOfEarlierProcess(t *testing.T) {
	st := memstore.New()
	before, _ := stilek8s.New(t.Context(), newClient(t, st), name, "a")
	if err := before.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"}); err != nil {
		t.Fatal(err)
	}
	after, _ := stilek8s.New(t.Context(), newClient(t, st), name, "a")
	if record, _, err := after.Get(t.Context()); err != nil || record.HolderIdentity != "" {
		t.Errorf("Get: %+v, %v; want no holder", record, err)
	}
	err := after.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"})
	if !errors.Is(err, stile.ErrHeld) {
		t.Errorf("Update: %v, want ErrHeld", err)
	}
}

// The hold is released, and not by the elector: the leader's context ends.
func TestLock_holdReleased(t *testing.T) {
	a, ctx := stilek8s.New(t.Context(), newClient(t, memstore.New()), name, "a")
	if err := a.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := a.Hold().Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
}

// The context of a candidate has ended, and its elector still runs, as it does while controller-runtime's manager
// stops: the candidate does not lead any more.
func TestLock_contextEnded(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	client := newClient(t, memstore.New())
	a, _ := stilek8s.New(parent, client, name, "a")
	cancel()
	err := a.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Create: %v, want context.Canceled", err)
	}
	if line, err := client.Line(t.Context(), name); err != nil || len(line.Holders) > 0 {
		t.Errorf("the line is %+v, %v; want no holder", line, err)
	}
}

// A release that finds the loss of the lock reports it, and the candidate does not lead again.
func TestLock_releaseFindsLoss(t *testing.T) {
	st := memstore.New()
	client := newClient(t, st)
	a, ctx := stilek8s.New(t.Context(), client, name, "a")
	if err := a.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"}); err != nil {
		t.Fatal(err)
	}
	st.SetFaults(func(c memstore.Call) memstore.Fault {
		switch c.Op {
		case memstore.SetRecord:
			return memstore.Fault{Err: errors.New("refused")}
		case memstore.Notify:
			return memstore.Fault{Delay: time.Hour}
		default:
			return memstore.Fault{}
		}
	})
	if _, err := client.Break(t.Context(), name, a.Hold().Token()); err != nil {
		t.Fatal(err)
	}
	if err := a.Update(t.Context(), resourcelock.LeaderElectionRecord{}); !errors.Is(err, stile.ErrLost) {
		t.Errorf("the release: %v, want ErrLost", err)
	}
	if ctx.Err() == nil {
		t.Error("the candidate's context has not ended")
	}
	st.SetFaults(nil)
	if err := a.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"}); !errors.Is(err, stile.ErrReleased) {
		t.Errorf("Update after the release: %v, want ErrReleased", err)
	}
}
