package stileotel_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stileotel"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/store/redisstore"
)

const ttl = 15 * time.Second

// telemetry is what the clients of a process have recorded.
type telemetry struct {
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer // of the program
	reader *sdkmetric.ManualReader
	hooks  stile.Hooks
}

func newTelemetry(t *testing.T, o stileotel.Options) *telemetry {
	t.Helper()
	tel := &telemetry{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(tel.spans))
	tel.tracer = traces.Tracer("program")
	o.TracerProvider, o.MeterProvider = traces, sdkmetric.NewMeterProvider(sdkmetric.WithReader(tel.reader))
	var err error
	if tel.hooks, err = stileotel.Hooks(o); err != nil {
		t.Fatal(err)
	}
	return tel
}

func (tel *telemetry) client(t *testing.T, st store.Store) *stile.Client {
	t.Helper()
	return newClient(t, st, tel.hooks)
}

func newClient(t *testing.T, st store.Store, hooks stile.Hooks) *stile.Client {
	t.Helper()
	c, err := stile.New(st, &stile.Options{TTL: ttl, Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// tree returns the ended spans as text, sorted: parent > name (status, links, events) key=value…, without token.
func (tel *telemetry) tree() []string {
	names := make(map[trace.SpanID]string)
	for _, s := range tel.spans.Started() {
		names[s.SpanContext().SpanID()] = s.Name()
	}
	var all []string
	for _, s := range tel.spans.Ended() {
		text := s.Name()
		if s.Parent().IsValid() {
			text = names[s.Parent().SpanID()] + " > " + text
		}
		for _, l := range s.Links() {
			text += " -> " + names[l.SpanContext.SpanID()]
		}
		for _, a := range s.Attributes() {
			if a.Key != "stile.lock.token" {
				text += " " + strings.TrimPrefix(string(a.Key), "stile.lock.") + "=" + a.Value.String()
			}
		}
		if s.Status().Code != codes.Unset {
			text += " " + s.Status().Code.String()
		}
		for _, e := range s.Events() {
			text += " !" + e.Name
			for _, a := range e.Attributes {
				text += " " + string(a.Key) + "=" + a.Value.String()
			}
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}

func (tel *telemetry) wantTree(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := tel.tree(); !slices.Equal(got, want) {
		t.Errorf("spans:\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// values returns the values of all series by name and attributes. Of a histogram it has the sum and the count.
func (tel *telemetry) values(t *testing.T) map[string]float64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := tel.reader.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	key := func(m metricdata.Metrics, attributes attribute.Set, part string) string {
		s := m.Name + part
		for _, a := range attributes.ToSlice() {
			s += " " + strings.TrimPrefix(string(a.Key), "stile.") + "=" + a.Value.String()
		}
		return s
	}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					all[key(m, p.Attributes, ".sum")] = p.Sum
					all[key(m, p.Attributes, ".count")] = float64(p.Count)
				}
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					all[key(m, p.Attributes, "")] = float64(p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					all[key(m, p.Attributes, "")] = p.Value
				}
			default:
				t.Fatalf("%s: unexpected data %T", m.Name, d)
			}
		}
	}
	return all
}

// wantValues checks all series whose names begin with prefix; missing ones are zero.
func (tel *telemetry) wantValues(t *testing.T, prefix string, want map[string]float64) {
	t.Helper()
	got := tel.values(t)
	maps.DeleteFunc(got, func(series string, value float64) bool { return !strings.HasPrefix(series, prefix) || value == 0 })
	for series, value := range want {
		if math.Abs(got[series]-value) > 0.01 {
			t.Errorf("%s: got %v, want %v", series, got[series], value)
		}
		delete(got, series)
	}
	if len(got) > 0 {
		t.Errorf("got %v besides", got)
	}
}

func lock(ctx context.Context, t *testing.T, c *stile.Client, name string) *stile.Hold {
	t.Helper()
	h, err := c.Mutex(name).Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func release(t *testing.T, h *stile.Hold) {
	t.Helper()
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Wait and hold are spans below the caller's. What the holder does is below the hold.
func TestHooks_spans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		tel := newTelemetry(t, stileotel.Options{})
		other := lock(t.Context(), t, newClient(t, st, stile.Hooks{}), "orders/42")
		client := tel.client(t, st)
		go func() {
			time.Sleep(5 * time.Second)
			release(t, other)
		}()
		ctx, request := tel.tracer.Start(t.Context(), "request")
		h := lock(ctx, t, client, "orders/42")
		time.Sleep(3 * time.Second)
		held, work := tel.tracer.Start(h.Context(), "work")
		nested := lock(held, t, client, "b/1")
		release(t, nested)
		work.End()
		release(t, h)
		request.End()
		tel.wantTree(t,
			"request",
			"request > lock wait orders name=orders/42 class=orders mode=exclusive try=false outcome=acquired",
			"request > lock hold orders -> lock wait orders name=orders/42 class=orders mode=exclusive end=released",
			"lock hold orders > work",
			"work > lock wait b name=b/1 class=b mode=exclusive try=false outcome=acquired",
			"work > lock hold b -> lock wait b name=b/1 class=b mode=exclusive end=released",
		)
		for _, s := range tel.spans.Ended() {
			took := s.EndTime().Sub(s.StartTime()).Round(time.Millisecond)
			want, ok := map[string]time.Duration{"lock wait orders": 5 * time.Second, "lock hold orders": 3 * time.Second}[s.Name()]
			if ok && took != want {
				t.Errorf("span %q: got %v, want %v", s.Name(), took, want)
			}
			if s.Name() == "lock hold orders" && !slices.Contains(s.Attributes(), attribute.Int64("stile.lock.token", int64(h.Token()))) {
				t.Errorf("span %q: got the attributes %v, want the token %d", s.Name(), s.Attributes(), h.Token())
			}
		}
	})
}

// Without a span of the caller, wait and hold begin traces of their own, with a link.
func TestHooks_spansWithoutParent(t *testing.T) {
	tel := newTelemetry(t, stileotel.Options{})
	release(t, lock(t.Context(), t, tel.client(t, memstore.New()), "backup"))
	tel.wantTree(t,
		"lock wait other name=backup class=other mode=exclusive try=false outcome=acquired",
		"lock hold other -> lock wait other name=backup class=other mode=exclusive end=released")
}

// The end of a span says how the attempt ended. It is an error if the lock was wanted and not obtained.
func TestHooks_outcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		tel := newTelemetry(t, stileotel.Options{})
		release(t, lock(t.Context(), t, tel.client(t, st), "a/0")) // acquired
		lock(t.Context(), t, newClient(t, st, stile.Hooks{}), "a/1")
		client := tel.client(t, st)
		if _, err := client.Mutex("a/1").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryLock: got %v, want ErrHeld", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := client.Mutex("a/1").Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Lock: got %v, want a timeout", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(2*time.Second, cancel)
		if _, err := client.Mutex("a/1").Lock(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Lock: got %v, want Canceled", err)
		}
		if _, err := client.Semaphore("a/1", 2).Acquire(t.Context()); !errors.Is(err, stile.ErrKind) {
			t.Errorf("Acquire: got %v, want ErrKind", err)
		}
		if _, err := client.Mutex("a/\xff").Lock(t.Context()); !errors.Is(err, stile.ErrBadName) {
			t.Errorf("Lock: got %v, want ErrBadName", err)
		}
		tel.wantTree(t,
			"lock wait a name=a/0 class=a mode=exclusive try=false outcome=acquired",
			"lock hold a -> lock wait a name=a/0 class=a mode=exclusive end=released",
			"lock wait a name=a/1 class=a mode=exclusive try=true outcome=refused",
			"lock wait a name=a/1 class=a mode=exclusive try=false outcome=timeout error.type=timeout Error",
			"lock wait a name=a/1 class=a mode=exclusive try=false outcome=canceled",
			"lock wait a name=a/1 class=a mode=slot/2 try=false outcome=error error.type=_OTHER Error",
			"lock wait a name=a/\uFFFD class=a mode=exclusive try=false outcome=error error.type=_OTHER Error",
		)
		tel.wantValues(t, "stile.lock.", map[string]float64{
			"stile.lock.wait.duration.count lock.class=a lock.outcome=acquired": 1,
			"stile.lock.wait.duration.count lock.class=a lock.outcome=refused":  1,
			"stile.lock.wait.duration.count lock.class=a lock.outcome=timeout":  1,
			"stile.lock.wait.duration.sum lock.class=a lock.outcome=timeout":    3,
			"stile.lock.wait.duration.count lock.class=a lock.outcome=canceled": 1,
			"stile.lock.wait.duration.sum lock.class=a lock.outcome=canceled":   2,
			"stile.lock.wait.duration.count lock.class=a lock.outcome=error":    2,
			"stile.lock.hold.duration.count lock.class=a lock.end=released":     1,
		})
	})
}

// A lost hold is an error, with an event and the reason. Its work can see that in its own span too.
func TestHooks_losses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		tel := newTelemetry(t, stileotel.Options{})
		client := tel.client(t, st)

		h := lock(t.Context(), t, client, "broken/1")
		if _, err := client.Break(t.Context(), "broken/1", h.Token()); err != nil {
			t.Fatal(err)
		}
		<-h.Context().Done()
		_ = h.Release(t.Context())

		h = lock(t.Context(), t, client, "late/1")
		st.SetFaults(func(c memstore.Call) memstore.Fault { return memstore.Fault{Drop: c.Op == memstore.Confirm} })
		<-h.Context().Done()
		st.SetFaults(nil)

		lock(t.Context(), t, client, "closed/1")
		if err := client.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		tel.wantTree(t,
			"lock wait broken name=broken/1 class=broken mode=exclusive try=false outcome=acquired",
			"lock hold broken -> lock wait broken name=broken/1 class=broken mode=exclusive end=lost error.type=lost Error !stile.lock.lost stile.loss.reason=evicted",
			"lock wait late name=late/1 class=late mode=exclusive try=false outcome=acquired",
			"lock hold late -> lock wait late name=late/1 class=late mode=exclusive end=lost error.type=lost Error !stile.lock.lost stile.loss.reason=deadline",
			"lock wait closed name=closed/1 class=closed mode=exclusive try=false outcome=acquired",
			"lock hold closed -> lock wait closed name=closed/1 class=closed mode=exclusive end=lost error.type=lost Error !stile.lock.lost stile.loss.reason=closed",
		)
		for _, s := range tel.spans.Ended() {
			if s.Name() == "lock hold late" && !strings.Contains(s.Status().Description, "late/1") {
				t.Errorf("status of the lost hold: got %+v, want the error", s.Status())
			}
		}
		tel.wantValues(t, "stile.lock.losses", map[string]float64{
			"stile.lock.losses lock.class=broken loss.reason=evicted": 1,
			"stile.lock.losses lock.class=late loss.reason=deadline":  1,
			"stile.lock.losses lock.class=closed loss.reason=closed":  1,
		})
		tel.wantValues(t, "stile.session.losses", map[string]float64{"stile.session.losses loss.reason=deadline": 1})
	})
}

// A release that is not confirmed is an error of the hold, and no loss.
func TestHooks_unconfirmedRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		tel := newTelemetry(t, stileotel.Options{})
		h := lock(t.Context(), t, tel.client(t, st), "a/1")
		refused := errors.New("refused")
		st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Withdraw {
				return memstore.Fault{Err: refused}
			}
			return memstore.Fault{}
		})
		if err := h.Release(t.Context()); !errors.Is(err, refused) {
			t.Errorf("Release: got %v, want %v", err, refused)
		}
		st.SetFaults(nil)
		tel.wantTree(t,
			"lock wait a name=a/1 class=a mode=exclusive try=false outcome=acquired",
			"lock hold a -> lock wait a name=a/1 class=a mode=exclusive end=released error.type=_OTHER Error")
		tel.wantValues(t, "stile.lock.losses", nil)
	})
}

// A hold that is yielded ends, and the next one begins with an attempt of its own.
func TestHooks_yield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		tel := newTelemetry(t, stileotel.Options{})
		h := lock(t.Context(), t, tel.client(t, st), "a/1")
		other, err := newClient(t, st, stile.Hooks{}).Mutex("a/1").Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if h, err := other.Wait(t.Context()); err == nil {
				_ = h.Release(t.Context())
			}
		}()
		ctx, request := tel.tracer.Start(t.Context(), "request")
		next, err := h.Yield(ctx)
		if err != nil {
			t.Fatal(err)
		}
		release(t, next)
		request.End()
		tel.wantTree(t,
			"lock wait a name=a/1 class=a mode=exclusive try=false outcome=acquired",
			"lock hold a -> lock wait a name=a/1 class=a mode=exclusive end=yielded",
			"request",
			"request > lock wait a name=a/1 class=a mode=exclusive try=false outcome=acquired",
			"request > lock hold a -> lock wait a name=a/1 class=a mode=exclusive end=released",
		)
	})
}

func TestHooks_metrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		tel := newTelemetry(t, stileotel.Options{})
		ann, bob := tel.client(t, st), tel.client(t, st)
		h := lock(t.Context(), t, ann, "a/1")
		p, err := bob.Mutex("a/1").Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Second)
		tel.wantValues(t, "stile.lock.", map[string]float64{
			"stile.lock.count lock.class=a lock.state=held":                     1,
			"stile.lock.count lock.class=a lock.state=waiting":                  1,
			"stile.lock.wait.duration.count lock.class=a lock.outcome=acquired": 1,
		})
		release(t, h)
		if h, err = p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		release(t, h)
		tel.wantValues(t, "stile.lock.", map[string]float64{
			"stile.lock.wait.duration.count lock.class=a lock.outcome=acquired": 2,
			"stile.lock.wait.duration.sum lock.class=a lock.outcome=acquired":   7,
			"stile.lock.hold.duration.count lock.class=a lock.end=released":     2,
			"stile.lock.hold.duration.sum lock.class=a lock.end=released":       11,
		})
	})
}

// Renewals are measured, their failures are counted, and the margin is what is left.
func TestHooks_sessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		tel := newTelemetry(t, stileotel.Options{})
		h := lock(t.Context(), t, tel.client(t, st), "a/1")
		st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Confirm {
				return memstore.Fault{ReplyDelay: 20 * time.Millisecond}
			}
			return memstore.Fault{}
		})
		time.Sleep(ttl)
		got := tel.values(t)
		const renewals = "stile.session.renew.duration"
		if n, sum := got[renewals+".count"], got[renewals+".sum"]; n < 2 || math.Abs(sum-0.02*n) > 0.001 {
			t.Errorf("got %v renewals in %v s, want some of 0.02 s each", n, sum)
		}
		if m := got["stile.session.margin"]; m < 0.8*ttl.Seconds() || m > ttl.Seconds() {
			t.Errorf("margin of a session that is renewed: got %v s, want nearly the TTL", m)
		}
		st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Confirm {
				return memstore.Fault{Err: errors.New("down")}
			}
			return memstore.Fault{}
		})
		<-h.Context().Done()
		renewed := got[renewals+".count"]
		got = tel.values(t)
		if n := got[renewals+".count"]; n > renewed+1 { // one may have succeeded meanwhile
			t.Errorf("got %v durations after %v, of renewals that have failed", n, renewed)
		}
		if n := got["stile.session.renew.failures"]; n < 2 {
			t.Errorf("got %v failures, want several", n)
		}
		if m := got["stile.session.margin"]; m > 0.3*ttl.Seconds() {
			t.Errorf("margin of a session that is hardly renewed any more: got %v s, want little", m)
		}
		st.SetFaults(nil)
	})
}

// Contentions are recorded only on demand, because the store must be asked.
func TestHooks_contentions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if newTelemetry(t, stileotel.Options{}).hooks.Contended != nil {
			t.Error("without Options.Contentions: the store is asked for waiters")
		}
		st := memstore.New()
		tel := newTelemetry(t, stileotel.Options{Contentions: true})
		h := lock(t.Context(), t, tel.client(t, st), "a/1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := newClient(t, st, stile.Hooks{}).Mutex("a/1").Lock(ctx); err == nil {
			t.Error("got a lock that is held")
		}
		release(t, h)
		tel.wantValues(t, "stile.lock.contentions", map[string]float64{"stile.lock.contentions lock.class=a": 1})
		tel.wantTree(t,
			"lock wait a name=a/1 class=a mode=exclusive try=false outcome=acquired",
			"lock hold a -> lock wait a name=a/1 class=a mode=exclusive end=released !stile.lock.contended")
	})
}

// No name is an attribute of a metric, and the number of classes is limited.
func TestHooks_classes(t *testing.T) {
	for _, tt := range []struct {
		of      func(string) string
		classes int
	}{
		{nil, 51},
		{func(name string) string { return name }, 51},
		{func(string) string { return "" }, 1},
		{func(string) string { return strings.Repeat("x", 1000) }, 1},
		{func(string) string { return "\xff" }, 1},
	} {
		tel := newTelemetry(t, stileotel.Options{Class: tt.of})
		client := tel.client(t, memstore.New())
		for i := range 100 {
			release(t, lock(t.Context(), t, client, fmt.Sprintf("tenant-%d/secret", i)))
			release(t, lock(t.Context(), t, client, fmt.Sprintf("secret-%d", i)))
		}
		classes := make(map[string]bool)
		for series := range tel.values(t) {
			if _, class, ok := strings.Cut(series, "lock.class="); ok {
				class, _, _ = strings.Cut(class, " ")
				classes[class] = true
			}
			if !utf8.ValidString(series) || tt.of == nil && strings.Contains(series, "secret") {
				t.Errorf("series %q: it has a name in it, or is not UTF-8", series)
			}
		}
		if len(classes) != tt.classes {
			t.Errorf("got %d classes, want %d: %v", len(classes), tt.classes, slices.Sorted(maps.Keys(classes)))
		}
	}
}

// Other hooks can start spans of their own; each pair of hooks gets its own span.
func TestHooks_joined(t *testing.T) {
	for _, first := range []bool{true, false} {
		tel := newTelemetry(t, stileotel.Options{})
		others := stile.Hooks{
			AttemptStart: func(ctx context.Context, _ stile.AttemptStartEvent) context.Context {
				ctx, _ = tel.tracer.Start(ctx, "other attempt")
				return ctx
			},
			AttemptEnd: func(ctx context.Context, _ stile.AttemptEndEvent) { trace.SpanFromContext(ctx).End() },
			HoldStart: func(ctx context.Context, _ stile.HoldStartEvent) context.Context {
				ctx, _ = tel.tracer.Start(ctx, "other hold")
				return ctx
			},
			HoldEnd: func(ctx context.Context, _ stile.HoldEndEvent) { trace.SpanFromContext(ctx).End() },
		}
		hooks := stile.JoinHooks(tel.hooks, others)
		if !first {
			hooks = stile.JoinHooks(others, tel.hooks)
		}
		release(t, lock(t.Context(), t, newClient(t, memstore.New(), hooks), "a/1"))
		ended := make(map[string]int)
		for _, s := range tel.spans.Ended() {
			ended[s.Name()]++
		}
		want := map[string]int{"other attempt": 1, "other hold": 1, "lock wait a": 1, "lock hold a": 1}
		if !maps.Equal(ended, want) {
			t.Errorf("ended spans: got %v, want %v", ended, want)
		}
	}
}

// A meter provider that refuses a metric is reported, and not used.
func TestHooks_meterFails(t *testing.T) {
	refused := errors.New("refused")
	hooks, err := stileotel.Hooks(stileotel.Options{MeterProvider: badMeters{err: refused}})
	if !errors.Is(err, refused) || hooks.AttemptStart != nil {
		t.Errorf("got %v, want %v and no hooks", err, refused)
	}
}

type badMeters struct {
	noop.MeterProvider
	err error
}

func (m badMeters) Meter(string, ...metric.MeterOption) metric.Meter { return badMeter{err: m.err} }

type badMeter struct {
	noop.Meter
	err error
}

func (m badMeter) Float64Gauge(string, ...metric.Float64GaugeOption) (metric.Float64Gauge, error) {
	return nil, m.err
}

// The same on a real store, with two processes.
func TestRedis(t *testing.T) {
	addr := testservers.StartRedis(t).Addr()
	tel := newTelemetry(t, stileotel.Options{Contentions: true})
	record, recorded := tel.hooks.Contended, make(chan struct{})
	tel.hooks.Contended = func(ctx context.Context, e stile.ContentionEvent) {
		record(ctx, e)
		close(recorded)
	}
	open := func() *stile.Client {
		cli, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableRetry: true, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cli.Close)
		st, err := redisstore.New(cli, nil)
		if err != nil {
			t.Fatal(err)
		}
		return tel.client(t, st)
	}
	ann, bob := open(), open()
	ctx, request := tel.tracer.Start(t.Context(), "request")
	h := lock(ctx, t, ann, "orders/42")
	p, err := bob.Mutex("orders/42").Join(ctx)
	if err != nil {
		t.Fatal(err)
	}
	<-recorded // an event cannot be added to the span of a hold that has ended
	release(t, h)
	next, err := p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ann.Break(ctx, "orders/42", next.Token()); err != nil {
		t.Fatal(err)
	}
	<-next.Context().Done()
	for _, c := range []*stile.Client{ann, bob} { // after the pending hooks
		if err := c.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	request.End()
	tel.wantTree(t,
		"request",
		"request > lock wait orders name=orders/42 class=orders mode=exclusive try=false outcome=acquired",
		"request > lock wait orders name=orders/42 class=orders mode=exclusive try=false outcome=acquired",
		"request > lock hold orders -> lock wait orders name=orders/42 class=orders mode=exclusive end=released !stile.lock.contended",
		"request > lock hold orders -> lock wait orders name=orders/42 class=orders mode=exclusive end=lost error.type=lost Error !stile.lock.lost stile.loss.reason=evicted",
	)
	got := tel.values(t)
	for series, want := range map[string]float64{
		"stile.lock.contentions lock.class=orders":                               1,
		"stile.lock.losses lock.class=orders loss.reason=evicted":                1,
		"stile.lock.count lock.class=orders lock.state=held":                     0,
		"stile.lock.count lock.class=orders lock.state=waiting":                  0,
		"stile.lock.wait.duration.count lock.class=orders lock.outcome=acquired": 2,
	} {
		if got[series] != want {
			t.Errorf("%s: got %v, want %v", series, got[series], want)
		}
	}
}
