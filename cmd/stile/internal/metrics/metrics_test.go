package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/metrics"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/internal/lockclass"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

const ttl = 15 * time.Second

// world is a store whose metrics are collected, and a fake clock.
type world struct {
	*testing.T
	st *memstore.Store
	o  *observe.Observer
	c  *metrics.Collector

	reads bool // the store only reports the names of lines that may have changed
}

// withoutFollow is a store that does not report changes itself.
type withoutFollow struct{ store.Store }

func (s withoutFollow) Capabilities() store.Capabilities {
	caps := s.Store.Capabilities()
	caps.Follow = nil
	return caps
}

// collected calls run with a store. The observer is started by start.
func collected(t *testing.T, run func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(t, &world{T: t, st: memstore.New()}) })
}

func (w *world) client() *stile.Client {
	w.Helper()
	var st store.Store = w.st
	if w.reads {
		st = withoutFollow{st}
	}
	c, err := stile.New(st, &stile.Options{TTL: ttl})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// start starts the observer, with the classes of the mappings.
func (w *world) start(mappings ...string) {
	w.Helper()
	var classes metrics.Classes
	for _, m := range mappings {
		if err := classes.Set(m); err != nil {
			w.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.o = observe.New(w.client())
	w.c = metrics.New(w.o, classes)
	done := make(chan error, 1)
	go func() { done <- w.o.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("Run: got %v, want nil", err)
		}
	})
	synctest.Wait()
}

func (w *world) lock(c *stile.Client, name string) *stile.Hold {
	w.Helper()
	h, err := c.Mutex(name).Lock(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return h
}

func (w *world) release(h *stile.Hold) {
	w.Helper()
	if err := h.Release(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// join joins the line of a name, and returns when that has been seen.
func (w *world) join(c *stile.Client, name string) *stile.Place {
	w.Helper()
	p, err := c.Mutex(name).Join(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	time.Sleep(time.Second)
	return p
}

// vanish makes the client of a holder vanish: the store gets no more requests from it.
func (w *world) vanish(name string) {
	session := w.o.Line(name).Holders[0].Session
	w.st.SetFaults(func(c memstore.Call) memstore.Fault {
		return memstore.Fault{Drop: c.Session == session}
	})
	w.Cleanup(func() { w.st.SetFaults(nil) }) // so that the client can be closed
}

// values returns the values of all series by name and labels, as in {class="a",state="held"}. Of a histogram
// it has the sum and the count.
func (w *world) values() map[string]float64 {
	w.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(w.c)
	families, err := r.Gather()
	if err != nil {
		w.Fatal(err)
	}
	all := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			key := ""
			if len(labels) > 0 {
				key = "{" + strings.Join(labels, ",") + "}"
			}
			if h := m.GetHistogram(); h != nil {
				all[f.GetName()+"_sum"+key] = h.GetSampleSum()
				all[f.GetName()+"_count"+key] = float64(h.GetSampleCount())
				continue
			}
			all[f.GetName()+key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// want checks the values of some series, to within the time between two readings. Series of the class "a" that are
// not named, of a metric that is, must be zero or missing.
func (w *world) want(want map[string]float64) {
	w.Helper()
	got := w.values()
	metric := func(series string) string { return strings.SplitN(series, "{", 2)[0] }
	for series, value := range want {
		if g, ok := got[series]; !ok || g < value-0.2 || g > value+0.2 {
			w.Errorf("%s: got %v, %t, want %v", series, g, ok, value)
		}
	}
	for series, value := range got {
		named := slices.ContainsFunc(slices.Collect(maps.Keys(want)), func(s string) bool { return metric(s) == metric(series) })
		if _, ok := want[series]; !ok && named && value != 0 && strings.Contains(series, `class="a"`) {
			w.Errorf("%s: got %v, want none", series, value)
		}
	}
}

// A lock is held, waited for, handed over and released.
func TestCollector_countsHoldsAndWaits(t *testing.T) {
	collected(t, func(t *testing.T, w *world) {
		ann, bob, eve := w.client(), w.client(), w.client()
		w.start()
		h := w.lock(ann, "a/1")
		w.lock(eve, "a/2")
		time.Sleep(5 * time.Second)
		w.want(map[string]float64{
			`stile_lock_entries{class="a",state="held"}`:                           2,
			`stile_lock_names{class="a",state="held"}`:                             2,
			`stile_lock_longest_hold_seconds{class="a"}`:                           5,
			`stile_lock_longest_wait_seconds{class="a"}`:                           0,
			`stile_lock_acquisitions_total{class="a",outcome="acquired"}`:          2,
			`stile_lock_wait_duration_seconds_sum{class="a",outcome="acquired"}`:   0,
			`stile_lock_wait_duration_seconds_count{class="a",outcome="acquired"}`: 2,
			`stile_lock_contentions_total{class="a"}`:                              0,
		})
		first := w.join(bob, "a/1")
		second := w.join(eve, "a/1")
		time.Sleep(8 * time.Second)
		w.want(map[string]float64{
			`stile_lock_entries{class="a",state="held"}`:    2,
			`stile_lock_entries{class="a",state="waiting"}`: 2,
			`stile_lock_names{class="a",state="held"}`:      2,
			`stile_lock_names{class="a",state="waiting"}`:   1,
			`stile_lock_longest_wait_seconds{class="a"}`:    10,
			`stile_lock_longest_hold_seconds{class="a"}`:    15,
			`stile_lock_contentions_total{class="a"}`:       1,
		})
		if err := second.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.release(h)
		next, err := first.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		w.release(next)
		time.Sleep(time.Second)
		w.want(map[string]float64{
			`stile_lock_entries{class="a",state="held"}`:                           1,
			`stile_lock_names{class="a",state="held"}`:                             1,
			`stile_lock_longest_wait_seconds{class="a"}`:                           0,
			`stile_lock_acquisitions_total{class="a",outcome="acquired"}`:          3,
			`stile_lock_acquisitions_total{class="a",outcome="left"}`:              1,
			`stile_lock_wait_duration_seconds_sum{class="a",outcome="acquired"}`:   11,
			`stile_lock_wait_duration_seconds_count{class="a",outcome="acquired"}`: 3,
			`stile_lock_wait_duration_seconds_sum{class="a",outcome="left"}`:       9,
			`stile_lock_wait_duration_seconds_count{class="a",outcome="left"}`:     1,
			`stile_lock_hold_duration_seconds_sum{class="a",end="released"}`:       16 + 3,
			`stile_lock_hold_duration_seconds_count{class="a",end="released"}`:     2,
			`stile_lock_contentions_total{class="a"}`:                              1,
			`stile_lock_losses_total{class="a",reason="expired"}`:                  0,
			`stile_lock_losses_total{class="a",reason="broken"}`:                   0,
		})
	})
}

// A hold whose session is not renewed is lost. Its lease is seen to end before.
func TestCollector_countsLosses(t *testing.T) {
	collected(t, func(t *testing.T, w *world) {
		ann, bob := w.client(), w.client()
		w.start()
		w.lock(ann, "a/1")
		other := w.lock(bob, "a/2")
		time.Sleep(20 * time.Second)
		const lease = `stile_lock_lease_remaining_seconds{class="a"}`
		if left := w.values()[lease]; left < ttl.Seconds()/3 || left > ttl.Seconds() {
			t.Errorf("%s: got %v for a session that is renewed, want more than a third of the TTL", lease, left)
		}
		w.vanish("a/1")
		time.Sleep(12 * time.Second)
		if left := w.values()[lease]; left > 4 {
			t.Errorf("%s: got %v for a session that is about to end, want at most 4", lease, left)
		}
		time.Sleep(10 * time.Second)
		w.release(other)
		time.Sleep(time.Second)
		w.want(map[string]float64{
			`stile_lock_losses_total{class="a",reason="expired"}`:              1,
			`stile_lock_hold_duration_seconds_count{class="a",end="lost"}`:     1,
			`stile_lock_hold_duration_seconds_count{class="a",end="released"}`: 1,
		})
		if _, ok := w.values()[lease]; ok {
			t.Errorf("%s: got a value without a holder, want none", lease)
		}
	})
}

func TestCollector_countsBreaks(t *testing.T) {
	collected(t, func(t *testing.T, w *world) {
		ann, eve := w.client(), w.client()
		w.start()
		h := w.lock(ann, "a/1")
		time.Sleep(time.Second)
		w.o.Broken("a/1", h.Token())
		if _, err := eve.Break(t.Context(), "a/1", h.Token()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.want(map[string]float64{
			`stile_lock_losses_total{class="a",reason="broken"}`:             1,
			`stile_lock_hold_duration_seconds_count{class="a",end="broken"}`: 1,
		})
	})
}

// Each hold that others wait for counts once, whichever was there first.
func TestCollector_countsContention(t *testing.T) {
	collected(t, func(t *testing.T, w *world) {
		clients := []*stile.Client{w.client(), w.client(), w.client(), w.client()}
		w.start()
		const contentions = `stile_lock_contentions_total{class="a"}`
		var readers []*stile.Hold
		for _, c := range clients[:2] {
			h, err := c.RWMutex("a/rw").RLock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			readers = append(readers, h)
		}
		time.Sleep(time.Second)
		w.want(map[string]float64{contentions: 0})
		writer, err := clients[2].RWMutex("a/rw").Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.want(map[string]float64{contentions: 2}) // both readers
		other, err := clients[3].RWMutex("a/rw").Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.want(map[string]float64{contentions: 2}) // no hold is new
		for _, r := range readers {
			w.release(r)
		}
		h, err := writer.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.want(map[string]float64{contentions: 3}) // the first writer
		w.release(h)
		if _, err := other.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.want(map[string]float64{contentions: 3}) // nobody waits for the second
	})
}

// It is not known how long the entries have waited or held that were there before the observer: their ends are
// counted, and not measured.
func TestCollector_doesNotMeasureWhatItHasNotSeenBegin(t *testing.T) {
	collected(t, func(t *testing.T, w *world) {
		ann, bob := w.client(), w.client()
		h := w.lock(ann, "a/1")
		p := w.join(bob, "a/1")
		time.Sleep(time.Minute)
		w.start()
		time.Sleep(5 * time.Second)
		w.want(map[string]float64{
			`stile_lock_longest_hold_seconds{class="a"}`: 5, // at least
			`stile_lock_longest_wait_seconds{class="a"}`: 5,
		})
		w.release(h)
		next, err := p.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		w.release(next)
		time.Sleep(time.Second)
		w.want(map[string]float64{
			`stile_lock_acquisitions_total{class="a",outcome="acquired"}`:          1,
			`stile_lock_wait_duration_seconds_count{class="a",outcome="acquired"}`: 0,
			`stile_lock_hold_duration_seconds_sum{class="a",end="released"}`:       5,
			`stile_lock_hold_duration_seconds_count{class="a",end="released"}`:     1,
		})
	})
}

// While the store cannot be read, there are no values for the present holders.
func TestCollector_outage(t *testing.T) {
	collected(t, func(t *testing.T, w *world) {
		ann := w.client()
		w.start()
		w.lock(ann, "a/1")
		time.Sleep(time.Minute)
		const up, held, failed = "stile_observer_up", `stile_lock_entries{class="a",state="held"}`, "stile_store_read_errors_total"
		w.want(map[string]float64{up: 1, held: 1, failed: 0})
		down := errors.New("the store is down")
		w.st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Read {
				return memstore.Fault{Err: down}
			}
			return memstore.Fault{}
		})
		time.Sleep(time.Minute)
		got := w.values()
		if _, ok := got[held]; ok || got[up] != 0 || got[failed] < 2 {
			t.Errorf("in an outage: got %v for %s, %s %v, %s %v", got[held], held, up, got[up], failed, got[failed])
		}
		if since := time.Since(time.UnixMilli(int64(got["stile_observer_since_timestamp_seconds"] * 1000))); since < 45*time.Second || since > time.Minute {
			t.Errorf("the outage began %v ago, want nearly a minute", since)
		}
		w.st.SetFaults(nil)
		time.Sleep(5 * time.Second)
		w.want(map[string]float64{up: 1, held: 1})
	})
}

func TestCollector_measuresReadings(t *testing.T) {
	collected(t, func(t *testing.T, w *world) {
		w.reads = true
		ann := w.client()
		w.st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Read {
				return memstore.Fault{ReplyDelay: 300 * time.Millisecond}
			}
			return memstore.Fault{}
		})
		w.start()
		w.lock(ann, "a/1")
		time.Sleep(time.Minute)
		got := w.values()
		for _, reading := range []string{"all", "changed", "lease"} {
			series := fmt.Sprintf("{reading=%q}", reading)
			n, total := got["stile_store_read_duration_seconds_count"+series], got["stile_store_read_duration_seconds_sum"+series]
			if mean := total / n; n == 0 || mean < 0.299 || mean > 0.301 {
				t.Errorf("%s: got %v readings with a mean of %v s, want 0.3 s", series, n, mean)
			}
		}
	})
}

// A counter is zero before the first event that it counts, so that Prometheus sees the increase.
func TestCollector_countersBeginAtZero(t *testing.T) {
	collected(t, func(t *testing.T, w *world) {
		w.lock(w.client(), "a/1") // before the observer: there is no event
		w.start("jobs*=jobs")
		time.Sleep(time.Second)
		got := w.values()
		for _, class := range []string{"a", "jobs", lockclass.Other} {
			for _, series := range []string{
				`stile_lock_acquisitions_total{class=%q,outcome="acquired"}`, `stile_lock_acquisitions_total{class=%q,outcome="lost"}`,
				`stile_lock_losses_total{class=%q,reason="expired"}`, `stile_lock_losses_total{class=%q,reason="broken"}`,
				`stile_lock_contentions_total{class=%q}`, `stile_lock_entries{class=%q,state="waiting"}`,
			} {
				series = fmt.Sprintf(series, class)
				if _, ok := got[series]; !ok && class == "a" || class != "a" && got[series] != 0 {
					t.Errorf("%s: got %v, %t", series, got[series], ok)
				}
			}
		}
	})
}

// No name becomes a label, and clients cannot create any number of classes.
func TestCollector_hostileNames(t *testing.T) {
	collected(t, func(t *testing.T, w *world) {
		ann := w.client()
		w.start("known-*=known")
		names := []string{
			"secret-42", "orders/secret-43", "known-44", "/secret", "\xff\xfe/1", "<img onerror=alert(1)>/1", "a\"}\nb/1",
			"\u202egnp.exe/1", strings.Repeat("long", 100) + "/1",
		}
		for i := range 200 {
			names = append(names, fmt.Sprintf("tenant-%03d/secret", i))
		}
		names = append(names, "known-late")
		for _, name := range names {
			h, err := ann.Mutex(name).Lock(t.Context())
			if errors.Is(err, stile.ErrBadName) { // it cannot be locked with Stile, but by other lockers
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			w.release(h)
		}
		time.Sleep(time.Second)
		got := w.values()
		classes := make(map[string]bool)
		for series := range got {
			if !utf8.ValidString(series) || strings.Contains(series, "secret") || strings.Contains(series, "known-") {
				t.Errorf("series %q: it has a name in it, or is not UTF-8", series)
			}
			if _, class, ok := strings.Cut(series, `{class=`); ok {
				classes[strings.Split(class, `"`)[1]] = true
			}
		}
		if n := len(classes); n != 52 {
			t.Errorf("got %d classes, want 50 from names, known and other", n)
		}
		if n := got[`stile_lock_acquisitions_total{class="known",outcome="acquired"}`]; n != 2 {
			t.Errorf("class known: got %v acquisitions, want 2, also after the last class", n)
		}
		if n := got[`stile_lock_acquisitions_total{class="other",outcome="acquired"}`]; n < 150 {
			t.Errorf("class other: got %v acquisitions, want those of 150 classes too many", n)
		}
		if text := scrape(t, w.c); !strings.Contains(text, `class="orders"`) {
			t.Errorf("the page has no class orders:\n%s", text)
		}
	})
}

// The metrics follow the conventions of Prometheus.
func TestCollector_conventions(t *testing.T) {
	collected(t, func(t *testing.T, w *world) {
		w.lock(w.client(), "a/1")
		w.start()
		problems, err := testutil.CollectAndLint(w.c)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	})
}

// scrape returns what Prometheus would get from a handler.
func scrape(t *testing.T, c *metrics.Collector) string {
	t.Helper()
	recorder := httptest.NewRecorder()
	metrics.Handler(c).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if recorder.Code != http.StatusOK {
		t.Fatalf("GET /metrics: got %d: %s", recorder.Code, recorder.Body)
	}
	return recorder.Body.String()
}

// The metrics are served over HTTP, with those of the process.
func TestHandler(t *testing.T) {
	client, err := stile.New(memstore.New(), &stile.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	o := observe.New(client)
	server := httptest.NewServer(metrics.Handler(metrics.New(o, metrics.Classes{})))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done, unread := make(chan error), o.Status()
	go func() { done <- o.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	o.Wait(ctx, 0, unread) // for the first reading
	if _, err := client.Mutex("a/1").Lock(ctx); err != nil {
		t.Fatal(err)
	}
	for last := uint64(0); len(o.History("a/1")) == 0; {
		o.Wait(ctx, last, o.Status())
		_, last, _ = o.Updates(last)
	}
	resp, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nstile_observer_up 1\n", "\n" + `stile_lock_entries{class="a",state="held"} 1` + "\n",
		"\n" + `stile_lock_acquisitions_total{class="a",outcome="acquired"} 1` + "\n", "\ngo_goroutines ",
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("the page has no %q:\n%s", want, body)
		}
	}
}
