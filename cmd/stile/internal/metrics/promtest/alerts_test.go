package promtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/metrics"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/store/memstore"
)

const alertsFile = "../../../../../docs/alerts.yml"

// world is a store in memory that a server watches, and a Prometheus that scrapes the server.
type world struct {
	*testing.T
	st *memstore.Store
	o  *observe.Observer

	gone     atomic.Bool // the server
	from, to time.Time
	scrapes  []scrape
}

// play calls what happens in a bubble with a fake clock, and records what Prometheus gets meanwhile.
func play(t *testing.T, what func(w *world)) *world {
	w := &world{st: memstore.New()}
	synctest.Test(t, func(t *testing.T) {
		w.T = t
		client := w.client()
		w.o = observe.New(client)
		handler := metrics.Handler(metrics.New(w.o, metrics.Classes{}))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- w.o.Run(ctx) }()
		synctest.Wait()
		w.from = time.Now()
		scraped := make(chan struct{})
		go func() {
			defer close(scraped)
			for ctx.Err() == nil {
				if !w.gone.Load() {
					w.scrapes = append(w.scrapes, scrapeFrom(t, handler, time.Now()))
				}
				time.Sleep(scrapeInterval)
			}
		}()
		time.Sleep(5*time.Minute + time.Second) // between two scrapes
		what(w)
		w.to = time.Now()
		w.st.SetFaults(nil)
		cancel()
		<-scraped
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) client() *stile.Client {
	w.Helper()
	c, err := stile.New(w.st, &stile.Options{TTL: 15 * time.Second})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func (w *world) lock(c *stile.Client, name string) *stile.Hold {
	w.Helper()
	h, err := c.Mutex(name).Lock(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return h
}

func (w *world) join(c *stile.Client, name string) *stile.Place {
	w.Helper()
	p, err := c.Mutex(name).Join(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return p
}

// traffic locks, waits for, and releases locks for some time, as a healthy program does.
func (w *world) traffic(d time.Duration) {
	w.Helper()
	ann, bob := w.client(), w.client()
	for end := time.Now().Add(d); time.Now().Before(end); {
		h := w.lock(ann, "orders/1")
		p := w.join(bob, "orders/1")
		time.Sleep(20 * time.Second)
		if err := h.Release(w.Context()); err != nil {
			w.Fatal(err)
		}
		h, err := p.Wait(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		if err := h.Release(w.Context()); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *world) failReads(f memstore.Fault) {
	w.st.SetFaults(func(c memstore.Call) memstore.Fault {
		if c.Op == memstore.Read {
			return f
		}
		return memstore.Fault{}
	})
}

// Each alert fires when its cause is there, and only then. One that has no test is an error.
func TestAlerts_fire(t *testing.T) {
	down := memstore.Fault{Err: errors.New("the store is down")}
	cases := []struct {
		name string
		what func(w *world)
		want []string // in alphabetical order
		last []string // what still fires at the end
	}{
		{"healthy", func(w *world) { w.traffic(time.Hour) }, nil, nil},
		{"a short outage", func(w *world) {
			w.failReads(memstore.Fault{Err: down.Err})
			time.Sleep(2 * time.Second)
			w.st.SetFaults(nil)
			w.traffic(20 * time.Minute)
		}, nil, nil},
		{"the store is unreachable", func(w *world) {
			w.lock(w.client(), "orders/1")
			time.Sleep(time.Minute)
			w.failReads(down)
			time.Sleep(3 * time.Minute)
			w.st.SetFaults(nil)
			time.Sleep(15 * time.Minute)
		}, []string{"StileReadErrors", "StileStoreUnreachable"}, nil},
		{"the server is gone", func(w *world) {
			w.gone.Store(true)
			time.Sleep(15 * time.Minute)
		}, []string{"StileServerMissing"}, []string{"StileServerMissing"}},
		{"a lost hold", func(w *world) {
			w.lock(w.client(), "orders/1")
			time.Sleep(time.Minute)
			session := w.o.Line("orders/1").Holders[0].Session
			w.st.SetFaults(func(c memstore.Call) memstore.Fault { return memstore.Fault{Drop: c.Session == session} })
			time.Sleep(2 * time.Minute)
		}, []string{"StileHoldLost"}, []string{"StileHoldLost"}},
		{"a broken hold", func(w *world) {
			h := w.lock(w.client(), "orders/1")
			time.Sleep(time.Minute)
			w.o.Broken("orders/1", h.Token())
			if _, err := w.client().Break(w.Context(), "orders/1", h.Token()); err != nil {
				w.Fatal(err)
			}
			time.Sleep(20 * time.Minute)
		}, []string{"StileHoldBroken"}, nil},
		{"a long wait", func(w *world) {
			h := w.lock(w.client(), "orders/1")
			p := w.join(w.client(), "orders/1")
			time.Sleep(11 * time.Minute)
			if err := h.Release(w.Context()); err != nil {
				w.Fatal(err)
			}
			if _, err := p.Wait(w.Context()); err != nil {
				w.Fatal(err)
			}
			time.Sleep(2 * time.Minute)
		}, []string{"StileLongWait"}, nil},
		{"a wait", func(w *world) {
			w.lock(w.client(), "orders/1")
			w.join(w.client(), "orders/1")
			time.Sleep(9 * time.Minute)
		}, nil, nil},
		{"a long hold", func(w *world) {
			w.lock(w.client(), "orders/1")
			time.Sleep(6*time.Hour + time.Minute)
		}, []string{"StileLongHold"}, []string{"StileLongHold"}},
		{"many waiters", func(w *world) {
			ann, bob := w.client(), w.client()
			for i := range 101 {
				w.lock(ann, fmt.Sprintf("orders/%d", i))
				w.join(bob, fmt.Sprintf("orders/%d", i))
			}
			time.Sleep(7 * time.Minute)
		}, []string{"StileManyWaiters"}, []string{"StileManyWaiters"}},
		{"a slow store", func(w *world) {
			w.failReads(memstore.Fault{ReplyDelay: 2 * time.Second})
			w.traffic(15 * time.Minute)
		}, []string{"StileStoreSlow"}, []string{"StileStoreSlow"}},
	}
	provoked := make(map[string]bool)
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			w := play(t, tt.what)
			fired, last := newPrometheus(t, w.scrapes).firing(t, alertsFile, w.from, w.to)
			if !slices.Equal(fired, tt.want) || !slices.Equal(last, tt.last) {
				t.Errorf("got the alerts %q, at the end %q; want %q and %q", fired, last, tt.want, tt.last)
			}
			for _, alert := range fired {
				provoked[alert] = true
			}
		})
	}
	text, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		if alert, ok := strings.CutPrefix(strings.TrimSpace(line), "- alert: "); ok {
			n++
			if !provoked[alert] {
				t.Errorf("%s: alert %s has not fired in any test", alertsFile, alert)
			}
		}
	}
	if n == 0 {
		t.Errorf("%s has no alerts", alertsFile)
	}
}
