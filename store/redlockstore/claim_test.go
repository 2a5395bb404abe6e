package redlockstore_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
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

// redsync leaves the lock behind for its whole TTL, ten times out of ten, if the context ends while it is on its way.
// Promise: P5
func TestWhatIsGivenUpLeavesNothingAtAnyMaster(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	st := newStore(t, options)
	se := openSession(t, st, long)
	for i, p := range proxies {
		p.Delay(time.Duration(i) * 4 * time.Millisecond)
	}
	left := 0
	for i := range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		ticket, _, err := enqueue(ctx, se, "lock", i%2 == 0)
		cancel()
		if err == nil {
			_ = ticket.Withdraw(t.Context())
			continue
		}
		left++
		if !errors.Is(err, context.DeadlineExceeded) {
			if _, held := errors.AsType[*store.HeldError](err); !held { // by the one before, on its way out
				t.Fatalf("attempt %d: %v", i, err)
			}
		}
		if i%50 == 25 { // and its connections break
			for _, p := range proxies {
				p.Reset()
			}
		}
	}
	t.Logf("%d of 200 were given up", left)
	if left < 50 {
		t.Error("too few to tell")
	}
	eventually(t, "no master has anything of it", func() bool { return holding(servers, "lock") == 0 })
	hold(t, se, "lock")
}

// The context ends at any moment, also at that in which it is heard that somebody else has the lock.
func TestWhatIsGivenUpAsItIsRefusedIsAnError(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, to(servers))
	hold(t, openSession(t, st, long), "lock")
	se := openSession(t, st, long)
	const many = 300
	var typical time.Duration // the quickest of some
	for range 9 {
		start := time.Now()
		_, _, _ = enqueue(t.Context(), se, "lock", true)
		if took := time.Since(start); typical == 0 || took < typical {
			typical = took
		}
	}
	for i := range many {
		ctx, cancel := context.WithTimeout(t.Context(), typical*time.Duration(i)/(many/3))
		_, _, err := enqueue(ctx, se, "lock", true)
		cancel()
		if err == nil {
			t.Fatalf("attempt %d for a lock that is held was a success", i)
		}
	}
}

// The request is in the hands of something that delivers it long after its connection was given up and everything was
// cleaned up on another.
// Promise: P5
func TestARequestThatArrivesAfterItsCleanupIsVoid(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	first := once(options, servers)
	se := openSession(t, newStore(t, options), long)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	if err := ticket.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all masters are free", func() bool { return holding(servers, "lock") == 0 })

	for _, r := range servers[:2] { // so that the attempt fails
		r.Do("SET", "lock", "another's")
	}
	proxies[2].Hold(testservers.Up)
	conn := <-first
	sent := conn.takes.Load()
	if _, _, err := enqueue(t.Context(), se, "lock", true); err == nil {
		t.Fatal("the lock is another's, and was taken")
	}
	eventually(t, "the request to the third master is on its way", func() bool { return conn.takes.Load() > sent })
	_ = conn.Close()
	eventually(t, "the third master is told that the attempt is void", func() bool {
		keys, _ := servers[2].Do("KEYS", "{lock}//void/*").AsStrSlice()
		return len(keys) == 1
	})
	before, _ := servers[2].Do("INFO", "commandstats").ToString()
	proxies[2].Release()
	eventually(t, "the request arrives", func() bool {
		now, _ := servers[2].Do("INFO", "commandstats").ToString()
		return calls(now, "evalsha") > calls(before, "evalsha")
	})
	if holding(servers[2:], "lock") != 0 {
		t.Error("the request was carried out after its cleanup")
	}
}

// A hold is restored at a master that has lost it. The request is delivered long after its connection was given up, and the
// hold was released.
func TestARestorationThatArrivesAfterItsCleanupIsVoid(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	first := once(options, servers)
	se := openSession(t, newStore(t, options), long)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	servers[2].Do("DEL", "lock")
	everywhere(t, se, servers, "lock") // so that the master knows the script

	proxies[2].CutReplies()
	before := scriptsRun(servers[2:])
	// Several times: a request to restore it may have been on its way from before.
	eventually(t, "the third master is asked for the hold, and does not have it", func() bool {
		servers[2].Do("DEL", "lock")
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		return scriptsRun(servers[2:]) >= before+5
	})
	servers[2].Do("DEL", "lock")
	proxies[2].Hold(testservers.Up)
	conn := <-first
	sent := conn.takes.Load()
	proxies[2].Release(testservers.Down)
	eventually(t, "the request to restore it is on its way", func() bool { return conn.takes.Load() > sent })
	withdraw(t, ticket)
	_ = conn.Close()
	eventually(t, "the third master is told that the attempt is void", func() bool {
		keys, _ := servers[2].Do("KEYS", "{lock}//void/*").AsStrSlice()
		return len(keys) == 1
	})
	before = scriptsRun(servers[2:])
	proxies[2].Release()
	eventually(t, "the request arrives", func() bool { return scriptsRun(servers[2:]) > before })
	if holding(servers[2:], "lock") != 0 {
		t.Error("the request was carried out after its cleanup")
	}
}

// once makes the third master be connected to as its option says once only, and then directly. It returns the connection that
// is made first.
func once(options []rueidis.ClientOption, servers []*testservers.Redis) <-chan *counted {
	first := make(chan *counted, 1)
	var dialed atomic.Bool
	options[2].DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		again := dialed.Swap(true)
		if again {
			addr = servers[2].Addr() // not through the proxy again
		}
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil || again {
			return conn, err
		}
		c := &counted{Conn: conn}
		first <- c
		return c, nil
	}
	return first
}

// counted is a connection that counts the requests to put an entry in.
type counted struct {
	net.Conn
	takes atomic.Int32
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.takes.Add(int32(bytes.Count(b, []byte("//void/"))))
	return n, err
}

// calls returns what INFO commandstats says of how often a command was called.
func calls(stats, command string) string {
	_, after, _ := strings.Cut(stats, "cmdstat_"+command+":calls=")
	n, _, _ := strings.Cut(after, ",")
	return n
}

// Each hold's majority has but one master in common with that of the one before, and the clocks of the masters are of no
// help: the orders begin a thousand seconds ahead.
// Promise: P2
func TestOrdersRiseWhateverTheMajority(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	client := openSession(t, newStore(t, to(servers)), long)
	ahead := time.Now().Add(1000 * time.Second).UnixMicro()
	servers[0].Do("SET", "{lock}//fence", strconv.FormatInt(ahead, 10))
	var last uint64
	for i := range 12 {
		down := servers[(i+2)%3]
		down.Pause()
		ticket, order := hold(t, client, "lock")
		if order <= last {
			t.Fatalf("hold %d has the order %d, after %d", i, order, last)
		}
		last = order
		if err := ticket.Withdraw(t.Context()); err != nil {
			t.Fatal(err)
		}
		down.Resume()
	}
}

// Promise: P2
func TestOrdersRiseAfterAllIsForgotten(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, to(servers)), long)
	ticket, before := hold(t, se, "lock")
	if err := ticket.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range servers {
		r.Do("FLUSHALL")
	}
	if _, after := hold(t, se, "lock"); after <= before {
		t.Errorf("the order was %d and is %d", before, after)
	}
}

// A request to put an entry in is on its way to one master so long that another has had the lock, and has left it again,
// when it arrives; and of the masters that were quicker one has lost the entry, because its clock was set.
// Promise: P2
func TestAnOrderIsNotGivenAfterALargerOne(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	late := openSession(t, newStore(t, options), long)
	other := openSession(t, newStore(t, to(servers)), long)
	ticket, _ := hold(t, late, "lock")
	everywhere(t, late, servers, "lock")
	withdraw(t, ticket)
	eventually(t, "all masters are free", func() bool { return holding(servers, "lock") == 0 })

	proxies[0].Hold(testservers.Up)
	proxies[2].Hold(testservers.Down)
	var told <-chan store.Standing
	joined := make(chan error, 1)
	go func() {
		var err error
		_, told, err = enqueue(t.Context(), late, "lock", false)
		joined <- err
	}()
	eventually(t, "two masters have the entry", func() bool { return holding(servers[1:], "lock") == 2 })
	servers[1].Do("DEL", "lock")
	ticket, before := hold(t, other, "lock")
	withdraw(t, ticket)
	eventually(t, "the other has left", func() bool { return holding(servers[:2], "lock") == 0 })
	proxies[2].Release(testservers.Down)
	eventually(t, "the third master knows the order", func() bool {
		fence, id := text(servers[2], "{lock}//fence"), text(servers[2], "lock")
		_, of, _ := strings.Cut(fence, " ")
		return of != "" && strings.HasPrefix(id, of)
	})
	proxies[0].Release(testservers.Up)
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	if after := admitted(t, told); after <= before {
		t.Errorf("the order %d was given after %d", after, before)
	}
}

// A hold may last longer than its order is remembered without it.
func TestTheOrderIsRememberedAsLongAsTheHold(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, to(servers))
	se := openSession(t, st, long)
	ticket, _ := hold(t, se, "lock")
	remembered := func() (n int) {
		for _, r := range servers {
			if ms, _ := r.Do("PTTL", "{lock}//fence").AsInt64(); ms > (6 * 24 * time.Hour).Milliseconds() {
				n++
			}
		}
		return n
	}
	for _, r := range servers { // a week passes, but for some seconds
		r.Do("PEXPIRE", "{lock}//fence", "20000")
		r.Do("PEXPIRE", "lock", "20000")
	}
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := remembered(); n < 2 {
		t.Errorf("after a renewal %d masters go on remembering the order", n)
	}
	if err := ticket.Extensions().WithdrawAfter(t.Context(), 30*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, r := range servers {
		if ms, _ := r.Do("PTTL", "{lock}//fence").AsInt64(); ms > (30 * 24 * time.Hour).Milliseconds() {
			n++
		}
	}
	if n < 2 {
		t.Errorf("%d masters remember the order of an entry that stands for a month so long", n)
	}
}

// A master whose clock or data is from another age must not bring the orders to where they cannot rise.
// Promise: P2
func TestTheEndOfTheOrdersIsAnError(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, to(servers)), long)
	for _, r := range servers {
		r.Do("SET", "{lock}//fence", "9007199254740990")
	}
	_, _, err := enqueue(t.Context(), se, "lock", false)
	wantSaid(t, err, "the fence has come to its end", servers[0].Addr())
}

// What redsync and everybody who writes SET NX PX by hand do, at each master.
// Promise: P1
func TestOtherRedlockClientsAndStileExcludeEachOther(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, to(servers))
	se := openSession(t, st, long)
	take := func(ms string) (n int) {
		for _, r := range servers {
			cli := direct(t, r)
			if cli.Do(t.Context(), cli.B().Arbitrary("SET", "lock", "theirs", "NX", "PX", ms).Build()).Error() == nil {
				n++
			}
		}
		return n
	}
	if n := take("600000"); n != 3 {
		t.Fatalf("they have %d masters", n)
	}
	_, _, err := enqueue(t.Context(), se, "lock", true)
	if held, ok := errors.AsType[*store.HeldError](err); !ok || held.Holder == nil || !held.Holder.Foreign {
		t.Errorf("a try got %v, want a HeldError that says it is a foreign client", err)
	}
	l, err := st.Line(t.Context(), "lock") // whichever masters answer: all have it
	if err != nil || len(l.Entries) != 1 || !l.Entries[0].Foreign || !l.Entries[0].Admitted || l.Entries[0].Remaining < time.Minute {
		t.Errorf("the line is %+v, %v; want one foreign entry", l, err)
	}
	for _, r := range servers { // they unlock, and tell nobody
		r.Do("DEL", "lock")
	}
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	if n := take("600000"); n != 0 {
		t.Errorf("they took %d masters while Stile has the lock", n)
	}
	if err := ticket.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all masters are free", func() bool { return holding(servers, "lock") == 0 })

	start := time.Now()
	if n := take("300"); n != 3 { // and crash
		t.Fatalf("they have %d masters", n)
	}
	hold(t, se, "lock")
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("Stile had the lock %v after they took it for 300 ms", took)
	}
}

func TestAKeyThatIsNoLockIsAnError(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, to(servers))
	for _, r := range servers {
		r.Do("LPUSH", "lock", "data")
	}
	_, _, err := enqueue(t.Context(), openSession(t, st, long), "lock", false)
	wantSaid(t, err, "join the line", "WRONGTYPE", "give the locks a prefix or a database of their own")
	eventually(t, "the line has nobody and three remarks, one for each master", func() bool { // which are not all waited for
		l, err := st.Line(t.Context(), "lock")
		if err != nil || len(l.Entries) != 0 {
			t.Fatalf("the line is %+v, %v; want nobody in it", l, err)
		}
		return strings.Count(strings.Join(l.Remarks, "; "), "in use for something else") == 3
	})
}

// Somebody writes something else over the key of one lock.
func TestAKeyThatBecomesSomethingElseCostsOneHoldOnly(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, to(servers)), long)
	_, told, err := enqueue(t.Context(), se, "lost", false)
	if err != nil {
		t.Fatal(err)
	}
	admitted(t, told)
	everywhere(t, se, servers, "lost")
	kept, _ := hold(t, se, "kept")
	for _, r := range servers {
		r.Do("DEL", "lost")
		r.Do("LPUSH", "lost", "data")
	}
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case st := <-told:
		if st.State != store.Gone {
			t.Errorf("its owner was told %+v, want that it has gone", st)
		}
	default: // Confirm has returned
		t.Error("its owner was not told that it has gone")
	}
	withdraw(t, kept)
}

func TestNamesMayHaveAnythingInThem(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	names := []string{"*", "{", "}", "{}", "a{b}c", `\`, "[a-z]", "%s %d", "-", "+", "größe", "a b", `"'`, "names", "fence"}
	for prefix, names := range map[string][]string{"": names, "team*[a-z]{": names[:7], `}\?"`: names[:7]} {
		st, err := redlockStoreAt(t, to(servers), prefix)
		if err != nil {
			t.Fatal(err)
		}
		se := openSession(t, st, long)
		for _, name := range names {
			changed := make(chan struct{}, 100)
			ctx, cancel := context.WithCancel(t.Context())
			watched := make(chan error, 1)
			go func() { watched <- st.Watch(ctx, name, func() { changed <- struct{}{} }) }()
			<-changed
			ticket, order := hold(t, se, name)
			<-changed
			eventually(t, "all masters have the entry and its order", func() bool { // so it does not matter who answers
				if holding(servers, prefix+name) == len(servers) && holding(servers, "{"+prefix+name+"}//fence") == len(servers) {
					return true
				}
				if err := se.Confirm(t.Context()); err != nil {
					t.Fatal(err)
				}
				return false
			})
			if ls, err := st.Lines(t.Context(), name); err != nil || len(ls) != 1 || ls[0].Name != name {
				t.Errorf("%q after %q: the lines are %+v, %v", name, prefix, ls, err)
			}
			if _, err := st.Break(t.Context(), name, order); err != nil {
				t.Error(err)
			}
			eventually(t, "no master has it", func() bool { return holding(servers, prefix+name) == 0 })
			if err := ticket.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
				t.Errorf("%q after %q: to withdraw what was broken is %v", name, prefix, err)
			}
			cancel()
			<-watched
		}
	}
}

func TestALineSaysWhereTheMastersDisagree(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, to(servers))
	se := openSession(t, st, long)
	_, order := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	line := func() store.Line {
		l, err := st.Line(t.Context(), "lock")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	servers[0].Do("DEL", "lock")
	servers[1].Pause()
	l := line()
	_, err := st.Break(t.Context(), "lock", order)
	servers[1].Resume()
	if len(l.Entries) != 0 || len(l.Remarks) != 2 {
		t.Fatalf("the line is %+v; want two remarks and nobody", l)
	}
	wantSaid(t, errors.New(l.Remarks[0]), "1 of 3 masters, no majority", "it ends there within")
	wantSaid(t, errors.New(l.Remarks[1]), servers[1].Addr()+": no answer")
	wantSaid(t, err, "no entry with order", "1 of 3 masters did not answer")
	eventually(t, "there is an entry and a remark", func() bool {
		l = line()
		return len(l.Entries) == 1 && len(l.Remarks) == 1
	})
	wantSaid(t, errors.New(l.Remarks[0]), "is at 2 of 3 masters")
}

// With one master that has lost the entry, it depends on the slowest whether a majority has it.
func TestWhoReadsWaitsForASlowMaster(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, to(servers)), long)
	hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	servers[0].Do("DEL", "lock")
	st := newStore(t, options)
	proxies[2].Delay(60 * time.Millisecond)
	eventually(t, "a reader sees the holder", func() bool {
		l, err := st.Line(t.Context(), "lock")
		return err == nil && len(l.Entries) == 1
	})
}

func TestManyHoldsAreRenewedByOneRequest(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, to(servers))
	se := openSession(t, st, long)
	const many = 80
	for i := range many {
		hold(t, se, fmt.Sprint("lock/", i))
	}
	eventually(t, "the first master has done its part for all holds", func() bool {
		n, _ := servers[0].Do("DBSIZE").AsInt64()
		return n == 2*many+1 // and the index
	})
	servers[0].Do("CONFIG", "RESETSTAT")
	for range 2 { // a majority has answered, then this one, too
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stats, _ := servers[0].Do("INFO", "commandstats").ToString()
	n, err := strconv.Atoi(calls(stats, "evalsha"))
	if err != nil || n > 10 {
		t.Errorf("%d holds were renewed by %d requests", many, n)
	}
}

// More requests are unanswered than the masters are asked to put something in at a time.
func TestASessionIsRenewedWhileManyTryAtOnce(t *testing.T) {
	t.Parallel()
	const many = 700
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	neverSilent(options)
	se := openSession(t, newStore(t, options), long)
	// First all are connected to. Then all are asked to put something in, and so know the script: one that does not would
	// say so, unheard, instead of putting in what follows.
	for range 2 {
		ticket, _ := hold(t, se, "lock")
		everywhere(t, se, servers, "lock")
		withdraw(t, ticket)
		eventually(t, "all masters are free", func() bool { return holding(servers, "lock") == 0 })
	}
	for _, p := range proxies {
		p.CutReplies()
	}
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			if _, _, err := enqueue(t.Context(), se, fmt.Sprint("lock", i), false); err != nil {
				t.Error(err)
			}
		})
	}
	for _, r := range servers {
		eventually(t, "the masters have much to answer", func() bool {
			n, _ := r.Do("DBSIZE").AsInt64()
			return n > 500
		})
	}
	confirmed := make(chan error, 1)
	go func() { confirmed <- se.Confirm(t.Context()) }()
	select {
	case err := <-confirmed:
		t.Fatalf("before any master has answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	for _, p := range proxies {
		p.Release()
	}
	if err := <-confirmed; err != nil {
		t.Error(err)
	}
	all.Wait()
	if err := se.Close(timeout(t, soon)); err != nil {
		t.Error(err)
	}
	eventually(t, "all masters are free", func() bool { return holding(servers, "lock0") == 0 })
}

// The rights that docs/stores.md lists are enough, and without those to listen it is only slower.
func TestAUserWithFewRightsCanLock(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "stores.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "with the prefix `team/`")
	_, text, _ = strings.Cut(text, "```")
	text, _, _ = strings.Cut(text, "```")
	all := strings.Join(strings.Fields(text), " ")
	few, _, _ := strings.Cut(strings.Replace(all, "&stile:team/*", "", 1), "+publish")
	for name, rights := range map[string]string{"with the right to listen": all, "without": few} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := testservers.StartRedisServers(t, 3, "user ann on >secret "+rights)
			options := to(servers)
			for i := range options {
				options[i].Username, options[i].Password = "ann", "secret"
			}
			st, err := redlockStoreAt(t, options, "team/")
			if err != nil {
				t.Fatal(err)
			}
			se := openSession(t, st, long)
			ticket, order := hold(t, se, "lock")
			eventually(t, "all masters have the entry and its order", func() bool { // so it does not matter who answers
				if holding(servers, "team/lock") == 3 && holding(servers, "{team/lock}//fence") == 3 {
					return true
				}
				if err := se.Confirm(t.Context()); err != nil {
					t.Fatal(err)
				}
				return false
			})
			waits, told, err := enqueue(t.Context(), openSession(t, st, long), "lock", false)
			if err != nil {
				t.Fatal(err)
			}
			if ls, err := st.Lines(t.Context(), ""); err != nil || len(ls) != 1 || ls[0].Entries[0].Order != order {
				t.Errorf("the lines are %+v, %v", ls, err)
			}
			if st := <-told; st.State != store.Waiting {
				t.Errorf("who comes second was told %+v, want that it waits", st)
			}
			if err := ticket.Withdraw(t.Context()); err != nil {
				t.Fatal(err)
			}
			admitted(t, told)
			if err := waits.Withdraw(t.Context()); err != nil {
				t.Error(err)
			}
			watching, stop := context.WithCancel(timeout(t, soon))
			err = st.Watch(watching, "", func() {
				if name != "without" {
					stop()
				}
			})
			stop()
			if refused := strings.Contains(err.Error(), "docs/stores.md lists the rights"); refused != (name == "without") {
				t.Errorf("Watch ended with %v", err)
			}
		})
	}
}

func timeout(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestAWrongPasswordIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3, "requirepass right")
	options := to(servers)
	for i := range options {
		options[i].Password = "wrong-one"
	}
	_, err := newStore(t, options).Open(t.Context(), store.SessionOptions{TTL: long})
	wantSaid(t, err, "check the user and the password", servers[2].Addr())
	if strings.Contains(err.Error(), "wrong-one") {
		t.Errorf("the error tells the password: %v", err)
	}
	if strings.Contains(err.Error(), "has answered within") {
		t.Errorf("it was tried again until the time was over, as if nobody had answered: %v", err)
	}
}

// Clients contend while some of the masters are stopped, cut off, refused and slow, at times so many of them and for so
// long that holds are lost. No two holds are valid at a time, and the tokens rise.
// Promise: P1
func TestHoldsNeverOverlapUnderFaults(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 5)
	proxies, options := through(t, servers)
	f := &floor{t: t}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for range 4 {
		c := newClient(t, options, 1200*time.Millisecond)
		all.Go(func() {
			for ctx.Err() == nil {
				f.visit(ctx, c)
			}
		})
	}
	for start := time.Now(); ctx.Err() == nil && (time.Since(start) < 8*time.Second || !f.hasSeenEnough()); {
		if f.occupied() {
			hurt(t, servers, proxies, 3, 1500*time.Millisecond) // and it may be lost
		} else {
			hurt(t, servers, proxies, 1+rand.IntN(2), 300*time.Millisecond)
		}
	}
	cancel()
	all.Wait()
	if t.Logf("%d holds, %d lost", f.holds, f.losses); !f.hasSeenEnough() {
		t.Error("that is too little to tell")
	}
}

// hurt does something to some of the masters for a while.
func hurt(t *testing.T, servers []*testservers.Redis, proxies []*testservers.Proxy, n int, most time.Duration) {
	t.Helper()
	which := rand.Perm(len(servers))[:n]
	how := rand.IntN(4)
	for _, i := range which {
		switch how {
		case 0:
			servers[i].Pause()
			defer servers[i].Resume()
		case 1:
			proxies[i].Hold()
			defer proxies[i].Release()
		case 2:
			proxies[i].Refuse()
			proxies[i].Reset()
			defer proxies[i].Accept()
		case 3:
			proxies[i].Delay(30 * time.Millisecond)
			defer proxies[i].Delay(0)
		}
	}
	time.Sleep(most/2 + rand.N(most/2))
}

// floor is where those are who have the lock.
type floor struct {
	t      *testing.T
	mu     sync.Mutex
	inside *stile.Hold
	stays  bool // the one inside, for long
	last   uint64
	holds  int
	losses int
}

// hasSeenEnough reports whether so much has happened that a mistake would have shown.
func (f *floor) hasSeenEnough() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holds >= 40 && f.losses > 0
}

// occupied reports whether somebody is inside who will stay.
func (f *floor) occupied() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inside != nil && f.stays
}

func (f *floor) visit(ctx context.Context, c *stile.Client) {
	h, err := c.Mutex("lock").Lock(ctx)
	if err != nil {
		return
	}
	f.mu.Lock()
	if f.inside != nil && f.inside.Valid() && h.Valid() {
		f.t.Errorf("two have the lock: tokens %d and %d", f.inside.Token(), h.Token())
	}
	// Who comes here so late that the hold is lost may come after the next holder.
	if valid := h.Valid(); valid && h.Token() <= f.last {
		f.t.Errorf("token %d after %d", h.Token(), f.last)
	}
	if h.Valid() {
		f.inside, f.last = h, max(f.last, h.Token())
	}
	f.holds++
	stay := rand.N(20 * time.Millisecond)
	if f.stays = f.holds%10 == 0; f.stays {
		stay = 3 * time.Second
	}
	f.mu.Unlock()

	select {
	case <-time.After(stay):
	case <-h.Lost():
	}

	f.mu.Lock()
	if f.inside == h {
		f.inside = nil
	}
	if !h.Valid() {
		f.losses++
	}
	f.mu.Unlock()
	_ = h.Release(context.WithoutCancel(ctx)) // a hold that is lost cannot be released
}
