package observe_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
)

// blamed returns the blame as text, such as "a: ann 7s, 1 waiter, 2 holds".
func (w *world) blamed() string {
	var all []string
	_, blame := w.o.Blame()
	for _, b := range blame {
		all = append(all, fmt.Sprintf("%s: %s %v, %d waiters, %d holds", b.Name, b.Holder.Command, b.Waited.Round(time.Second), b.Waiters, b.Holds))
	}
	return strings.Join(all, "; ")
}

func (w *world) wantBlamed(want string) {
	w.t.Helper()
	if got := w.blamed(); got != want {
		w.t.Errorf("blame:\n got %s\nwant %s", got, want)
	}
}

// later locks a name in the background, and releases it after it was held for a while.
func (w *world) later(lock func(context.Context) (*stile.Hold, error), held time.Duration) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		h, err := lock(w.t.Context())
		if err != nil {
			w.t.Error(err)
			return
		}
		time.Sleep(held)
		w.release(h)
	}()
	return done
}

func TestBlame_chargesHoldersAtTheTime(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		w.start()
		h := w.lock(ann, "a")
		time.Sleep(10 * time.Second) // nobody waits
		b := w.later(bob.Mutex("a").Lock, 3*time.Second)
		time.Sleep(5 * time.Second)
		c := w.later(cid.Mutex("a").Lock, 100*time.Second)
		time.Sleep(4 * time.Second)
		w.wantBlamed("a: ann 13s, 2 waiters, 1 holds") // up to now: bob 9 s, cid 4 s
		w.release(h)
		<-b
		<-c
		time.Sleep(time.Second)
		w.wantBlamed("a: ann 13s, 2 waiters, 1 holds; a: bob 3s, 1 waiters, 1 holds")
	})
}

func TestBlame_addsUpHoldsOfAnOwner(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann, bob := w.client("ann"), w.client("bob")
		w.start()
		for range 3 {
			h := w.lock(ann, "a")
			b := w.later(bob.Mutex("a").Lock, time.Second)
			time.Sleep(7 * time.Second)
			w.release(h)
			<-b
		}
		w.wantBlamed("a: ann 21s, 3 waiters, 3 holds")
	})
}

// Several holders share the waiting equally.
func TestBlame_severalHolders(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		w.start()
		a := w.later(ann.Semaphore("a", 2).Acquire, 10*time.Second)
		time.Sleep(time.Second)
		b := w.later(bob.Semaphore("a", 2).Acquire, time.Minute)
		time.Sleep(time.Second)
		c := w.later(cid.Semaphore("a", 2).Acquire, time.Second)
		<-a
		<-c
		<-b
		w.wantBlamed("a: ann 4s, 1 waiters, 1 holds; a: bob 4s, 1 waiters, 1 holds")
	})
}

// What was there before the observer began counts from then on.
func TestBlame_beginsWithTheFirstReading(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		h := w.lock(ann, "a")
		b := w.later(bob.Mutex("a").Lock, time.Second)
		time.Sleep(time.Second)
		c := w.later(cid.Mutex("a").Lock, time.Second)
		time.Sleep(time.Minute)
		w.start()
		time.Sleep(5 * time.Second)
		w.wantBlamed("a: ann 10s, 2 waiters, 1 holds")
		w.release(h)
		<-b
		<-c
		time.Sleep(time.Second)
		w.wantBlamed("a: ann 10s, 2 waiters, 1 holds; a: bob 1s, 1 waiters, 1 holds")
	})
}

// What is more than an hour ago does not count.
func TestBlame_ofTheLastHour(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann, bob := w.client("ann"), w.client("bob")
		w.start()
		h := w.lock(ann, "a")
		b := w.later(bob.Mutex("a").Lock, time.Second)
		time.Sleep(40 * time.Minute)
		w.release(h)
		<-b
		time.Sleep(40*time.Minute - time.Second)
		since, _ := w.o.Blame()
		if got := time.Since(since); got != time.Hour {
			t.Errorf("since: got %v ago, want an hour", got)
		}
		w.wantBlamed("a: ann 20m0s, 1 waiters, 1 holds")
		time.Sleep(25 * time.Minute)
		w.wantBlamed("")
	})
}

// A lock that changes hands all the time is blamed for the whole hour, and each hold and waiter counts once.
func TestBlame_ofABusyLock(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		if !w.exact {
			return // a reading is late
		}
		w.ttl = 5 * time.Minute
		ann, bob := w.client("ann"), w.client("bob")
		w.start()
		const rounds = 1000 // of 3 s
		for range rounds {
			h := w.lock(ann, "a")
			b := w.later(bob.Mutex("a").Lock, time.Second)
			time.Sleep(2 * time.Second)
			w.release(h)
			<-b
		}
		w.wantBlamed(fmt.Sprintf("a: ann %v, %d waiters, %d holds", 2*rounds*time.Second, rounds, rounds))
	})
}

// A wait of many hours counts for the last one only.
func TestBlame_ofALongWait(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann, bob := w.client("ann"), w.client("bob")
		h := w.lock(ann, "a")
		b := w.later(bob.Mutex("a").Lock, time.Second)
		time.Sleep(time.Second)
		w.start()
		time.Sleep(5 * time.Hour)
		since, _ := w.o.Blame()
		w.wantBlamed(fmt.Sprintf("a: ann %v, 1 waiters, 1 holds", time.Since(since).Round(time.Second)))
		w.release(h)
		<-b
		time.Sleep(2 * time.Hour)
		w.wantBlamed("")
	})
}

// A hold for which others wait, give up and wait again is one hold.
func TestBlame_ofOneHold(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann, bob := w.client("ann"), w.client("bob")
		w.start()
		h := w.lock(ann, "a")
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, _ = bob.Mutex("a").Lock(ctx)
			time.Sleep(time.Second)
		}
		w.wantBlamed("a: ann 30s, 3 waiters, 1 holds")
		w.release(h)
	})
}
