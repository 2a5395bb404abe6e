package promtest

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/metrics"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

const dashboardFile = "../../../../../docs/grafana.json"

// A dashboard is what this test needs of Grafana's format.
type dashboard struct {
	Panels []struct {
		ID      int
		Title   string
		Type    string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ RefID, Expr string }
	}
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// variables are the values that Grafana puts into the queries.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$class", ".*")

var labelValues = regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)

// Each query of the dashboard, and each metric in the alerts, has series after some traffic on a real Redis.
func TestQueries_haveSeries(t *testing.T) {
	p, now := scrapeTraffic(t)
	d := readDashboard(t)
	n := 0
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			n++
			if expr := variables.Replace(target.Expr); len(p.query(t, expr, now)) == 0 {
				t.Errorf("panel %q: %s has no series", panel.Title, expr)
			}
		}
		if len(panel.Targets) == 0 && panel.Type != "row" {
			t.Errorf("panel %q has no query", panel.Title)
		}
	}
	if n < 20 {
		t.Errorf("the dashboard has %d queries; the file is not read correctly", n)
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		m := labelValues.FindStringSubmatch(v.Definition)
		if m == nil {
			t.Errorf("variable %s: unexpected query %q", v.Name, v.Definition)
			continue
		}
		for _, s := range p.query(t, m[1], now) {
			if s.Metric.Get(m[2]) == "" {
				t.Errorf("variable %s: %s has no label %s", v.Name, s.Metric, m[2])
			}
		}
		if len(p.query(t, m[1], now)) == 0 {
			t.Errorf("variable %s: %s has no series", v.Name, m[1])
		}
	}
	for _, g := range p.groups(t, alertsFile) {
		for _, rule := range g.AlertingRules() {
			parser.Inspect(rule.Query(), func(node parser.Node, _ []parser.Node) error {
				if s, ok := node.(*parser.VectorSelector); ok {
					if expr := s.String(); len(p.query(t, expr, now)) == 0 {
						t.Errorf("alert %s: %s has no series", rule.Name(), expr)
					}
				}
				return nil
			})
		}
	}
}

// The panels have different IDs and do not overlap, so that Grafana shows all of them.
func TestDashboard_layout(t *testing.T) {
	d := readDashboard(t)
	ids := make(map[int]bool)
	taken := make(map[[2]int]string)
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("panel %q: its ID %d is taken", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W == 0 || p.GridPos.H == 0 {
			t.Errorf("panel %q: bad position %+v", p.Title, p.GridPos)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := taken[at]; other != "" {
					t.Fatalf("panels %q and %q overlap", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
	}
}

// scrapeTraffic watches a Redis on which locks are held, waited for, handed over, given up, lost and broken. It returns
// a Prometheus that has scraped the metrics between, and the time of the last scrape.
func scrapeTraffic(t *testing.T) (*prometheus, time.Time) {
	t.Helper()
	addr := testservers.StartRedis(t).Addr()
	open := func() (*stile.Client, store.Store) {
		cli, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableRetry: true, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cli.Close)
		st, err := redisstore.New(cli, nil)
		if err != nil {
			t.Fatal(err)
		}
		client, err := stile.New(st, &stile.Options{TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close(context.Background()) })
		return client, st
	}
	server, _ := open()
	ann, st := open()
	bob, _ := open()

	w := &watched{T: t, o: observe.New(server), now: time.Now()}
	w.handler = metrics.Handler(metrics.New(w.o, metrics.Classes{}))
	ctx, cancel := context.WithCancel(context.Background())
	done, unread := make(chan error), w.o.Status()
	go func() { done <- w.o.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	w.o.Wait(ctx, 0, unread)

	// Prometheus must know the classes before it can see how counters increase.
	w.lock(ann, "orders/kept")
	w.await("orders/kept", observe.Holds, "")
	w.lock(ann, "jobs/kept")
	w.await("jobs/kept", observe.Holds, "")
	w.scrape()

	h := w.lock(ann, "orders/1")
	w.await("orders/1", observe.Holds, "")
	place, err := bob.Mutex("orders/1").Join(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w.await("orders/1", observe.Waits, "")
	w.release(h)
	if h, err = place.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	w.await("orders/1", observe.Ended, observe.Released)
	w.release(h)

	if place, err = bob.Mutex("orders/kept").Join(ctx); err != nil {
		t.Fatal(err)
	}
	w.await("orders/kept", observe.Waits, "")
	if err := place.Leave(ctx); err != nil {
		t.Fatal(err)
	}
	w.await("orders/kept", observe.Left, observe.Released)

	h = w.lock(ann, "jobs/broken")
	w.await("jobs/broken", observe.Holds, "")
	w.o.Broken("jobs/broken", h.Token())
	if _, err := bob.Break(ctx, "jobs/broken", h.Token()); err != nil {
		t.Fatal(err)
	}
	w.await("jobs/broken", observe.Ended, observe.Broken)

	w.loseHold(st, bob)
	if _, err := bob.Mutex("orders/kept").Join(ctx); err != nil {
		t.Fatal(err)
	}
	for len(w.o.Line("orders/kept").Waiters) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	w.scrape()
	w.scrape()
	return newPrometheus(t, w.scrapes), w.now
}

// watched is a store that a server watches.
type watched struct {
	*testing.T
	o       *observe.Observer
	handler http.Handler
	now     time.Time // of the last scrape
	scrapes []scrape
}

func (w *watched) scrape() {
	w.Helper()
	w.now = w.now.Add(scrapeInterval)
	w.scrapes = append(w.scrapes, scrapeFrom(w.T, w.handler, w.now))
}

func (w *watched) lock(c *stile.Client, name string) *stile.Hold {
	w.Helper()
	h, err := c.Mutex(name).Lock(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return h
}

func (w *watched) release(h *stile.Hold) {
	w.Helper()
	if err := h.Release(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// await returns when the server has seen something happen.
func (w *watched) await(name, what, cause string) {
	w.Helper()
	for !w.seen(name, what, cause) {
		if w.Context().Err() != nil {
			w.Fatal("the test has ended")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (w *watched) seen(name, what, cause string) bool {
	for _, e := range w.o.History(name) {
		if e.What == what && (cause == "" || e.Cause == cause) {
			return true
		}
	}
	return false
}

// loseHold has a session hold a lock and die, until the server sees that it was lost. On a busy machine the server may
// read the lease too late to know.
func (w *watched) loseHold(st store.Store, next *stile.Client) {
	w.Helper()
	const name = "jobs/lost"
	for !w.seen(name, observe.Ended, observe.Lost) {
		session, err := st.Open(w.Context(), store.SessionOptions{TTL: 5 * time.Second})
		if err != nil {
			w.Fatal(err)
		}
		if _, err := session.Enqueue(w.Context(), store.Request{Name: name, Notify: func(store.Standing) {}}); err != nil {
			w.Fatal(err)
		}
		w.release(w.lock(next, name)) // is admitted when the session has expired
		time.Sleep(time.Second)       // for the reading that follows
	}
}
