package redlockstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// redsync with its defaults takes 5s to lock and 5s to unlock with one of three masters hung; 0.4s
// and 1.7s if that one refuses connections.
// Promise: P7
func TestMinority_unreachableDelaysNobody(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second // waiting for the minority would take 5s to lock, and longer to unlock
	hang, refuse := (*testservers.Redis).Pause, (*testservers.Redis).Kill
	for _, c := range []struct {
		masters, down int
		how           string
		stop          func(*testservers.Redis)
	}{
		{3, 1, "hang", hang}, {3, 1, "refuse", refuse}, {5, 2, "hang", hang}, {5, 2, "refuse", refuse},
	} {
		t.Run(fmt.Sprintf("%d of %d %s", c.down, c.masters, c.how), func(t *testing.T) {
			t.Parallel()
			servers := testservers.StartRedisServers(t, c.masters)
			se, other := openSession(t, newStore(t, optionsFor(servers)), longTTL), openSession(t, newStore(t, optionsFor(servers)), longTTL)
			held, standings, err := enqueue(t.Context(), se, "held", false)
			if err != nil {
				t.Fatal(err)
			}
			admitted(t, standings)
			everywhere(t, se, servers, "held")
			_, next, err := enqueue(t.Context(), other, "held", false)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range servers[:c.down] {
				c.stop(r)
			}
			quick := func(what string, se store.Session) {
				t.Helper()
				wantQuick(t, limit, "lock and unlock, "+what+",", func() {
					ticket, _ := hold(t, se, "lock")
					withdraw(t, ticket)
				})
				wantQuick(t, limit, "renew, "+what+",", func() {
					if err := se.Confirm(timeout(t, testTimeout)); err != nil {
						t.Error(err)
					}
				})
			}
			quick("connected to all masters", se)
			quick("connecting later", openSession(t, newStore(t, optionsFor(servers)), longTTL))
			if len(standings) > 0 {
				t.Errorf("a majority has the entry: got %+v", <-standings)
			}
			for len(next) > 0 {
				if st := <-next; st.State != store.Waiting {
					t.Errorf("the waiter got %+v", st)
				}
			}
			withdraw(t, held)
			admitted(t, next)
		})
	}
}

func TestMinority_slowMasterDelaysNobody(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), longTTL)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	withdraw(t, ticket)
	const late = 3 * time.Second
	proxies[1].Delay(late)
	wantQuick(t, late, "lock and unlock", func() {
		ticket, _ := hold(t, se, "lock")
		withdraw(t, ticket)
	})
	eventually(t, "the slow master is clean too", func() bool { return countKeys(servers, "lock") == 0 })
}

// A master that was unreachable at first takes part from the next renewal on, and counts when
// another is lost.
func TestConfirm_includesMasterThatComesBack(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	servers[0].Kill()
	se := openSession(t, newStore(t, optionsFor(servers)), longTTL)
	ticket, standings, err := enqueue(t.Context(), se, "lock", false)
	if err != nil {
		t.Fatal(err)
	}
	admitted(t, standings)
	servers[0].Start()
	everywhere(t, se, servers, "lock")
	servers[1].Kill()
	if err := se.Confirm(t.Context()); err != nil || len(standings) > 0 {
		t.Errorf("Confirm with two of three masters: got %v and %d standings", err, len(standings))
	}
	withdraw(t, ticket)
	if n := countKeys([]*testservers.Redis{servers[0], servers[2]}, "lock"); n != 0 {
		t.Errorf("after Withdraw %d masters have it", n)
	}
}

// Promise: P1
func TestRestore_afterMasterRestartedEmpty(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	client, other := newClient(t, optionsFor(servers), time.Minute), openSession(t, newStore(t, optionsFor(servers)), longTTL)
	h := lock(t, client, "lock")
	eventually(t, "the hold is at all masters", func() bool { return countKeys(servers, "lock") == 3 })
	servers[0].Restart()
	eventually(t, "the hold is at all masters again", func() bool { return countKeys(servers, "lock") == 3 })
	servers[1].Kill() // now the first one is needed
	_, _, err := enqueue(t.Context(), other, "lock", true)
	if _, held := errors.AsType[*store.HeldError](err); !held {
		t.Errorf("Try of another client: got %v, want a HeldError", err)
	}
	if !h.Valid() {
		t.Errorf("lost although two of three masters have it: %v", h.Err())
	}
	release(t, h)
}

func TestRestore_whileAnotherMasterHangs(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 5)
	se := openSession(t, newStore(t, optionsFor(servers)), longTTL)
	hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	servers[4].Pause()
	servers[3].Do("DEL", "lock")
	eventually(t, "the fourth master has it again", func() bool {
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		return countKeys(servers[3:4], "lock") == 1
	})
	servers[4].Resume()
}

// The known weakness of Redlock: one master of a bare majority loses its data, and the lock is
// granted again. The token still protects the resource.
// Promise: P2
func TestToken_risesWhenMasterLostItsData(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	proxies[2].Refuse()
	a, b := newClient(t, options, 90*time.Second), newClient(t, optionsFor(servers), 90*time.Second)
	first := lock(t, a, "lock") // at the first two
	servers[1].Restart()
	second := lock(t, b, "lock") // at the last two
	if !first.Valid() || !second.Valid() {
		t.Errorf("valid: %v, %v; want both", first.Valid(), second.Valid())
	}
	if second.Token() <= first.Token() {
		t.Errorf("got tokens %d, then %d; want rising ones", first.Token(), second.Token())
	}
	proxies[2].Accept()
	select {
	case <-first.Lost():
	case <-time.After(testTimeout):
		t.Error("the next renewal did not notify the first holder")
	}
	if !second.Valid() {
		t.Errorf("the second hold is lost: %v", second.Err())
	}
}

// Promise: P6
func TestHold_lostAtDeadlineWithoutMajority(t *testing.T) {
	t.Parallel()
	const ttl = 15 * time.Second
	servers := testservers.StartRedisServers(t, 3)
	atRisk := make(chan stile.RiskEvent, 1)
	client, err := stile.New(newStore(t, optionsFor(servers)), &stile.Options{TTL: ttl, Hooks: stile.Hooks{
		SessionAtRisk: func(e stile.RiskEvent) { atRisk <- e },
	}})
	if err != nil {
		t.Fatal(err)
	}
	h := lock(t, client, "lock")
	servers[0].Pause()
	servers[1].Pause()
	select {
	case <-atRisk:
	case <-time.After(testTimeout):
		t.Error("the session was not reported at risk")
	}
	time.Sleep(ttl) // it must be lost now, since no renewal has succeeded after the cut
	if h.Valid() {
		t.Errorf("valid %v after the majority was cut off", ttl)
	}
	select {
	case <-h.Lost():
	case <-time.After(testTimeout):
		t.Fatal("the owner was not notified of the loss")
	}
	if err, ok := errors.AsType[*stile.LostError](h.Err()); !ok || err.Reason != stile.LostDeadline {
		t.Errorf("got %v, want LostDeadline", h.Err())
	}
	servers[0].Resume()
	servers[1].Resume()
	release(t, lock(t, client, "lock"))
}

func TestOpen_withoutMajorityNamesMasters(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	servers[0].Kill()
	servers[1].Pause()
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	st := newStore(t, optionsFor(servers))
	go func() {
		_, err := st.Open(ctx, store.SessionOptions{TTL: longTTL})
		opened <- err
	}()
	eventually(t, "the third master has answered", func() bool { // with EVAL, since it did not have the script
		stats, _ := servers[2].Do("INFO", "commandstats").ToString()
		return calls(stats, "eval") != ""
	})
	time.Sleep(500 * time.Millisecond) // until the reply has arrived
	cancel()
	err := <-opened
	wantErr(t, err, servers[0].Addr()+": connect: connection refused", servers[1].Addr()+": still connecting", "1 of 3 masters answered")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
}

// The message for a waiter is lost with the connection, so polling must replace it.
// Promise: P7
func TestWaiter_connectionsCut(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	holder := newClient(t, optionsFor(servers), time.Minute)
	waiter := newClient(t, options, time.Minute)
	for range 2 {
		h := lock(t, holder, "lock")
		p, err := waiter.Mutex("lock").Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		for _, p := range proxies {
			p.Reset()
		}
		release(t, h)
		select {
		case <-p.Ready():
		case <-time.After(testTimeout):
			t.Fatal("the waiter was not admitted")
		}
		got, err := p.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		release(t, got)
	}
}

// Promise: P1
// Bug: RedissonPermitExpirableSemaphore
func TestClock_steppedAtOneMaster(t *testing.T) {
	t.Parallel()
	servers := append(testservers.StartRedisServers(t, 2), testservers.StartRedisWithClock(t))
	se, other := openSession(t, newStore(t, optionsFor(servers)), longTTL), openSession(t, newStore(t, optionsFor(servers)), longTTL)
	ticket, standings, err := enqueue(t.Context(), se, "lock", false)
	if err != nil {
		t.Fatal(err)
	}
	order := admitted(t, standings)
	everywhere(t, se, servers, "lock")
	for _, ahead := range []time.Duration{2 * longTTL, -2 * longTTL} {
		servers[2].SetClockAhead(ahead)
		_, _, err := enqueue(t.Context(), other, "lock", true)
		if _, held := errors.AsType[*store.HeldError](err); !held {
			t.Fatalf("clock %v ahead: Try of another client: got %v, want a HeldError", ahead, err)
		}
		everywhere(t, se, servers, "lock")
		if len(standings) > 0 {
			t.Fatalf("clock %v ahead: the owner got %+v", ahead, <-standings)
		}
	}
	withdraw(t, ticket)
	// A master whose clock is slow keeps its copy, which is removed like the others.
	if _, next := hold(t, other, "lock"); next <= order {
		t.Errorf("got orders %d, then %d; want rising ones", order, next)
	}
}

// Without messages this would take at least half a second.
// Bug: redisson #5349
func TestRelease_notifiesWaiter(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	a, b := newClient(t, optionsFor(servers), time.Minute), newClient(t, optionsFor(servers), time.Minute)
	h := lock(t, a, "lock")
	wantQuick(t, 400*time.Millisecond, "handover", func() {
		p, err := b.Mutex("lock").Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // until it has subscribed
		release(t, h)
		if h, err = p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		a, b = b, a
	})
}

func TestLock_allMastersStall(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	client := newClient(t, optionsFor(servers), time.Minute)
	release(t, lock(t, client, "lock"))
	var stallable []rueidis.Client
	for _, r := range servers {
		stallable = append(stallable, adminClient(t, r))
	}
	for _, stall := range []time.Duration{60 * time.Millisecond, 200 * time.Millisecond} {
		wantQuick(t, stall+time.Second, fmt.Sprintf("lock and unlock with a stall of %v", stall), func() {
			var stalled sync.WaitGroup
			for _, cli := range stallable {
				stalled.Go(func() {
					cli.Do(t.Context(), cli.B().Arbitrary("DEBUG", "SLEEP", fmt.Sprint(stall.Seconds())).Build())
				})
			}
			time.Sleep(5 * time.Millisecond)
			release(t, lock(t, client, "lock"))
			stalled.Wait()
		})
	}
}

func TestScripts_loadedAgainAfterFlush(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, optionsFor(servers)), longTTL)
	flush := func() {
		for _, r := range servers {
			r.Do("SCRIPT", "FLUSH")
		}
	}
	for range 3 {
		flush()
		ticket, _ := hold(t, se, "lock")
		flush()
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		flush()
		if err := ticket.Withdraw(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The masters are busy with a script when the entry is to be removed.
// Promise: P5
func TestWithdraw_busyMasters(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3, "lua-time-limit 1")
	se := openSession(t, newStore(t, optionsFor(servers)), longTTL)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	eventually(t, "the store is subscribed at all masters", func() bool { return subscribed(servers, "lock") == 3 })
	var ends []func()
	for _, r := range servers {
		ends = append(ends, keepBusy(t, r))
	}
	if err := ticket.Withdraw(timeout(t, 200*time.Millisecond)); err == nil {
		t.Error("Withdraw: got nil, want an error")
	}
	for _, end := range ends {
		end()
	}
	eventually(t, "no master has it", func() bool { return countKeys(servers, "lock") == 0 })
	if err := ticket.Withdraw(t.Context()); err != nil && !errors.Is(err, store.ErrGone) {
		t.Error(err)
	}
}

func TestSubscriber_afterMasterWasBusy(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3, "lua-time-limit 1")
	end := keepBusy(t, servers[0])
	st := newStore(t, optionsFor(servers))
	hold(t, openSession(t, st, longTTL), "lock")
	eventually(t, "the store is subscribed at the other masters", func() bool { return subscribed(servers[1:], "lock") == 2 })
	end()
	eventually(t, "the store is subscribed at all masters", func() bool { return subscribed(servers, "lock") == 3 })
}

func TestSubscriber_dropsUnusedTopics(t *testing.T) {
	t.Parallel()
	const count = 150
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, optionsFor(servers)), longTTL)
	channelCount := func(limit, minimum int) func() bool {
		return func() bool {
			for _, r := range servers {
				if all, _ := r.Do("PUBSUB", "CHANNELS").AsStrSlice(); len(all) > limit || len(all) < minimum {
					return false
				}
			}
			return true
		}
	}
	var tickets []store.Ticket
	for i := range count {
		ticket, _ := hold(t, se, fmt.Sprint("lock", i))
		tickets = append(tickets, ticket)
	}
	eventually(t, "there is a subscription for each hold", channelCount(count, count))
	for _, ticket := range tickets {
		withdraw(t, ticket)
	}
	eventually(t, "few subscriptions are left", channelCount(100, 0))
}

// keepBusy makes a server run a script until end is called. Afterwards the server answers requests
// again.
func keepBusy(t *testing.T, r *testservers.Redis) (end func()) {
	t.Helper()
	runs, asks := adminClient(t, r), adminClient(t, r)
	go runs.Do(context.WithoutCancel(t.Context()), runs.B().Arbitrary("EVAL", "while true do end", "0").Build())
	busy := func() bool {
		err := asks.Do(t.Context(), asks.B().Arbitrary("GET", "lock").Build()).Error()
		return err != nil && strings.HasPrefix(err.Error(), "BUSY")
	}
	eventually(t, "the server is busy", busy)
	return func() {
		r.Do("SCRIPT", "KILL") // replies before the script has ended
		eventually(t, "the server is not busy", func() bool { return !busy() })
	}
}

// subscribed returns at how many of the servers there is a subscription to a lock's channel.
func subscribed(servers []*testservers.Redis, name string) (n int) {
	for _, r := range servers {
		if all, _ := r.Do("PUBSUB", "NUMSUB", "stile:"+name).AsIntMap(); all["stile:"+name] > 0 {
			n++
		}
	}
	return n
}

// Promise: P5
func TestWithdraw_masterOutOfMemory(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), longTTL)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	withdraw(t, ticket)
	eventually(t, "all masters are free", func() bool { return countKeys(servers, "lock") == 0 })
	proxies[2].CutReplies()
	ticket, _ = hold(t, se, "lock")
	eventually(t, "all masters have it", func() bool {
		// Without Confirm the third master lacks it if the other two were faster.
		return countKeys(servers, "lock") == 3 || se.Confirm(t.Context()) != nil
	})
	withdraw(t, ticket)
	servers[2].Do("CONFIG", "SET", "maxmemory", "1")
	proxies[2].Reset()
	proxies[2].Release()
	eventually(t, "the third master is clean", func() bool { return countKeys(servers, "lock") == 0 })
}

// A master accepts connections and logins, but executes nothing: the pending removals must not grow
// with every abandoned connection.
func TestMaster_pendingRemovalsDoNotAccumulate(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	options := optionsFor(servers)
	dialed := make(chan net.Conn, 1000)
	options[2].DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			dialed <- conn
		}
		return conn, err
	}
	se := openSession(t, newStore(t, options), longTTL)
	ticket, _ := hold(t, se, "before")
	everywhere(t, se, servers, "before")
	withdraw(t, ticket)
	eventually(t, "the third master is clean", func() bool { return countKeys(servers[2:], "before") == 0 })
	servers[2].Do("CLIENT", "PAUSE", "600000", "WRITE")
	for _, name := range []string{"early", "late", "late", "late", "late"} {
		conns := []net.Conn{<-dialed}
		time.Sleep(20 * time.Millisecond) // most often until it is used, so that the test is strict
		attempt := func() (sent bool) {
			ticket, _ := hold(t, se, name)
			withdraw(t, ticket)
			clients, _ := servers[2].Do("INFO", "clients").ToString()
			return !strings.Contains(clients, "blocked_clients:0\r")
		}
		if sent := attempt(); !sent && name == "early" { // the other two masters may be too fast for it
			eventually(t, "the third master has a request", attempt)
		}
		time.Sleep(20 * time.Millisecond) // most often until a late request would be sent
		for len(dialed) > 0 {             // subscribing connections
			conns = append(conns, <-dialed)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
	servers[2].Do("CLIENT", "UNPAUSE")
	voids := func(name string) int {
		keys, _ := servers[2].Do("KEYS", "{"+name+"}//void/*").AsStrSlice()
		return len(keys)
	}
	eventually(t, "the third master is cleaned up", func() bool { return voids("early") > 0 })
	ticket, _ = hold(t, se, "after")
	eventually(t, "the third master takes part again", func() bool {
		return se.Confirm(t.Context()) == nil && countKeys(servers, "after") == 3
	})
	withdraw(t, ticket)
	if n := voids("late"); n > 0 {
		t.Errorf("%d attempts were sent while removals were pending, want none", n)
	}
}

// With two of five masters hung, all of the others are needed. Contending clients must not wait for
// the hung ones while another could take the lock.
func TestLock_contentionWithHungMasters(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 5)
	var clients []*stile.Client
	for range 4 {
		c := newClient(t, optionsFor(servers), time.Minute)
		release(t, lock(t, c, "lock"))
		clients = append(clients, c)
	}
	contend := func() {
		ctx := timeout(t, testTimeout)
		var all sync.WaitGroup
		for _, c := range clients {
			all.Go(func() {
				if err := c.Mutex("lock").Do(ctx, func(context.Context, *stile.Hold) error { return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	for range 3 {
		start := time.Now()
		contend()
		unimpeded := time.Since(start) // depends on the machine's load
		servers[0].Pause()
		servers[1].Pause()
		wantQuick(t, 4*time.Second+10*unimpeded, "all clients lock and unlock", contend) // one attempt may take 5s
		servers[0].Resume()
		servers[1].Resume()
	}
}
