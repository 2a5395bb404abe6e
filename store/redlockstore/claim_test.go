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

// redsync always leaves the lock behind for its whole TTL if the context ends while the request is
// in flight.
// Promise: P5
// Bug: CURATOR-462
func TestEnqueue_canceledLeavesNoKeys(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	st := newStore(t, options)
	se := openSession(t, st, longTTL)
	for i, p := range proxies {
		p.Delay(time.Duration(i) * 4 * time.Millisecond)
	}
	failed := 0
	for i := range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		ticket, _, err := enqueue(ctx, se, "lock", i%2 == 0)
		cancel()
		if err == nil {
			_ = ticket.Withdraw(t.Context())
			continue
		}
		failed++
		if !errors.Is(err, context.DeadlineExceeded) {
			if _, held := errors.AsType[*store.HeldError](err); !held { // by the previous attempt, which is being removed
				t.Fatalf("attempt %d: %v", i, err)
			}
		}
		if i%50 == 25 { // the connections break too
			for _, p := range proxies {
				p.Reset()
			}
		}
	}
	t.Logf("%d of 200 attempts failed", failed)
	if failed < 50 {
		t.Error("want 50 or more")
	}
	eventually(t, "no master has the key", func() bool { return countKeys(servers, "lock") == 0 })
	hold(t, se, "lock")
}

// The context ends at any moment, including the one at which the attempt is refused.
func TestEnqueue_canceledWhileRefused(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, optionsFor(servers))
	hold(t, openSession(t, st, longTTL), "lock")
	se := openSession(t, st, longTTL)
	const count = 300
	var typical time.Duration // the shortest of several
	for range 9 {
		start := time.Now()
		_, _, _ = enqueue(t.Context(), se, "lock", true)
		if took := time.Since(start); typical == 0 || took < typical {
			typical = took
		}
	}
	for i := range count {
		ctx, cancel := context.WithTimeout(t.Context(), typical*time.Duration(i)/(count/3))
		_, _, err := enqueue(ctx, se, "lock", true)
		cancel()
		if err == nil {
			t.Fatalf("attempt %d for a held lock succeeded", i)
		}
	}
}

// The network delivers the request long after its connection was abandoned and everything was
// cleaned up on another one.
// Promise: P5
// Bug: CURATOR-498
func TestEnqueue_lateRequestIsVoid(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	first := once(options, servers)
	se := openSession(t, newStore(t, options), longTTL)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	if err := ticket.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all masters are free", func() bool { return countKeys(servers, "lock") == 0 })

	for _, r := range servers[:2] { // to make the attempt fail
		r.Do("SET", "lock", "another's")
	}
	for _, p := range proxies { // no refusal ends the attempt before the third master's request is sent
		p.Hold(testservers.Up)
	}
	conn := <-first
	sent := conn.takes.Load()
	attempted := make(chan error, 1)
	go func() {
		_, _, err := enqueue(t.Context(), se, "lock", true)
		attempted <- err
	}()
	eventually(t, "the request to the third master is in flight", func() bool { return conn.takes.Load() > sent })
	proxies[0].Release()
	proxies[1].Release()
	if err := <-attempted; err == nil {
		t.Fatal("got a lock that another client holds")
	}
	_ = conn.Close()
	eventually(t, "the third master has voided the attempt", func() bool {
		keys, _ := servers[2].Do("KEYS", "{lock}//void/*").AsStrSlice()
		return len(keys) == 1
	})
	before, _ := servers[2].Do("INFO", "commandstats").ToString()
	proxies[2].Release()
	eventually(t, "the request arrives", func() bool {
		now, _ := servers[2].Do("INFO", "commandstats").ToString()
		return calls(now, "evalsha") > calls(before, "evalsha")
	})
	if countKeys(servers[2:], "lock") != 0 {
		t.Error("the request was carried out after its cleanup")
	}
}

// A hold is restored at a master that has lost it. The request is delivered long after its
// connection was abandoned and the hold was released.
func TestRestore_lateRequestIsVoid(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	first := once(options, servers)
	se := openSession(t, newStore(t, options), longTTL)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")

	proxies[2].CutReplies()
	before := scriptsRun(servers[2:])
	// Repeatedly, because an earlier request to restore it may be in flight.
	eventually(t, "the third master gets requests, and does not have the hold", func() bool {
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
	eventually(t, "the request to restore it is in flight", func() bool { return conn.takes.Load() > sent })
	withdraw(t, ticket)
	_ = conn.Close()
	eventually(t, "the third master has voided the attempt", func() bool {
		keys, _ := servers[2].Do("KEYS", "{lock}//void/*").AsStrSlice()
		return len(keys) == 1
	})
	before = scriptsRun(servers[2:])
	proxies[2].Release()
	eventually(t, "the request arrives", func() bool { return scriptsRun(servers[2:]) > before })
	if countKeys(servers[2:], "lock") != 0 {
		t.Error("the request was carried out after its cleanup")
	}
}

// once makes the store connect to the third master with its option only the first time, and
// directly after that. The channel receives the first connection.
func once(options []rueidis.ClientOption, servers []*testservers.Redis) <-chan *counted {
	first := make(chan *counted, 1)
	var dialed atomic.Bool
	options[2].DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		again := dialed.Swap(true)
		if again {
			addr = servers[2].Addr() // without the proxy
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

// calls returns the number of calls of a command in the output of INFO commandstats.
func calls(stats, command string) string {
	_, after, _ := strings.Cut(stats, "cmdstat_"+command+":calls=")
	n, _, _ := strings.Cut(after, ",")
	return n
}

// Each hold's majority shares only one master with the previous one, and the masters' clocks do not
// help: the orders begin a thousand seconds ahead of them.
// Promise: P2
func TestOrder_risesWithEveryMajority(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	client := openSession(t, newStore(t, optionsFor(servers)), longTTL)
	ahead := time.Now().Add(1000 * time.Second).UnixMicro()
	servers[0].Do("SET", "{lock}//fence", strconv.FormatInt(ahead, 10))
	var last uint64
	for i := range 12 {
		down := servers[(i+2)%3]
		down.Pause()
		ticket, order := hold(t, client, "lock")
		if order <= last {
			t.Fatalf("hold %d: got order %d after %d", i, order, last)
		}
		last = order
		if err := ticket.Withdraw(t.Context()); err != nil {
			t.Fatal(err)
		}
		down.Resume()
	}
}

// Promise: P2
func TestOrder_risesAfterDataLoss(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, optionsFor(servers)), longTTL)
	ticket, before := hold(t, se, "lock")
	if err := ticket.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range servers {
		r.Do("FLUSHALL")
	}
	if _, after := hold(t, se, "lock"); after <= before {
		t.Errorf("got orders %d, then %d; want rising ones", before, after)
	}
}

// A request to put an entry in reaches one master only after another entry has been admitted and
// has left; and one of the quicker masters has lost the entry because its clock was set forward.
// Promise: P2
func TestOrder_notAfterLargerOne(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	late := openSession(t, newStore(t, options), longTTL)
	other := openSession(t, newStore(t, optionsFor(servers)), longTTL)
	ticket, _ := hold(t, late, "lock")
	everywhere(t, late, servers, "lock")
	withdraw(t, ticket)
	eventually(t, "all masters are free", func() bool { return countKeys(servers, "lock") == 0 })

	proxies[0].Hold(testservers.Up)
	proxies[2].Hold(testservers.Down)
	var standings <-chan store.Standing
	joined := make(chan error, 1)
	go func() {
		var err error
		_, standings, err = enqueue(t.Context(), late, "lock", false)
		joined <- err
	}()
	eventually(t, "two masters have the entry", func() bool { return countKeys(servers[1:], "lock") == 2 })
	servers[1].Do("DEL", "lock")
	ticket, before := hold(t, other, "lock")
	withdraw(t, ticket)
	eventually(t, "the other entry has left", func() bool { return countKeys(servers[:2], "lock") == 0 })
	proxies[2].Release(testservers.Down)
	eventually(t, "the third master has recorded the order", func() bool {
		fence, id := text(servers[2], "{lock}//fence"), text(servers[2], "lock")
		_, of, _ := strings.Cut(fence, " ")
		return of != "" && strings.HasPrefix(id, of)
	})
	proxies[0].Release(testservers.Up)
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	if after := admitted(t, standings); after <= before {
		t.Errorf("got order %d after %d", after, before)
	}
}

// A hold may last longer than its order would be remembered by itself.
func TestOrder_rememberedAsLongAsHold(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, optionsFor(servers))
	se := openSession(t, st, longTTL)
	ticket, _ := hold(t, se, "lock")
	remembered := func() (n int) {
		for _, r := range servers {
			if ms, _ := r.Do("PTTL", "{lock}//fence").AsInt64(); ms > (6 * 24 * time.Hour).Milliseconds() {
				n++
			}
		}
		return n
	}
	for _, r := range servers { // as if almost a week had passed
		r.Do("PEXPIRE", "{lock}//fence", "20000")
		r.Do("PEXPIRE", "lock", "20000")
	}
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := remembered(); n < 2 {
		t.Errorf("after a renewal %d masters remember the order, want 2 or more", n)
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
		t.Errorf("%d masters remember the order for a month, want 2 or more", n)
	}
}

// A master with a wildly wrong clock or old data must not exhaust the orders unnoticed.
// Promise: P2
func TestOrder_exhausted(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, optionsFor(servers)), longTTL)
	for _, r := range servers {
		r.Do("SET", "{lock}//fence", strconv.Itoa(store.MaxOrder))
	}
	_, _, err := enqueue(t.Context(), se, "lock", false)
	wantErr(t, err, "no fencing token is left", "{lock}//fence", servers[0].Addr())
}

// At each master, redsync and hand-written lockers use SET NX PX.
// Promise: P1
func TestOtherRedlockClients_mutualExclusion(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, optionsFor(servers))
	se := openSession(t, st, longTTL)
	take := func(ms string) (n int) {
		for _, r := range servers {
			cli := adminClient(t, r)
			if cli.Do(t.Context(), cli.B().Arbitrary("SET", "lock", "theirs", "NX", "PX", ms).Build()).Error() == nil {
				n++
			}
		}
		return n
	}
	if n := take("600000"); n != 3 {
		t.Fatalf("the other client got %d masters, want 3", n)
	}
	_, _, err := enqueue(t.Context(), se, "lock", true)
	if held, ok := errors.AsType[*store.HeldError](err); !ok || held.Holder == nil || !held.Holder.Foreign {
		t.Errorf("Try: got %v, want a HeldError with a foreign holder", err)
	}
	l, err := st.Line(t.Context(), "lock") // any master may answer: all have it
	if err != nil || len(l.Entries) != 1 || !l.Entries[0].Foreign || !l.Entries[0].Admitted || l.Entries[0].Remaining < time.Minute {
		t.Errorf("got line %+v, %v; want one foreign entry", l, err)
	}
	for _, r := range servers { // they unlock and publish nothing
		r.Do("DEL", "lock")
	}
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	if n := take("600000"); n != 0 {
		t.Errorf("the other client took %d masters while Stile holds the lock", n)
	}
	if err := ticket.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all masters are free", func() bool { return countKeys(servers, "lock") == 0 })

	start := time.Now()
	if n := take("300"); n != 3 { // and they crash
		t.Fatalf("the other client got %d masters, want 3", n)
	}
	hold(t, se, "lock")
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("Stile got the lock %v after another client took it for 300ms", took)
	}
}

func TestEnqueue_keyOfAnotherType(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, optionsFor(servers))
	for _, r := range servers {
		r.Do("LPUSH", "lock", "data")
	}
	_, _, err := enqueue(t.Context(), openSession(t, st, longTTL), "lock", false)
	wantErr(t, err, "join the line", "WRONGTYPE", "give the locks their own prefix or database")
	eventually(t, "the line has no entries and a remark for each master", func() bool { // Line does not wait for all masters
		l, err := st.Line(t.Context(), "lock")
		if err != nil || len(l.Entries) != 0 {
			t.Fatalf("got line %+v, %v; want no entries", l, err)
		}
		return strings.Count(strings.Join(l.Remarks, "; "), "in use for something else") == 3
	})
}

// Another client overwrites the key of one lock.
func TestConfirm_keyOfAnotherTypeLosesOneHold(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, optionsFor(servers)), longTTL)
	_, standings, err := enqueue(t.Context(), se, "lost", false)
	if err != nil {
		t.Fatal(err)
	}
	admitted(t, standings)
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
	case st := <-standings:
		if st.State != store.Gone {
			t.Errorf("got %+v, want Gone", st)
		}
	default: // Confirm has returned
		t.Error("the owner got no standing, want Gone")
	}
	withdraw(t, kept)
}

// Bug: madelson/DistributedLock
func TestNames_specialCharacters(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	names := []string{"*", "{", "}", "{}", "a{b}c", `\`, "[a-z]", "%s %d", "-", "+", "größe", "a b", `"'`, "names", "fence"}
	for prefix, names := range map[string][]string{"": names, "team*[a-z]{": names[:7], `}\?"`: names[:7]} {
		st, err := newStoreWithPrefix(t, optionsFor(servers), prefix)
		if err != nil {
			t.Fatal(err)
		}
		se := openSession(t, st, longTTL)
		for _, name := range names {
			changed := make(chan struct{}, 100)
			ctx, cancel := context.WithCancel(t.Context())
			watched := make(chan error, 1)
			go func() { watched <- st.Watch(ctx, name, func([]string) { changed <- struct{}{} }) }()
			<-changed
			ticket, order := hold(t, se, name)
			<-changed
			eventually(t, "all masters have the entry and its order", func() bool { // so any master may answer
				if countKeys(servers, prefix+name) == len(servers) && countKeys(servers, "{"+prefix+name+"}//fence") == len(servers) {
					return true
				}
				if err := se.Confirm(t.Context()); err != nil {
					t.Fatal(err)
				}
				return false
			})
			if ls, err := store.CollectLines(st.Lines(t.Context(), name)); err != nil || len(ls) != 1 || ls[0].Name != name {
				t.Errorf("%q, prefix %q: got lines %+v, %v", name, prefix, ls, err)
			}
			if _, err := st.Break(t.Context(), name, order); err != nil {
				t.Error(err)
			}
			eventually(t, "no master has it", func() bool { return countKeys(servers, prefix+name) == 0 })
			if err := ticket.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
				t.Errorf("%q, prefix %q: Withdraw after Break: got %v, want ErrGone", name, prefix, err)
			}
			cancel()
			<-watched
		}
	}
}

func TestLine_remarksWhereMastersDisagree(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, optionsFor(servers))
	se := openSession(t, st, longTTL)
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
		t.Fatalf("got line %+v, want no entries and two remarks", l)
	}
	wantErr(t, errors.New(l.Remarks[0]), "1 of 3 masters, no majority", "it ends there within")
	wantErr(t, errors.New(l.Remarks[1]), servers[1].Addr()+": no answer")
	wantErr(t, err, "no entry with order", "1 of 3 masters did not answer")
	eventually(t, "the line has an entry and a remark", func() bool {
		l = line()
		return len(l.Entries) == 1 && len(l.Remarks) == 1
	})
	wantErr(t, errors.New(l.Remarks[0]), "is at 2 of 3 masters")
}

// One master has lost the entry, so the slowest decides whether a majority has it.
func TestLine_waitsForSlowMaster(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, optionsFor(servers)), longTTL)
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

func TestConfirm_oneRequestForManyHolds(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st := newStore(t, optionsFor(servers))
	se := openSession(t, st, longTTL)
	const count = 80
	for i := range count {
		hold(t, se, fmt.Sprint("lock/", i))
	}
	eventually(t, "the first master has all holds", func() bool {
		if n, _ := servers[0].Do("DBSIZE").AsInt64(); n == 2*count+1 { // plus the index
			return true
		}
		if err := se.Confirm(t.Context()); err != nil { // restores the holds that the other two masters had decided before
			t.Fatal(err)
		}
		return false
	})
	servers[0].Do("CONFIG", "RESETSTAT")
	for range 2 { // a majority has answered after the first, all after the second
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stats, _ := servers[0].Do("INFO", "commandstats").ToString()
	n, err := strconv.Atoi(calls(stats, "evalsha"))
	if err != nil || n > 10 {
		t.Errorf("%d holds were renewed by %d requests, want 10 or fewer", count, n)
	}
}

// More requests are unanswered than maxTakes.
func TestConfirm_whileManyTakesAreUnanswered(t *testing.T) {
	t.Parallel()
	const count = 700
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	neverSilent(options)
	se := openSession(t, newStore(t, options), longTTL)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	withdraw(t, ticket)
	eventually(t, "all masters are free", func() bool { return countKeys(servers, "lock") == 0 })
	for _, p := range proxies {
		p.CutReplies()
	}
	for _, r := range servers {
		r.Do("CONFIG", "RESETSTAT")
	}
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() {
			if _, _, err := enqueue(t.Context(), se, fmt.Sprint("lock", i), false); err != nil {
				t.Error(err)
			}
		})
	}
	for _, r := range servers {
		eventually(t, "the masters have many unanswered requests", func() bool {
			// Not the number of keys: a call that is repeated takes the place of one for another lock.
			stats, _ := r.Do("INFO", "commandstats").ToString()
			n, _ := strconv.Atoi(calls(stats, "evalsha"))
			return n > 400
		})
	}
	confirmed := make(chan error, 1)
	go func() { confirmed <- se.Confirm(t.Context()) }()
	select {
	case err := <-confirmed:
		t.Fatalf("Confirm returned before any master answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	for _, p := range proxies {
		p.Release()
	}
	if err := <-confirmed; err != nil {
		t.Error(err)
	}
	all.Wait()
	if err := se.Close(timeout(t, testTimeout)); err != nil {
		t.Error(err)
	}
	eventually(t, "all masters are free", func() bool { return countKeys(servers, "lock0") == 0 })
}

// The documented permissions suffice. Without those to subscribe, locking is only slower.
func TestACL_documentedSuffices(t *testing.T) {
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
	for name, rights := range map[string]string{"with subscribe": all, "without": few} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := testservers.StartRedisServers(t, 3, "user ann on >secret "+rights)
			options := optionsFor(servers)
			for i := range options {
				options[i].Username, options[i].Password = "ann", "secret"
			}
			st, err := newStoreWithPrefix(t, options, "team/")
			if err != nil {
				t.Fatal(err)
			}
			se := openSession(t, st, longTTL)
			ticket, order := hold(t, se, "lock")
			eventually(t, "all masters have the entry and its order", func() bool { // so any master may answer
				if countKeys(servers, "team/lock") == 3 && countKeys(servers, "{team/lock}//fence") == 3 {
					return true
				}
				if err := se.Confirm(t.Context()); err != nil {
					t.Fatal(err)
				}
				return false
			})
			waits, standings, err := enqueue(t.Context(), openSession(t, st, longTTL), "lock", false)
			if err != nil {
				t.Fatal(err)
			}
			if ls, err := store.CollectLines(st.Lines(t.Context(), "")); err != nil || len(ls) != 1 || ls[0].Entries[0].Order != order {
				t.Errorf("got lines %+v, %v", ls, err)
			}
			if st := <-standings; st.State != store.Waiting {
				t.Errorf("the second entry got %+v, want Waiting", st)
			}
			if err := ticket.Withdraw(t.Context()); err != nil {
				t.Fatal(err)
			}
			admitted(t, standings)
			if err := waits.Withdraw(t.Context()); err != nil {
				t.Error(err)
			}
			watching, stop := context.WithCancel(timeout(t, testTimeout))
			err = st.Watch(watching, "", func([]string) {
				if name != "without" {
					stop()
				}
			})
			stop()
			if refused := strings.Contains(err.Error(), "docs/stores.md lists the permissions"); refused != (name == "without") {
				t.Errorf("Watch: got %v", err)
			}
		})
	}
}

func timeout(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestOpen_wrongPassword(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3, "requirepass right")
	options := optionsFor(servers)
	for i := range options {
		options[i].Password = "wrong-one"
	}
	_, err := newStore(t, options).Open(t.Context(), store.SessionOptions{TTL: longTTL})
	wantErr(t, err, "check the user and the password", servers[2].Addr())
	if strings.Contains(err.Error(), "wrong-one") {
		t.Errorf("the error contains the password: %v", err)
	}
	if strings.Contains(err.Error(), "has answered within") {
		t.Errorf("Open timed out instead of failing at once: %v", err)
	}
}

// Clients contend while some of the masters are suspended, disconnected, refusing connections or
// slow; at times so many and for so long that holds are lost. No two holds are valid at a time, and
// the tokens rise.
// Promise: P1
func TestHold_noOverlapUnderFaults(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 5)
	proxies, options := through(t, servers)
	f := &arena{t: t}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute) // a starved machine has taken 5 for 38 holds
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
			disturb(t, servers, proxies, 3, 1500*time.Millisecond) // long enough to lose the hold
		} else {
			disturb(t, servers, proxies, 1+rand.IntN(2), 300*time.Millisecond)
		}
	}
	cancel()
	all.Wait()
	if t.Logf("%d holds, %d lost", f.holds, f.losses); !f.hasSeenEnough() {
		t.Error("want 40 or more holds and a loss")
	}
}

// disturb disturbs n random masters, for limit at most.
func disturb(t *testing.T, servers []*testservers.Redis, proxies []*testservers.Proxy, n int, limit time.Duration) {
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
	time.Sleep(limit/2 + rand.N(limit/2))
}

// arena checks the holds that clients have in turn.
type arena struct {
	t      *testing.T
	mu     sync.Mutex
	inside *stile.Hold
	stays  bool // the current holder stays long
	last   uint64
	holds  int
	losses int
}

// hasSeenEnough reports whether enough has happened to reveal a mistake.
func (f *arena) hasSeenEnough() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holds >= 40 && f.losses > 0
}

// occupied reports whether a client holds the lock that will keep it for long.
func (f *arena) occupied() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inside != nil && f.stays
}

func (f *arena) visit(ctx context.Context, c *stile.Client) {
	h, err := c.Mutex("lock").Lock(ctx)
	if err != nil {
		return
	}
	f.mu.Lock()
	if f.inside != nil && f.inside.Valid() && h.Valid() {
		f.t.Errorf("two clients hold the lock: tokens %d and %d", f.inside.Token(), h.Token())
	}
	// A client that arrives after its hold was lost may come after the next holder.
	if valid := h.Valid(); valid && h.Token() <= f.last {
		f.t.Errorf("got token %d after %d", h.Token(), f.last)
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
	_ = h.Release(context.WithoutCancel(ctx)) // a lost hold cannot be released
}
