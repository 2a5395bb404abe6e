// Package stileotel records the locks of a client as OpenTelemetry spans and metrics.
//
//	hooks, err := stileotel.Hooks(stileotel.Options{})
//	if err != nil {
//		return err
//	}
//	client, err := stile.New(store, &stile.Options{Hooks: hooks})
//
// It needs only the API of OpenTelemetry. The program chooses the SDK and the exporters.
//
// # Spans
//
// Each attempt to take a lock is a span "lock wait CLASS", a child of the caller's span. The requests that it
// makes to the store are its children if the store's client is instrumented. It is an error if the attempt ends
// at the deadline of the caller's context or with an error; not if the lock is refused to TryLock, or if the
// caller's context is canceled.
//
// Each hold is a span "lock hold CLASS", also a child of the caller's span, with a link to its attempt. Spans that
// are started with [stile.Hold.Context] are its children. It is an error if the hold is lost, and has then the
// event stile.lock.lost; and if its release is not confirmed. A span is exported when it ends: the hold of a
// process that dies is never seen.
//
// The attributes stile.lock.name and stile.lock.token are in spans only.
//
// # Metrics
//
//	stile.lock.wait.duration       histogram, s           class, outcome
//	stile.lock.hold.duration       histogram, s           class, end
//	stile.lock.count               up-down counter        class, state (held or waiting)
//	stile.lock.losses              counter                class, reason (deadline, expired, evicted or closed)
//	stile.lock.contentions         counter                class; only with Options.Contentions
//	stile.session.renew.duration   histogram, s
//	stile.session.renew.failures   counter
//	stile.session.margin           gauge, s
//	stile.session.losses           counter                reason, as above
//
// The attributes are stile.lock.class, stile.lock.outcome and so on; stile.loss.reason for both kinds of losses.
// Their values are those of [stile.Outcome] and [stile.EndReason]. The outcomes of acquisitions are the counts of
// stile.lock.wait.duration. A renewal that fails counts as a failure and has no duration. The margin is the time
// that was left until the loss of the session after the last attempt to renew it; make one client for each
// process, because the value is that of the client that renewed last.
//
// The class of a lock is the part of its name before the first slash, and "other" if there is none. A function can
// choose others: see [Options]. There are at most fifty; further ones are "other".
package stileotel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/lockclass"
)

const scope = "github.com/stilelock/stile/adapters/stileotel"

// Options are optional settings of [Hooks].
type Options struct {
	// TracerProvider makes the spans, MeterProvider the metrics. Nil means the global one.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// Class returns the class of a name. It should have few values, and is called by several goroutines. A
	// class that is empty or longer than 64 bytes is "other". Nil means the part before the first slash.
	Class func(name string) string
	// Contentions records the holds that others wait for: as metric, and as events of their spans. For that the
	// store is asked to look for waiters, which can cost a request for each hold; see [stile.Hooks].
	Contentions bool

	_ struct{}
}

// Hooks returns hooks for [stile.Options] that record spans and metrics. Use [stile.JoinHooks] to add others. The
// hooks can be used by several clients. An error means that the meter provider does not accept a metric.
func Hooks(o Options) (stile.Hooks, error) {
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	if o.Class == nil {
		o.Class = lockclass.Of
	}
	r := &recorder{tracer: o.TracerProvider.Tracer(scope), classOf: o.Class}
	if err := r.instruments.create(o.MeterProvider.Meter(scope)); err != nil {
		return stile.Hooks{}, fmt.Errorf("stileotel: %w", err)
	}
	hooks := stile.Hooks{
		AttemptStart: r.attemptStart, AttemptEnd: r.attemptEnd, HoldStart: r.holdStart, HoldEnd: r.holdEnd,
		SessionRenewed: r.sessionRenewed, SessionLost: r.sessionLost,
	}
	if o.Contentions {
		hooks.Contended = r.contended
	}
	return hooks, nil
}

const (
	nameKey    = attribute.Key("stile.lock.name")
	classKey   = attribute.Key("stile.lock.class")
	modeKey    = attribute.Key("stile.lock.mode")
	tryKey     = attribute.Key("stile.lock.try")
	tokenKey   = attribute.Key("stile.lock.token")
	outcomeKey = attribute.Key("stile.lock.outcome")
	endKey     = attribute.Key("stile.lock.end")
	stateKey   = attribute.Key("stile.lock.state")
	reasonKey  = attribute.Key("stile.loss.reason")
	errorKey   = attribute.Key("error.type")
)

var (
	held, waiting = stateKey.String("held"), stateKey.String("waiting")
	// otherError is the value of error.type for an error without a name of its own, by convention.
	otherError = errorKey.String("_OTHER")
)

type recorder struct {
	tracer  trace.Tracer
	classOf func(name string) string
	classes lockclass.Set
	instruments
}

type instruments struct {
	waits, holds, renewals                     metric.Float64Histogram
	count                                      metric.Int64UpDownCounter
	losses, contentions, failed, sessionLosses metric.Int64Counter
	margin                                     metric.Float64Gauge
}

var (
	lockBuckets    = metric.WithExplicitBucketBoundaries(.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600)
	requestBuckets = metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10)
)

func (i *instruments) create(m metric.Meter) (err error) {
	var errs []error
	seconds := metric.WithUnit("s")
	histogram := func(name, description string, buckets metric.HistogramOption) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithDescription(description), seconds, buckets)
		errs = append(errs, err)
		return h
	}
	counter := func(name, description, unit string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithDescription(description), metric.WithUnit(unit))
		errs = append(errs, err)
		return c
	}
	i.waits = histogram("stile.lock.wait.duration", "How long attempts to take a lock took.", lockBuckets)
	i.holds = histogram("stile.lock.hold.duration", "How long locks were held.", lockBuckets)
	i.renewals = histogram("stile.session.renew.duration", "The time from the request to renew a session to its reply.", requestBuckets)
	i.losses = counter("stile.lock.losses", "Holds that were lost.", "{hold}")
	i.contentions = counter("stile.lock.contentions", "Holds that others waited for.", "{hold}")
	i.failed = counter("stile.session.renew.failures", "Attempts to renew a session that have failed.", "{attempt}")
	i.sessionLosses = counter("stile.session.losses", "Sessions that were lost with all their holds.", "{session}")
	i.count, err = m.Int64UpDownCounter("stile.lock.count",
		metric.WithDescription("Holds, and attempts to take a lock that have not ended."), metric.WithUnit("{lock}"))
	errs = append(errs, err)
	i.margin, err = m.Float64Gauge("stile.session.margin",
		metric.WithDescription("The time left until the session is lost, after the last attempt to renew it."), seconds)
	return errors.Join(append(errs, err)...)
}

func (r *recorder) class(name string) attribute.KeyValue {
	return classKey.String(r.classes.Limit(lockclass.Label(r.classOf(name))))
}

// attemptKey is the key of a context's attempt.
type attemptKey struct{}

type attempt struct {
	caller trace.Span        // the span of the call's context
	wait   trace.SpanContext // of the attempt
}

func (r *recorder) attemptStart(ctx context.Context, e stile.AttemptStartEvent) context.Context {
	class := r.class(e.Name)
	caller := trace.SpanFromContext(ctx)
	ctx, span := r.tracer.Start(ctx, "lock wait "+class.Value.AsString(), trace.WithAttributes(
		nameOf(e.Name), class, modeKey.String(e.Mode.String()), tryKey.Bool(e.Try)))
	r.count.Add(ctx, 1, metric.WithAttributes(class, waiting))
	return context.WithValue(ctx, attemptKey{}, attempt{caller, span.SpanContext()})
}

// nameOf returns a name as attribute. Attributes must be UTF-8, and a name may be invalid.
func nameOf(name string) attribute.KeyValue {
	return nameKey.String(strings.ToValidUTF8(name, string(utf8.RuneError)))
}

func (r *recorder) attemptEnd(ctx context.Context, e stile.AttemptEndEvent) {
	class, outcome := r.class(e.Name), outcomeKey.String(e.Outcome.String())
	r.count.Add(ctx, -1, metric.WithAttributes(class, waiting))
	r.waits.Record(ctx, e.Waited.Seconds(), metric.WithAttributes(class, outcome))
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(outcome)
	switch e.Outcome {
	case stile.TimedOut:
		fail(span, e.Err, errorKey.String("timeout"))
	case stile.Failed:
		fail(span, e.Err, otherError)
	default:
	}
	span.End()
}

// fail gives a span the status of an error.
func fail(span trace.Span, err error, kind attribute.KeyValue) {
	span.SetStatus(codes.Error, strings.ToValidUTF8(err.Error(), string(utf8.RuneError)))
	span.SetAttributes(kind)
}

func (r *recorder) holdStart(ctx context.Context, e stile.HoldStartEvent) context.Context {
	class := r.class(e.Name)
	link := trace.WithLinks()
	if a, ok := ctx.Value(attemptKey{}).(attempt); ok {
		ctx = trace.ContextWithSpan(ctx, a.caller)
		link = trace.WithLinks(trace.Link{SpanContext: a.wait})
	}
	ctx, _ = r.tracer.Start(ctx, "lock hold "+class.Value.AsString(), link, trace.WithAttributes(
		nameOf(e.Name), class, modeKey.String(e.Mode.String()), tokenKey.Int64(int64(e.Token))))
	r.count.Add(ctx, 1, metric.WithAttributes(class, held))
	return ctx
}

func (r *recorder) holdEnd(ctx context.Context, e stile.HoldEndEvent) {
	class, end := r.class(e.Name), endKey.String(e.Reason.String())
	r.count.Add(ctx, -1, metric.WithAttributes(class, held))
	r.holds.Record(ctx, e.Held.Seconds(), metric.WithAttributes(class, end))
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(end)
	var lost *stile.LostError
	switch {
	case e.Reason == stile.EndLost && errors.As(e.Err, &lost):
		reason := reasonKey.String(reasonOf(lost.Reason))
		r.losses.Add(ctx, 1, metric.WithAttributes(class, reason))
		span.AddEvent("stile.lock.lost", trace.WithAttributes(reason))
		fail(span, e.Err, errorKey.String("lost"))
	case e.Err != nil:
		fail(span, e.Err, otherError)
	}
	span.End()
}

func reasonOf(r stile.Reason) string {
	switch r {
	case stile.LostDeadline:
		return "deadline"
	case stile.LostExpired:
		return "expired"
	case stile.LostEvicted:
		return "evicted"
	case stile.LostClosed:
		return "closed"
	default:
		return lockclass.Other
	}
}

func (r *recorder) contended(ctx context.Context, e stile.ContentionEvent) {
	r.contentions.Add(ctx, 1, metric.WithAttributes(r.class(e.Name)))
	trace.SpanFromContext(ctx).AddEvent("stile.lock.contended") // without effect if the hold has ended
}

func (r *recorder) sessionRenewed(e stile.RenewalEvent) {
	ctx := context.Background()
	r.margin.Record(ctx, e.Left.Seconds())
	if e.Err != nil {
		r.failed.Add(ctx, 1)
		return
	}
	r.renewals.Record(ctx, e.RoundTrip.Seconds())
}

func (r *recorder) sessionLost(e stile.SessionLossEvent) {
	r.sessionLosses.Add(context.Background(), 1, metric.WithAttributes(reasonKey.String(reasonOf(e.Reason))))
}
