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

// redsync with its defaults: 5 s to lock and 5 s to unlock with one of three masters hung, 0.4 s and 1.7 s with one that
// refuses.
// Promise: P7
func TestAMinorityOutOfReachDelaysNobody(t *testing.T) {
	t.Parallel()
	const most = 2 * time.Second // who waited for the minority would do so for 5 s to lock, and for longer to unlock
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
			se, other := openSession(t, newStore(t, to(servers)), long), openSession(t, newStore(t, to(servers)), long)
			held, told, err := enqueue(t.Context(), se, "held", false)
			if err != nil {
				t.Fatal(err)
			}
			admitted(t, told)
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
				wantQuick(t, most, "to lock and unlock, "+what+",", func() {
					ticket, _ := hold(t, se, "lock")
					withdraw(t, ticket)
				})
				wantQuick(t, most, "to renew, "+what+",", func() {
					if err := se.Confirm(timeout(t, soon)); err != nil {
						t.Error(err)
					}
				})
			}
			quick("for one who was connected to all,", se)
			quick("for one who comes later,", openSession(t, newStore(t, to(servers)), long))
			if len(told) > 0 {
				t.Errorf("a majority has the entry, and its owner was told %+v", <-told)
			}
			for len(next) > 0 {
				if st := <-next; st.State != store.Waiting {
					t.Errorf("who waits was told %+v", st)
				}
			}
			withdraw(t, held)
			admitted(t, next)
		})
	}
}

func TestASlowMasterDelaysNobody(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), long)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	withdraw(t, ticket)
	const late = 3 * time.Second
	proxies[1].Delay(late)
	wantQuick(t, late, "to lock and unlock", func() {
		ticket, _ := hold(t, se, "lock")
		withdraw(t, ticket)
	})
	eventually(t, "the slow master is clean, too", func() bool { return holding(servers, "lock") == 0 })
}

// A master that was out of reach at first takes part with the next renewal, and counts when another is lost.
func TestAMasterThatComesLaterTakesPart(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	servers[0].Kill()
	se := openSession(t, newStore(t, to(servers)), long)
	ticket, told, err := enqueue(t.Context(), se, "lock", false)
	if err != nil {
		t.Fatal(err)
	}
	admitted(t, told)
	servers[0].Start()
	everywhere(t, se, servers, "lock")
	servers[1].Kill()
	if err := se.Confirm(t.Context()); err != nil || len(told) > 0 {
		t.Errorf("two of three have it, and to renew it is %v; the owner was told %d times", err, len(told))
	}
	withdraw(t, ticket)
	if n := holding([]*testservers.Redis{servers[0], servers[2]}, "lock"); n != 0 {
		t.Errorf("after the release %d masters have it", n)
	}
}

// Promise: P1
func TestAHoldIsRestoredAtAMasterThatHasForgotten(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	client, other := newClient(t, to(servers), 20*time.Second), openSession(t, newStore(t, to(servers)), long)
	h := lock(t, client, "lock")
	eventually(t, "the hold is at all masters", func() bool { return holding(servers, "lock") == 3 })
	servers[0].Restart()
	eventually(t, "the hold is at all masters again", func() bool { return holding(servers, "lock") == 3 })
	servers[1].Kill() // now the first is needed
	_, _, err := enqueue(t.Context(), other, "lock", true)
	if _, held := errors.AsType[*store.HeldError](err); !held {
		t.Errorf("another tried and got %v, want a HeldError", err)
	}
	if !h.Valid() {
		t.Errorf("lost although two of three have it: %v", h.Err())
	}
	release(t, h)
}

func TestAHoldIsRestoredWhileAnotherMasterHangs(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 5)
	se := openSession(t, newStore(t, to(servers)), long)
	hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	servers[4].Pause()
	servers[3].Do("DEL", "lock")
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the fourth master has it again", func() bool { return holding(servers[3:4], "lock") == 1 })
	servers[4].Resume()
}

// The hole in Redlock: one of a bare majority forgets, and the lock is given away. The token is what remains.
// Promise: P2
func TestTheTokenTellsWhoIsLaterWhenAMasterHasForgotten(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	proxies[2].Refuse()
	a, b := newClient(t, options, 30*time.Second), newClient(t, to(servers), 30*time.Second)
	first := lock(t, a, "lock") // at the first two
	servers[1].Restart()
	second := lock(t, b, "lock") // at the last two
	if !first.Valid() || !second.Valid() {
		t.Errorf("there is no hole: the holds are valid: %v, %v", first.Valid(), second.Valid())
	}
	if second.Token() <= first.Token() {
		t.Errorf("the token was %d and is %d", first.Token(), second.Token())
	}
	proxies[2].Accept()
	select {
	case <-first.Lost():
	case <-time.After(soon):
		t.Error("the first holder is not told by the next renewal")
	}
	if !second.Valid() {
		t.Errorf("the second hold is lost: %v", second.Err())
	}
}

// Promise: P6
func TestWithoutAMajorityAHoldIsLostByItsDeadline(t *testing.T) {
	t.Parallel()
	const ttl = 15 * time.Second
	servers := testservers.StartRedisServers(t, 3)
	atRisk := make(chan stile.RiskEvent, 1)
	client, err := stile.New(newStore(t, to(servers)), &stile.Options{TTL: ttl, Hooks: stile.Hooks{
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
	case <-time.After(soon):
		t.Error("it was never said to be at risk before it was lost")
	}
	time.Sleep(ttl) // from now on at the latest, since no renewal has succeeded after the cut
	if h.Valid() {
		t.Errorf("it is valid %v after the majority was gone", ttl)
	}
	select {
	case <-h.Lost():
	case <-time.After(soon):
		t.Fatal("its owner is not told that it is lost")
	}
	if err, ok := errors.AsType[*stile.LostError](h.Err()); !ok || err.Reason != stile.LostDeadline {
		t.Errorf("lost because of %v, want the deadline", h.Err())
	}
	servers[0].Resume()
	servers[1].Resume()
	release(t, lock(t, client, "lock"))
}

func TestOpeningWithoutAMajorityNamesThoseThatAreMissing(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	servers[0].Kill()
	servers[1].Pause()
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	st := newStore(t, to(servers))
	go func() {
		_, err := st.Open(ctx, store.SessionOptions{TTL: long})
		opened <- err
	}()
	eventually(t, "the third master has answered", func() bool { // to the script itself, which it did not know at first
		stats, _ := servers[2].Do("INFO", "commandstats").ToString()
		return calls(stats, "eval") != ""
	})
	time.Sleep(500 * time.Millisecond) // and is heard
	cancel()
	err := <-opened
	wantSaid(t, err, servers[0].Addr()+": connect: connection refused", servers[1].Addr()+": still connecting", "1 of 3 masters answered")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error does not match the context's: %v", err)
	}
}

// The bell that tells a waiter is lost with the connection: what remains is to look now and then.
// Promise: P7
func TestAWaiterWhoseConnectionsAreCutIsNotForgotten(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	holder := newClient(t, to(servers), time.Minute)
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
		case <-time.After(soon):
			t.Fatal("forgotten")
		}
		got, err := p.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		release(t, got)
	}
}

// Promise: P1
func TestASteppedClockOfOneMasterHarmsNothing(t *testing.T) {
	t.Parallel()
	servers := append(testservers.StartRedisServers(t, 2), testservers.StartRedisAhead(t))
	se, other := openSession(t, newStore(t, to(servers)), long), openSession(t, newStore(t, to(servers)), long)
	ticket, told, err := enqueue(t.Context(), se, "lock", false)
	if err != nil {
		t.Fatal(err)
	}
	order := admitted(t, told)
	everywhere(t, se, servers, "lock")
	for _, ahead := range []time.Duration{2 * long, -2 * long} {
		servers[2].SetAhead(ahead)
		_, _, err := enqueue(t.Context(), other, "lock", true)
		if _, held := errors.AsType[*store.HeldError](err); !held {
			t.Fatalf("with a clock %v ahead another tried and got %v, want a HeldError", ahead, err)
		}
		everywhere(t, se, servers, "lock")
		if len(told) > 0 {
			t.Fatalf("with a clock %v ahead the owner was told %+v", ahead, <-told)
		}
	}
	withdraw(t, ticket)
	// One whose clock is slow keeps its copy: it is taken out like the others.
	if _, next := hold(t, other, "lock"); next <= order {
		t.Errorf("the order was %d and is %d", order, next)
	}
}

// Without word from the masters it would take half a second at least.
func TestAReleaseWakesWhoWaits(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	a, b := newClient(t, to(servers), time.Minute), newClient(t, to(servers), time.Minute)
	h := lock(t, a, "lock")
	wantQuick(t, 400*time.Millisecond, "to hand over", func() {
		p, err := b.Mutex("lock").Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // it has subscribed
		release(t, h)
		if h, err = p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		a, b = b, a
	})
}

func TestAStallOfAllMastersDelaysByNoMoreThanTheStall(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	client := newClient(t, to(servers), time.Minute)
	release(t, lock(t, client, "lock"))
	var stallable []rueidis.Client
	for _, r := range servers {
		stallable = append(stallable, direct(t, r))
	}
	for _, stall := range []time.Duration{60 * time.Millisecond, 200 * time.Millisecond} {
		wantQuick(t, stall+time.Second, fmt.Sprintf("with a stall of %v, to lock and unlock", stall), func() {
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

func TestFlushedScriptsAreLoadedAgain(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, to(servers)), long)
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

// The masters are in the midst of something else when the entry is to be taken out.
// Promise: P5
func TestAnEntryIsTakenOutAtMastersThatWereBusy(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3, "lua-time-limit 1")
	se := openSession(t, newStore(t, to(servers)), long)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	eventually(t, "all masters are listened to", func() bool { return listening(servers, "lock") == 3 })
	for _, r := range servers {
		keepBusy(t, r)
	}
	if err := ticket.Withdraw(timeout(t, 200*time.Millisecond)); err == nil {
		t.Error("it is said to be out")
	}
	for _, r := range servers {
		r.Do("SCRIPT", "KILL")
	}
	eventually(t, "no master has it", func() bool { return holding(servers, "lock") == 0 })
	if err := ticket.Withdraw(t.Context()); err != nil && !errors.Is(err, store.ErrGone) {
		t.Error(err)
	}
}

func TestAMasterThatWasBusyIsListenedTo(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3, "lua-time-limit 1")
	keepBusy(t, servers[0])
	st := newStore(t, to(servers))
	hold(t, openSession(t, st, long), "lock")
	eventually(t, "the others are listened to", func() bool { return listening(servers[1:], "lock") == 2 })
	servers[0].Do("SCRIPT", "KILL")
	eventually(t, "so is the first", func() bool { return listening(servers, "lock") == 3 })
}

func TestWhatIsNotWantedAnyMoreIsNotListenedTo(t *testing.T) {
	t.Parallel()
	const many = 150
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, to(servers)), long)
	listened := func(most, least int) func() bool {
		return func() bool {
			for _, r := range servers {
				if all, _ := r.Do("PUBSUB", "CHANNELS").AsStrSlice(); len(all) > most || len(all) < least {
					return false
				}
			}
			return true
		}
	}
	var tickets []store.Ticket
	for i := range many {
		ticket, _ := hold(t, se, fmt.Sprint("lock", i))
		tickets = append(tickets, ticket)
	}
	eventually(t, "all holds are listened to", listened(many, many))
	for _, ticket := range tickets {
		withdraw(t, ticket)
	}
	eventually(t, "few of them are", listened(100, 0))
}

// keepBusy has a server run a script until SCRIPT KILL.
func keepBusy(t *testing.T, r *testservers.Redis) {
	t.Helper()
	runs, asks := direct(t, r), direct(t, r)
	go runs.Do(context.WithoutCancel(t.Context()), runs.B().Arbitrary("EVAL", "while true do end", "0").Build())
	eventually(t, "the server is busy", func() bool {
		err := asks.Do(t.Context(), asks.B().Arbitrary("GET", "lock").Build()).Error()
		return err != nil && strings.HasPrefix(err.Error(), "BUSY")
	})
}

// listening returns how many of the servers are listened to for what happens to a lock.
func listening(servers []*testservers.Redis, name string) (n int) {
	for _, r := range servers {
		if all, _ := r.Do("PUBSUB", "NUMSUB", "stile:"+name).AsIntMap(); all["stile:"+name] > 0 {
			n++
		}
	}
	return n
}

// Promise: P5
func TestAMasterWithoutMemoryIsCleanedUp(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), long)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	withdraw(t, ticket)
	eventually(t, "all masters are free", func() bool { return holding(servers, "lock") == 0 })
	proxies[2].CutReplies()
	ticket, _ = hold(t, se, "lock")
	eventually(t, "all masters have it", func() bool { return holding(servers, "lock") == 3 })
	withdraw(t, ticket)
	servers[2].Do("CONFIG", "SET", "maxmemory", "1")
	proxies[2].Reset()
	proxies[2].Release()
	eventually(t, "the third master is clean", func() bool { return holding(servers, "lock") == 0 })
}

// A master lets itself be connected to, and says who it is, but carries nothing out: what has to be cleaned up at it does
// not become more with every connection that is given up.
func TestAMasterThatOnlyConnectsGathersNothingToCleanUp(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	options := to(servers)
	dialed := make(chan net.Conn, 1000)
	options[2].DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			dialed <- conn
		}
		return conn, err
	}
	se := openSession(t, newStore(t, options), long)
	ticket, _ := hold(t, se, "before")
	everywhere(t, se, servers, "before")
	withdraw(t, ticket)
	eventually(t, "the third master has nothing to do", func() bool { return holding(servers[2:], "before") == 0 })
	servers[2].Do("CLIENT", "PAUSE", "600000", "WRITE")
	for _, name := range []string{"early", "late", "late", "late", "late"} {
		conns := []net.Conn{<-dialed}
		time.Sleep(20 * time.Millisecond) // it is used, if it is going to be
		ticket, _ := hold(t, se, name)
		withdraw(t, ticket)
		time.Sleep(20 * time.Millisecond) // the request to the third master is sent, if it is going to be
		for len(dialed) > 0 {             // those for listening
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
	eventually(t, "it takes part again", func() bool {
		return se.Confirm(t.Context()) == nil && holding(servers, "after") == 3
	})
	withdraw(t, ticket)
	if n := voids("late"); n > 0 {
		t.Errorf("%d attempts were sent to it while it had not done what it was asked before", n)
	}
}

// With two of five hung, all of the others are needed, and of those who contend for them nobody must wait for the hung
// ones while others could have the lock.
func TestContendersDoNotWaitForThoseThatHang(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 5)
	var clients []*stile.Client
	for range 4 {
		c := newClient(t, to(servers), time.Minute)
		release(t, lock(t, c, "lock"))
		clients = append(clients, c)
	}
	contend := func() {
		ctx := timeout(t, soon)
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
		outcomeWait := time.Since(start) // on this machine, as busy as it is
		servers[0].Pause()
		servers[1].Pause()
		wantQuick(t, 4*time.Second+10*outcomeWait, "to let all in, one after the other,", contend) // an attempt alone may take 5 s
		servers[0].Resume()
		servers[1].Resume()
	}
}
