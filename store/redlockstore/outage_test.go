package redlockstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// redsync with its defaults: 5 s to lock and 5 s to unlock with one of three masters hung, 0.4 s and 1.7 s with one that
// refuses.
func TestAMinorityOutOfReachDelaysNobody(t *testing.T) {
	t.Parallel()
	const ttl, most = 6 * time.Second, 300 * time.Millisecond
	hang, refuse := (*testservers.Redis).Pause, (*testservers.Redis).Kill
	for _, c := range []struct {
		masters, down int
		how           string
		stop          func(*testservers.Redis)
	}{
		{3, 1, "hang", hang}, {3, 1, "refuse", refuse}, {5, 2, "hang", hang}, {5, 2, "refuse", refuse},
	} {
		t.Run(fmt.Sprintf("%d of %d %s from the start", c.down, c.masters, c.how), func(t *testing.T) {
			t.Parallel()
			servers := testservers.StartRedisServers(t, c.masters)
			for _, r := range servers[:c.down] {
				c.stop(r)
			}
			client := newClient(t, patient(to(servers)), ttl)
			release(t, lock(t, client, "lock"))
			if took := timed(func() { release(t, lock(t, client, "lock")) }); took[0] > most {
				t.Errorf("to lock and unlock took %v", took)
			}
		})
		t.Run(fmt.Sprintf("%d of %d %s while holding", c.down, c.masters, c.how), func(t *testing.T) {
			t.Parallel()
			servers := testservers.StartRedisServers(t, c.masters)
			client, other := newClient(t, patient(to(servers)), ttl), newClient(t, patient(to(servers)), ttl)
			h := lock(t, client, "lock")
			for _, r := range servers[:c.down] {
				c.stop(r)
			}
			next := make(chan *stile.Hold, 1)
			go func() {
				if h, err := other.Mutex("lock").Lock(t.Context()); err == nil {
					next <- h
				}
			}()
			time.Sleep(ttl + ttl/10)
			if !h.Valid() || len(next) > 0 {
				t.Fatalf("a majority has it, and it is lost: %v; another has it: %v", h.Err(), len(next) > 0)
			}
			release(t, h)
			select {
			case <-next:
			case <-time.After(soon):
				t.Error("who waits does not get it")
			}
		})
	}
}

func TestASlowMasterDelaysNobody(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	client := newClient(t, patient(options), 10*time.Second)
	release(t, lock(t, client, "lock"))
	const late = time.Second
	proxies[1].Delay(late)
	if took := timed(func() { release(t, lock(t, client, "lock")) }); took[0] > late {
		t.Errorf("to lock and unlock took %v", took)
	}
	eventually(t, "the slow master is clean, too", func() bool { return holding(servers, "lock") == 0 })
}

func TestAMasterThatComesLaterTakesPart(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	servers[0].Kill()
	const ttl = 4 * time.Second
	client := newClient(t, to(servers), ttl)
	h := lock(t, client, "lock")
	servers[0].Start()
	eventually(t, "the hold is at all masters", func() bool { return holding(servers, "lock") == 3 })
	servers[1].Kill()
	time.Sleep(ttl + ttl/10)
	if !h.Valid() {
		t.Errorf("lost although two of three have it: %v", h.Err())
	}
	release(t, h)
	if n := holding([]*testservers.Redis{servers[0], servers[2]}, "lock"); n != 0 {
		t.Errorf("after the release %d masters have it", n)
	}
}

func TestAHoldIsRestoredAtAMasterThatHasForgotten(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	const ttl = 4 * time.Second
	client, other := newClient(t, to(servers), ttl), newClient(t, to(servers), ttl)
	h := lock(t, client, "lock")
	servers[0].Restart()
	eventually(t, "the hold is at all masters again", func() bool { return holding(servers, "lock") == 3 })
	servers[1].Kill() // now the first is needed
	if _, err := other.Mutex("lock").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
		t.Errorf("another tried and got %v, want ErrHeld", err)
	}
	time.Sleep(ttl + ttl/10)
	if !h.Valid() {
		t.Errorf("lost although two of three have it: %v", h.Err())
	}
}

func TestAHoldIsRestoredWhileAnotherMasterHangs(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 5)
	se := openSession(t, newStore(t, patient(to(servers))), time.Minute)
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
func TestTheTokenTellsWhoIsLaterWhenAMasterHasForgotten(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	proxies[2].Refuse()
	a, b := newClient(t, options, 20*time.Second), newClient(t, to(servers), 20*time.Second)
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

func TestWithoutAMajorityAHoldIsLostByItsDeadline(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	servers := testservers.StartRedisServers(t, 3)
	atRisk := make(chan time.Time, 1)
	client, err := stile.New(newStore(t, to(servers)), &stile.Options{TTL: ttl, Hooks: stile.Hooks{
		AtRisk: func(left time.Duration) {
			if left > 0 {
				atRisk <- time.Now()
			}
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	h := lock(t, client, "lock")
	servers[0].Pause()
	servers[1].Pause()
	cut := time.Now()
	select {
	case <-h.Lost():
	case <-time.After(2 * ttl):
		t.Fatal("the hold is not lost")
	}
	lost := time.Now()
	if lost.Sub(cut) > ttl {
		t.Errorf("lost %v after the majority was gone, which is more than the TTL", lost.Sub(cut))
	}
	if err, ok := errors.AsType[*stile.LostError](h.Err()); !ok || err.Reason != stile.LostDeadline {
		t.Errorf("lost because of %v, want the deadline", h.Err())
	}
	select {
	case at := <-atRisk:
		if !at.Before(lost) {
			t.Error("it was at risk only when it was lost")
		}
	default:
		t.Error("it was never said to be at risk")
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := newStore(t, to(servers)).Open(ctx, store.SessionOptions{TTL: time.Second})
	wantSaid(t, err, servers[0].Addr()+": connect: connection refused", servers[1].Addr()+": still connecting", "1 of 3 masters answered")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error does not match the context's: %v", err)
	}
}

// The bell that tells a waiter is lost with the connection: what remains is to look now and then.
func TestAWaiterWhoseConnectionsAreCutIsNotForgotten(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	holder := newClient(t, to(servers), 10*time.Second)
	waiter := newClient(t, options, 10*time.Second)
	for range 3 {
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
		got, err := p.Hold()
		if err != nil {
			t.Fatal(err)
		}
		release(t, got)
	}
}

func TestASteppedClockOfOneMasterHarmsNothing(t *testing.T) {
	t.Parallel()
	servers := append(testservers.StartRedisServers(t, 2), testservers.StartRedisAhead(t))
	client, other := newClient(t, to(servers), 4*time.Second), newClient(t, to(servers), 4*time.Second)
	h := lock(t, client, "lock")
	token := h.Token()
	for _, ahead := range []time.Duration{time.Minute, -time.Minute} {
		servers[2].SetAhead(ahead)
		if _, err := other.Mutex("lock").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Fatalf("with a clock %v ahead another tried and got %v, want ErrHeld", ahead, err)
		}
		eventually(t, "the hold is at all masters again", func() bool { return holding(servers, "lock") == 3 })
		if !h.Valid() {
			t.Fatalf("with a clock %v ahead the hold is lost: %v", ahead, h.Err())
		}
	}
	release(t, h)
	// One whose clock is slow keeps its copy: it is taken out like the others.
	next := lock(t, other, "lock")
	if next.Token() <= token {
		t.Errorf("the token was %d and is %d", token, next.Token())
	}
}

// Without word from the masters it would take about a second.
func TestAReleaseWakesWhoWaits(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	a, b := newClient(t, to(servers), 10*time.Second), newClient(t, to(servers), 10*time.Second)
	h := lock(t, a, "lock")
	took := timed(func() {
		p, err := b.Mutex("lock").Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // it has subscribed
		release(t, h)
		if h, err = p.Hold(); err != nil {
			t.Fatal(err)
		}
		a, b = b, a
	})
	if took[2] > 400*time.Millisecond {
		t.Errorf("hand-overs took %v", took)
	}
}

func TestAStallOfAllMastersDelaysByNoMoreThanTheStall(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	client := newClient(t, to(servers), 5*time.Second)
	release(t, lock(t, client, "lock"))
	var stallable []rueidis.Client
	for _, r := range servers {
		stallable = append(stallable, r.Client(t))
	}
	for _, stall := range []time.Duration{60 * time.Millisecond, 200 * time.Millisecond} {
		took := timed(func() {
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
		if took[0] > stall+time.Second {
			t.Errorf("with a stall of %v it took %v", stall, took)
		}
	}
}

func TestFlushedScriptsAreLoadedAgain(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, to(servers)), time.Minute)
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
func TestAnEntryIsTakenOutAtMastersThatWereBusy(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3, "lua-time-limit 1")
	se := openSession(t, newStore(t, to(servers)), time.Minute)
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
	hold(t, openSession(t, st, time.Minute), "lock")
	eventually(t, "the others are listened to", func() bool { return listening(servers[1:], "lock") == 2 })
	servers[0].Do("SCRIPT", "KILL")
	eventually(t, "so is the first", func() bool { return listening(servers, "lock") == 3 })
}

func TestWhatIsNotWantedAnyMoreIsNotListenedTo(t *testing.T) {
	t.Parallel()
	const many = 250
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, to(servers)), time.Minute)
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
	runs, asks := r.Client(t), r.Client(t)
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

func TestAMasterWithoutMemoryIsCleanedUp(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), time.Minute)
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
	var dials atomic.Int32
	options[2].Dialer.KeepAlive = 100 * time.Millisecond // between signs of life
	options[2].ConnWriteTimeout = 200 * time.Millisecond
	options[2].DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		dials.Add(1)
		return d.DialContext(ctx, "tcp", addr)
	}
	se := openSession(t, newStore(t, options), time.Minute)
	eventually(t, "the third master is connected", func() bool { return dials.Load() == 1 })
	servers[2].Do("CLIENT", "PAUSE", "60000", "WRITE")
	for dials.Load() < 6 {
		name := "early"
		if dials.Load() > 1 {
			name = "late"
		}
		ticket, _ := hold(t, se, name)
		withdraw(t, ticket)
	}
	servers[2].Do("CLIENT", "UNPAUSE")
	voids := func(name string) int {
		keys, _ := servers[2].Do("KEYS", "{"+name+"}//void/*").AsStrSlice()
		return len(keys)
	}
	eventually(t, "the third master is cleaned up", func() bool { return voids("early") > 0 })
	ticket, _ := hold(t, se, "after")
	eventually(t, "it takes part again", func() bool {
		// On a busy machine its connection may be given up once more: then it gets the hold with a renewal.
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
		c := newClient(t, patient(to(servers)), 10*time.Second)
		release(t, lock(t, c, "lock"))
		clients = append(clients, c)
	}
	for range 5 {
		ctx := timeout(t, soon)
		servers[0].Pause()
		servers[1].Pause()
		var all sync.WaitGroup
		for _, c := range clients {
			all.Go(func() {
				err := c.Mutex("lock").Do(ctx, func(context.Context, *stile.Hold) error { return nil })
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		servers[0].Resume()
		servers[1].Resume()
	}
}
