package redlockstore_test

import (
	"context"
	"errors"
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

func TestNewRefusesWhatIsNoRedlock(t *testing.T) {
	t.Parallel()
	for addrs, want := range map[string]string{
		"":        "0 masters: give three",
		"a":       "1 masters: give three",
		"a b":     "2 masters: give three",
		"a b c d": "4 masters: an even number tolerates no more failures than 3; use 3 or 5",
		"a b a":   "master a is given twice",
	} {
		wantSaid(t, redlockstore.CheckMasters(strings.Fields(addrs)), want)
	}
	if err := redlockstore.CheckMasters(strings.Fields("a b c d e")); err != nil {
		t.Error(err)
	}
}

// While an entry is being admitted its session is confirmed. The confirmation does not renew the entry, but the holder is
// valid as long as the session is. A second confirmation overlaps the renewal by which the entry has to make up for the first.
func TestAnEntryStandsAsLongAsTheConfirmationThatItsAdmissionOverlapped(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	for what, c := range map[string]struct {
		known         string // to all masters, when the first confirmation is begun
		confirmations int
		pause         time.Duration // besides the slack, before each; less than the replies take
	}{
		"before its order is known": {"lock", 1, 300 * time.Millisecond},
		"once":                      {"{lock}//fence", 1, 50 * time.Millisecond},
		"twice":                     {"{lock}//fence", 2, 50 * time.Millisecond},
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
			var told <-chan store.Standing
			go func() {
				var err error
				_, told, err = enqueue(t.Context(), se, "lock", true)
				admitted <- err
			}()
			eventually(t, "it is known to all masters, and no master has been heard of that", func() bool {
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
			<-told
			enough := 0
			for _, r := range servers {
				left, _ := r.Do("PTTL", "lock").AsInt64()
				ends := time.Now().Add(time.Duration(left) * time.Millisecond)
				if ends.After(confirmed.Add(ttl - se.Terms().Slack)) {
					enough++
				}
			}
			if enough < 2 {
				t.Errorf("at only %d masters the entry stands as long as its session", enough)
			}
		})
	}
}

// An entry is put in again at a master that has forgotten it, and withdrawn before that is answered. If it were left there,
// it would be in the way of the next.
func TestAnEntryIsNotRestoredAfterItsWithdrawal(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), long)
	for i := range 8 {
		ticket, _ := hold(t, se, "lock")
		everywhere(t, se, servers, "lock")
		servers[2].Do("DEL", "lock")
		proxies[2].Delay(20 * time.Millisecond)
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 12 * time.Millisecond) // the master says that it has nothing, and is asked to put it in
		if err := ticket.Withdraw(t.Context()); err != nil {
			t.Fatal(err)
		}
		proxies[2].Delay(0)
	}
	hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
}

// A waiter goes as it has just been put in, which nobody has heard yet.
// Promise: P5
func TestAWaiterThatHasLeftIsOut(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*testing.T, store.Session, store.Ticket) error{
		"withdrawn": func(t *testing.T, _ store.Session, ticket store.Ticket) error {
			return ticket.Withdraw(timeout(t, soon))
		},
		"withdrawn again": func(t *testing.T, _ store.Session, ticket store.Ticket) error {
			if err := ticket.Withdraw(timeout(t, 100*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("before it can be known that it is out, the error is %v", err)
			}
			if err := ticket.Withdraw(timeout(t, soon)); !errors.Is(err, store.ErrGone) {
				t.Errorf("the second time it is %v, want ErrGone", err)
			}
			return nil
		},
		"with its session": func(t *testing.T, se store.Session, _ store.Ticket) error {
			return se.Close(timeout(t, soon))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := testservers.StartRedisServers(t, 3)
			proxies, options := through(t, servers)
			holder, _ := hold(t, openSession(t, newStore(t, to(servers)), long), "lock")
			se := openSession(t, newStore(t, options), long)
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
				t.Errorf("it has left before any master has answered: %v", err)
			case <-time.After(200 * time.Millisecond):
			}
			for _, p := range proxies {
				p.Release()
			}
			if err := <-left; err != nil {
				t.Error(err)
			}
			if n := of(); n > 1 {
				t.Errorf("it is said to be out, and is at %d masters", n)
			}
			if err := waiter.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
				t.Errorf("to withdraw it then is %v, want ErrGone", err)
			}
		})
	}
}

// The masters have taken it out for the first call, whose context has ended, when the second is made; their answers come
// after that.
func TestASecondWithdrawalIsNotToldWhatTheFirstHasDone(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), long)
	before, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	withdraw(t, before) // so that the masters know the script: else they must be heard before it is sent to them
	eventually(t, "no master has it", func() bool { return holding(servers, "lock") == 0 })
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	for _, p := range proxies {
		p.CutReplies()
	}
	if err := ticket.Withdraw(timeout(t, 50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without any answer the error is %v, want one matching DeadlineExceeded", err)
	}
	eventually(t, "a majority has taken it out", func() bool { return holding(servers, "lock") < 2 })
	second := make(chan error, 1)
	go func() { second <- ticket.Withdraw(timeout(t, soon)) }()
	time.Sleep(50 * time.Millisecond) // the call waits for the answers
	for _, p := range proxies {
		p.Release()
	}
	if err := <-second; !errors.Is(err, store.ErrGone) {
		t.Errorf("the second call returned %v, want an error matching ErrGone", err)
	}
}

// An entry's time is over at a majority of the masters. Another has it a little longer, and the last says nothing.
func TestAWithdrawalAfterItsTimeSaysThatItHasGoneWhoeverHasItYet(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), long)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	value := text(servers[2], "lock")
	if err := ticket.Extensions().WithdrawAfter(t.Context(), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its time is over", func() bool { return holding(servers, "lock") == 0 })
	servers[2].Do("SET", "lock", value)
	proxies[1].CutReplies()
	if err := ticket.Withdraw(timeout(t, soon)); !errors.Is(err, store.ErrGone) {
		t.Errorf("to withdraw it is %v, want an error matching ErrGone", err)
	}
}

// The session is confirmed while it is not known yet that the entry has been given its time.
func TestAnEntryWithATimeOfItsOwnIsNotRenewed(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), long)
	first, _ := hold(t, se, "first")
	everywhere(t, se, servers, "first")
	if err := first.Extensions().WithdrawAfter(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	for _, p := range proxies {
		p.CutReplies()
	}
	inTime := func() (n int) {
		for _, r := range servers {
			if ms, _ := r.Do("PTTL", "lock").AsInt64(); ms <= 40000 {
				n++
			}
		}
		return n
	}
	kept, confirmed := make(chan error, 1), make(chan error, 1)
	go func() { kept <- ticket.Extensions().WithdrawAfter(t.Context(), 35*time.Second) }()
	eventually(t, "the masters have given it its time", func() bool { return inTime() == 3 })
	before := scriptsRun(servers)
	go func() { confirmed <- se.Confirm(t.Context()) }()
	eventually(t, "they have confirmed the session", func() bool { return scriptsRun(servers) >= before+3 })
	for _, p := range proxies {
		p.Release()
	}
	if err := errors.Join(<-kept, <-confirmed); err != nil {
		t.Fatal(err)
	}
	if n := inTime(); n != 3 {
		t.Errorf("%d masters have kept to its time", n)
	}
}

// scriptsRun returns how often the servers were asked to run a script.
func scriptsRun(servers []*testservers.Redis) (n int) {
	for _, r := range servers {
		stats, _ := r.Do("INFO", "commandstats").ToString()
		of, _ := strconv.Atoi(calls(stats, "evalsha"))
		n += of
	}
	return n
}

func TestAHolderIsToldWhenAllIsForgotten(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	client := newClient(t, to(servers), 20*time.Second)
	h := lock(t, client, "lock")
	for _, r := range servers {
		r.Do("FLUSHALL")
	}
	select {
	case <-h.Lost():
	case <-time.After(soon):
		t.Fatal("nobody has told the holder")
	}
	if err, ok := errors.AsType[*stile.LostError](h.Err()); !ok || err.Reason != stile.LostEvicted {
		t.Errorf("lost because of %v, want it evicted", h.Err())
	}
	release(t, lock(t, client, "lock"))
}

func TestClosingCleansUpAtTheSlowerMastersAndWaitsForNoHungOne(t *testing.T) {
	servers := testservers.StartRedisServers(t, 5)
	proxies, options := through(t, servers)
	for _, r := range servers {
		r.Do("PING")
	}
	others := strings.Count(stacks(), "rueidis.(*") // goroutines of the test's own clients
	st, err := redlockstore.New(options, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	se := openSession(t, st, long)
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
		t.Errorf("closing took %v", took)
	}
	eventually(t, "no master that answers has the lock", func() bool { return holding(servers[:4], "lock") == 0 })
	servers[4].Resume()
	if _, err := st.Open(t.Context(), store.SessionOptions{TTL: time.Second}); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("opening a session in a closed store: %v", err)
	}
	for _, p := range proxies {
		eventually(t, "the connections are closed", func() bool { return p.Connections() == 0 })
	}
	eventually(t, "all goroutines have ended but those of the servers", func() bool {
		return strings.Count(stacks(), "redlockstore.(*") == 0 && strings.Count(stacks(), "rueidis.(*") <= others
	})
}

// stacks returns the stacks of all goroutines.
func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// The masters' clocks may run fast by a hundredth, and Redis counts in milliseconds: by so much a key may end early.
func TestTermsReckonWithTheDriftOfClocks(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, to(servers)), time.Minute)
	if drift := time.Minute/100 + time.Millisecond; se.Terms().Slack <= drift {
		t.Errorf("the slack of a minute is %v, want more than %v", se.Terms().Slack, drift)
	}
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	const d = 100 * time.Hour
	if err := ticket.Extensions().WithdrawAfter(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the masters have given it its time", func() bool {
		for _, r := range servers {
			if ms, _ := r.Do("PTTL", "lock").AsInt64(); ms < (d + d/100 - soon).Milliseconds() {
				return false
			}
		}
		return true
	})
}

// A hold is put in again at a master that has forgotten everything. That one must know its order: with another that forgets it
// may be the majority that the next order comes from.
// Promise: P2
func TestARestoredHoldBringsItsOrder(t *testing.T) {
	t.Parallel()
	const larger = "9000000000000000 another"
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, to(servers)), long)
	_, order := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	fence := text(servers[1], "{lock}//fence")
	if !strings.HasPrefix(fence, strconv.FormatUint(order, 10)+" ") {
		t.Fatalf("a master remembers %q of the order %d", fence, order)
	}
	servers[0].Do("FLUSHALL")
	restored := func(r *testservers.Redis) func() bool {
		return func() bool {
			if err := se.Confirm(t.Context()); err != nil {
				t.Fatal(err)
			}
			return holding([]*testservers.Redis{r}, "lock") == 1
		}
	}
	eventually(t, "the first master has it again", restored(servers[0]))
	if got := text(servers[0], "{lock}//fence"); got != fence {
		t.Errorf("the master that has it again remembers %q, want %q", got, fence)
	}
	if ms, _ := servers[0].Do("PTTL", "{lock}//fence").AsInt64(); ms < long.Milliseconds() {
		t.Errorf("it remembers that for %d ms, want longer than the hold may last", ms)
	}
	if ms, _ := servers[0].Do("PTTL", "lock").AsInt64(); ms < (long - soon).Milliseconds() {
		t.Errorf("it has the hold for %d ms", ms)
	}
	servers[1].Do("SET", "{lock}//fence", larger)
	servers[1].Do("DEL", "lock")
	eventually(t, "the second master has it again", restored(servers[1]))
	if got := text(servers[1], "{lock}//fence"); got != larger {
		t.Errorf("a master that remembered %q remembers %q", larger, got)
	}
}

// A confirmation that has begun before an entry was given a time of its own renews it after that, if it renews many.
// Promise: P5
func TestARenewalDoesNotShortenAnEntryWithATimeOfItsOwn(t *testing.T) {
	t.Parallel()
	const d = 24 * time.Hour
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, to(servers)), time.Minute)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	if err := ticket.Extensions().WithdrawAfter(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	lasting := func() bool {
		for _, r := range servers {
			key, _ := r.Do("PTTL", "lock").AsInt64()
			fence, _ := r.Do("PTTL", "{lock}//fence").AsInt64()
			if key < (d-soon).Milliseconds() || fence < (d+time.Hour).Milliseconds() {
				return false
			}
		}
		return true
	}
	eventually(t, "the masters have given it its time", lasting)
	before := scriptsRun(servers)
	if err := redlockstore.Renew(t.Context(), se, ticket); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all masters have renewed it", func() bool { return scriptsRun(servers) >= before+len(servers) })
	if !lasting() {
		t.Error("after a renewal it, or its order, ends earlier")
	}
}

// Somebody deletes an entry at a majority of the masters. What is left of it must not stay in the way of others.
func TestAnEntryThatAMajorityHasLostIsTakenOutOfTheRest(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	se := openSession(t, newStore(t, to(servers)), long)
	_, told, err := enqueue(t.Context(), se, "lock", false)
	if err != nil {
		t.Fatal(err)
	}
	admitted(t, told)
	everywhere(t, se, servers, "lock")
	servers[0].Do("DEL", "lock")
	servers[1].Do("DEL", "lock")
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := <-told; st.State != store.Gone {
		t.Errorf("no majority has it, and its owner was told %+v", st)
	}
	eventually(t, "no master has it", func() bool { return holding(servers, "lock") == 0 })
}
