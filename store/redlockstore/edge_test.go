package redlockstore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redlockstore"
)

func TestCheckMasters(t *testing.T) {
	t.Parallel()
	for addrs, want := range map[string]string{
		"":        "0 masters: give three",
		"a":       "1 masters: give three",
		"a b":     "2 masters: give three",
		"a b c d": "4 masters: an even number tolerates no more failures than 3; use 3 or 5",
		"a b a":   "master a is given twice",
	} {
		wantErr(t, redlockstore.CheckMasters(strings.Fields(addrs)), want)
	}
	if err := redlockstore.CheckMasters(strings.Fields("a b c d e")); err != nil {
		t.Error(err)
	}
}

// A session is confirmed while one of its entries is being admitted. The confirmation does not
// renew the entry, but the holder is valid as long as the session is. A second confirmation
// overlaps the renewal that makes up for the first.
func TestEnqueue_admissionOverlapsConfirmation(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	for what, c := range map[string]struct {
		known         string // the key that all masters have when the first confirmation is begun
		confirmations int
		pause         time.Duration // in addition to the slack, before each; less than the replies take
	}{
		"before its order is sent": {"lock", 1, 300 * time.Millisecond},
		"once":                     {"{lock}//fence", 1, 50 * time.Millisecond},
		"twice":                    {"{lock}//fence", 2, 50 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			servers := testservers.StartRedisServers(t, 3)
			proxies, options := through(t, servers)
			se := openSession(t, newStore(t, options), ttl)
			for _, p := range proxies {
				p.Delay(1200*time.Millisecond, testservers.Down)
			}
			admitted := make(chan error, 1)
			var standings <-chan store.Standing
			go func() {
				var err error
				_, standings, err = enqueue(t.Context(), se, "lock", true)
				admitted <- err
			}()
			eventually(t, "all masters have it, and no reply has arrived", func() bool {
				for _, r := range servers {
					if there, _ := r.Do("EXISTS", c.known).AsInt64(); there != 1 {
						return false
					}
				}
				return true
			})
			var confirmed time.Time
			for range c.confirmations {
				time.Sleep(se.Terms().Slack + c.pause)
				confirmed = time.Now()
				if err := se.Confirm(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-admitted; err != nil {
				t.Fatal(err)
			}
			<-standings
			enough := 0
			for _, r := range servers {
				left, _ := r.Do("PTTL", "lock").AsInt64()
				ends := time.Now().Add(time.Duration(left) * time.Millisecond)
				if ends.After(confirmed.Add(ttl - se.Terms().Slack)) {
					enough++
				}
			}
			if enough < 2 {
				t.Errorf("at %d masters the entry lasts as long as its session, want 2 or more", enough)
			}
		})
	}
}

// An entry is restored at a master that has lost it, and withdrawn before that is answered. If it
// were left there it would block the next.
func TestRestore_notAfterWithdrawal(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), longTTL)
	for i := range 8 {
		ticket, _ := hold(t, se, "lock")
		everywhere(t, se, servers, "lock")
		servers[2].Do("DEL", "lock")
		proxies[2].Delay(20 * time.Millisecond)
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 12 * time.Millisecond) // the master replies that it has nothing, and is asked to restore the entry
		if err := ticket.Withdraw(t.Context()); err != nil {
			t.Fatal(err)
		}
		proxies[2].Delay(0)
	}
	hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
}

// A waiter is withdrawn when the masters have just put it in, but their replies have not arrived.
// Promise: P5
func TestWithdraw_waiterIsOut(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*testing.T, store.Session, store.Ticket) error{
		"withdrawn": func(t *testing.T, _ store.Session, ticket store.Ticket) error {
			return ticket.Withdraw(timeout(t, testTimeout))
		},
		"withdrawn again": func(t *testing.T, _ store.Session, ticket store.Ticket) error {
			if err := ticket.Withdraw(timeout(t, 100*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("without replies: got %v, want DeadlineExceeded", err)
			}
			if err := ticket.Withdraw(timeout(t, testTimeout)); !errors.Is(err, store.ErrGone) {
				t.Errorf("second Withdraw: got %v, want ErrGone", err)
			}
			return nil
		},
		"with its session": func(t *testing.T, se store.Session, _ store.Ticket) error {
			return se.Close(timeout(t, testTimeout))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := testservers.StartRedisServers(t, 3)
			proxies, options := through(t, servers)
			holder, _ := hold(t, openSession(t, newStore(t, optionsFor(servers)), longTTL), "lock")
			se := openSession(t, newStore(t, options), longTTL)
			waiter, _, err := enqueue(t.Context(), se, "lock", false)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range proxies {
				p.CutReplies()
			}
			withdraw(t, holder)
			of := func() (n int) {
				for _, r := range servers {
					if strings.Contains(text(r, "lock"), se.ID()) {
						n++
					}
				}
				return n
			}
			eventually(t, "a majority has put the waiter in", func() bool { return of() > 1 })
			left := make(chan error, 1)
			go func() { left <- leave(t, se, waiter) }()
			select {
			case err := <-left:
				t.Errorf("returned before any master answered: %v", err)
			case <-time.After(200 * time.Millisecond):
			}
			for _, p := range proxies {
				p.Release()
			}
			if err := <-left; err != nil {
				t.Error(err)
			}
			if n := of(); n > 1 {
				t.Errorf("after the withdrawal %d masters have it", n)
			}
			if err := waiter.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
				t.Errorf("Withdraw again: got %v, want ErrGone", err)
			}
		})
	}
}

// The masters have removed the entry for the first call, whose context has ended, when the second
// call is made; their replies arrive after that.
func TestWithdraw_secondCallReturnsGone(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), longTTL)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	for _, p := range proxies {
		p.CutReplies()
	}
	if err := ticket.Withdraw(timeout(t, 50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without replies: got %v, want DeadlineExceeded", err)
	}
	eventually(t, "a majority has removed it", func() bool { return countKeys(servers, "lock") < 2 })
	second := make(chan error, 1)
	go func() { second <- ticket.Withdraw(timeout(t, testTimeout)) }()
	time.Sleep(50 * time.Millisecond) // the call waits for the replies
	for _, p := range proxies {
		p.Release()
	}
	if err := <-second; !errors.Is(err, store.ErrGone) {
		t.Errorf("second Withdraw: got %v, want ErrGone", err)
	}
}

// An entry's time of its own is over at a majority of the masters, one of which is silent. The third
// master has the entry a little longer.
func TestWithdraw_afterItsTimeIsOver(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), longTTL)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	value := text(servers[2], "lock")
	if err := ticket.Extensions().WithdrawAfter(t.Context(), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its time is over", func() bool { return countKeys(servers, "lock") == 0 })
	servers[2].Do("SET", "lock", value)
	proxies[1].CutReplies()
	if err := ticket.Withdraw(timeout(t, testTimeout)); !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw: got %v, want ErrGone", err)
	}
}

// The session is confirmed while it is not yet known that the entry has been given a time of its
// own.
func TestWithdrawAfter_confirmationDoesNotRenew(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	neverSilent(options)
	se := openSession(t, newStore(t, options), longTTL)
	first, _ := hold(t, se, "first")
	everywhere(t, se, servers, "first")
	if err := first.Extensions().WithdrawAfter(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	// The store waits five seconds for replies. On a busy machine that may be too short, so it is tried again.
	for attempt := 1; ; attempt++ {
		name := fmt.Sprintf("lock %d", attempt)
		ticket, _ := hold(t, se, name)
		everywhere(t, se, servers, name)
		cut := time.Now()
		for _, p := range proxies {
			p.CutReplies()
		}
		inTime := func() (n int) {
			for _, r := range servers {
				if ms, _ := r.Do("PTTL", name).AsInt64(); ms <= 40000 {
					n++
				}
			}
			return n
		}
		extended, confirmed := make(chan error, 1), make(chan error, 1)
		go func() { extended <- ticket.Extensions().WithdrawAfter(t.Context(), 35*time.Second) }()
		eventually(t, "the masters have set its time", func() bool { return inTime() == 3 })
		before := scriptsRun(servers)
		go func() { confirmed <- se.Confirm(t.Context()) }()
		eventually(t, "the masters have confirmed the session", func() bool { return scriptsRun(servers) >= before+3 })
		for _, p := range proxies {
			p.Release()
		}
		err := errors.Join(<-extended, <-confirmed)
		if err != nil && time.Since(cut) > 4*time.Second && attempt < 5 {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := inTime(); n != 3 {
			t.Errorf("%d masters have kept its time, want 3", n)
		}
		return
	}
}

// scriptsRun returns how many scripts the servers have been asked to run.
func scriptsRun(servers []*testservers.Redis) (n int) {
	for _, r := range servers {
		stats, _ := r.Do("INFO", "commandstats").ToString()
		of, _ := strconv.Atoi(calls(stats, "evalsha"))
		n += of
	}
	return n
}

func TestHold_lostWithMastersData(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	client := newClient(t, optionsFor(servers), time.Minute)
	h := lock(t, client, "lock")
	for _, r := range servers {
		r.Do("FLUSHALL")
	}
	select {
	case <-h.Lost():
	case <-time.After(testTimeout):
		t.Fatal("the holder was not notified")
	}
	if err, ok := errors.AsType[*stile.LostError](h.Err()); !ok || err.Reason != stile.LostEvicted {
		t.Errorf("got %v, want LostEvicted", h.Err())
	}
	release(t, lock(t, client, "lock"))
}

func TestClose_slowAndHungMasters(t *testing.T) {
	servers := testservers.StartRedisServers(t, 5)
	proxies, options := through(t, servers)
	for _, r := range servers {
		r.Do("PING")
	}
	others := strings.Count(stacks(), "rueidis.(*") // goroutines of other clients of the test
	st, err := redlockstore.New(options, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	se := openSession(t, st, longTTL)
	hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	proxies[3].Delay(40 * time.Millisecond)
	servers[4].Pause()
	start := time.Now()
	if err := se.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	st.Close()
	if took := time.Since(start); took > silenceTimeout/3 {
		t.Errorf("Close took %v", took)
	}
	eventually(t, "no master that answers has the lock", func() bool { return countKeys(servers[:4], "lock") == 0 })
	servers[4].Resume()
	if _, err := st.Open(t.Context(), store.SessionOptions{TTL: time.Second}); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open in a closed store: got %v", err)
	}
	for _, p := range proxies {
		eventually(t, "the connections are closed", func() bool { return p.Connections() == 0 })
	}
	eventually(t, "no goroutines of the store are left", func() bool {
		return strings.Count(stacks(), "redlockstore.(*") == 0 && strings.Count(stacks(), "rueidis.(*") <= others
	})
}

func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// The masters' clocks may be fast by a hundredth, and Redis counts in milliseconds: a key may end
// early by that much.
func TestTerms_allowForClockDrift(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, optionsFor(servers)), time.Minute)
	if drift := time.Minute/100 + time.Millisecond; se.Terms().Slack <= drift {
		t.Errorf("got slack %v for a minute, want more than %v", se.Terms().Slack, drift)
	}
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	const d = 100 * time.Hour
	if err := ticket.Extensions().WithdrawAfter(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the masters have set its time", func() bool {
		for _, r := range servers {
			if ms, _ := r.Do("PTTL", "lock").AsInt64(); ms < (d + d/100 - testTimeout).Milliseconds() {
				return false
			}
		}
		return true
	})
}

// A hold is restored at a master that has lost its data. The order must be restored too: this
// master and another that loses its data may be the majority that determines the next order.
// Promise: P2
func TestRestore_bringsOrder(t *testing.T) {
	t.Parallel()
	const larger = "9000000000000000 another"
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, optionsFor(servers)), longTTL)
	_, order := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	fence := text(servers[1], "{lock}//fence")
	if !strings.HasPrefix(fence, strconv.FormatUint(order, 10)+" ") {
		t.Fatalf("got fence %q for order %d", fence, order)
	}
	servers[0].Do("FLUSHALL")
	restored := func(r *testservers.Redis) func() bool {
		return func() bool {
			if err := se.Confirm(t.Context()); err != nil {
				t.Fatal(err)
			}
			return countKeys([]*testservers.Redis{r}, "lock") == 1
		}
	}
	eventually(t, "the first master has it again", restored(servers[0]))
	if got := text(servers[0], "{lock}//fence"); got != fence {
		t.Errorf("restored master: got fence %q, want %q", got, fence)
	}
	if ms, _ := servers[0].Do("PTTL", "{lock}//fence").AsInt64(); ms < longTTL.Milliseconds() {
		t.Errorf("restored master: got fence TTL of %d ms, want more than the hold's", ms)
	}
	if ms, _ := servers[0].Do("PTTL", "lock").AsInt64(); ms < (longTTL - testTimeout).Milliseconds() {
		t.Errorf("restored master: got TTL of %d ms", ms)
	}
	servers[1].Do("SET", "{lock}//fence", larger)
	servers[1].Do("DEL", "lock")
	eventually(t, "the second master has it again", restored(servers[1]))
	if got := text(servers[1], "{lock}//fence"); got != larger {
		t.Errorf("larger fence %q was replaced by %q", larger, got)
	}
}

// A confirmation that renews many entries and has begun before an entry was given a time of its own
// renews it after that.
// Promise: P5
func TestWithdrawAfter_renewalDoesNotShorten(t *testing.T) {
	t.Parallel()
	const d = 24 * time.Hour
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, optionsFor(servers)), time.Minute)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	if err := ticket.Extensions().WithdrawAfter(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	hasItsTime := func() bool {
		for _, r := range servers {
			key, _ := r.Do("PTTL", "lock").AsInt64()
			fence, _ := r.Do("PTTL", "{lock}//fence").AsInt64()
			if key < (d-testTimeout).Milliseconds() || fence < (d+time.Hour).Milliseconds() {
				return false
			}
		}
		return true
	}
	eventually(t, "the masters have set its time", hasItsTime)
	before := scriptsRun(servers)
	if err := redlockstore.Renew(t.Context(), se, ticket); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all masters have renewed it", func() bool { return scriptsRun(servers) >= before+len(servers) })
	if !hasItsTime() {
		t.Error("the renewal shortened the entry or its fence")
	}
}

// Another client deletes an entry at a majority of the masters. The rest of it must not block
// others.
func TestConfirm_removesRestOfLostEntry(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, optionsFor(servers)), longTTL)
	_, standings, err := enqueue(t.Context(), se, "lock", false)
	if err != nil {
		t.Fatal(err)
	}
	admitted(t, standings)
	everywhere(t, se, servers, "lock")
	servers[0].Do("DEL", "lock")
	servers[1].Do("DEL", "lock")
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := <-standings; st.State != store.Gone {
		t.Errorf("got %+v, want Gone", st)
	}
	eventually(t, "no master has it", func() bool { return countKeys(servers, "lock") == 0 })
}
