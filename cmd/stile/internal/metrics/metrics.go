// Package metrics counts what an observer sees in a store, for Prometheus. Its labels are classes of locks,
// never their names.
//
// On etcd the observer gets every state of every lock with at most 128 entries, so the counters are exact. Other
// stores it reads at most ten times a second. What is undone between two readings is not seen:
// the counters are too small for locks that are held for less than that, and times are exact to that. A
// hand-over between goroutines of one client is not seen at all, because the store does not see it.
//
// Every server that observes a store counts all of its locks. Take the largest value of several servers, not
// their sum.
package metrics

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/internal/lockclass"
)

// Values of labels.
const (
	held, waiting = "held", "waiting" // state

	acquired = "acquired" // outcome; the others are left, and the causes that the observer knows
	left     = "left"
	released = "released" // end
	unknown  = "unknown"

	expired = "expired" // reason
)

var (
	waitBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
	holdBuckets = append(slices.Clip(waitBuckets), 4*3600, 24*3600)
	readBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
)

// A Collector is the metrics of one observer. It is safe for concurrent use.
type Collector struct {
	observer *observe.Observer
	classes  Classes

	acquisitions, losses, contentions *prometheus.CounterVec
	waits, holds                      *prometheus.HistogramVec
	reads                             *prometheus.HistogramVec
	readErrors                        prometheus.Counter

	mu    sync.Mutex           // taken while the observer's is held
	known map[string]*counters // by class

	fromNames lockclass.Set
}

// New returns the metrics of what the observer sees. It must be called before the observer runs, and sets
// its hooks.
func New(o *observe.Observer, classes Classes) *Collector {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	c := &Collector{
		observer: o, classes: classes,
		acquisitions: counter("stile_lock_acquisitions_total",
			"Entries that were admitted, or left their line before.", "class", "outcome"),
		losses: counter("stile_lock_losses_total",
			"Holds that ended without having been released.", "class", "reason"),
		contentions: counter("stile_lock_contentions_total",
			"Holds that others waited for.", "class"),
		waits: histogram("stile_lock_wait_duration_seconds",
			"How long entries waited until they were admitted or left.", waitBuckets, "class", "outcome"),
		holds: histogram("stile_lock_hold_duration_seconds",
			"How long locks were held.", holdBuckets, "class", "end"),
		reads: histogram("stile_store_read_duration_seconds",
			"How long a reading of the store took: of all lines, of those that had changed, or of one line for its lease.",
			readBuckets, "reading"),
		readErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "stile_store_read_errors_total", Help: "Readings of the store that have failed.",
		}),
		known: make(map[string]*counters),
	}
	for _, r := range classes.rules {
		c.addLocked(r.class)
	}
	c.addLocked(lockclass.Other)
	for _, what := range []string{observe.ReadAll, observe.ReadChanged, observe.ReadLease} {
		c.reads.WithLabelValues(what)
	}
	o.SetHooks(observe.Hooks{Changed: c.changed, Reading: c.reading})
	return c
}

// class returns the class of a name, and its counters.
func (c *Collector) class(name string) (string, *counters) {
	class, chosen := c.classes.of(name)
	if !chosen {
		class = c.fromNames.Limit(class)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.known[class]
	if of == nil {
		of = c.addLocked(class)
	}
	return class, of
}

// counters are the metrics of a class. Those with another label are functions of it. The observer's mutex must be held.
type counters struct {
	acquisitions, losses func(label string) prometheus.Counter
	contentions          prometheus.Counter
	waits, holds         func(label string) prometheus.Observer
}

// addLocked adds a class. Its counters begin at zero, so that Prometheus sees how they become one.
func (c *Collector) addLocked(class string) *counters {
	of := &counters{
		acquisitions: labeled(c.acquisitions.WithLabelValues, class),
		losses:       labeled(c.losses.WithLabelValues, class),
		contentions:  c.contentions.WithLabelValues(class),
		waits:        labeled(c.waits.WithLabelValues, class),
		holds:        labeled(c.holds.WithLabelValues, class),
	}
	c.known[class] = of
	for _, outcome := range []string{acquired, left, observe.Lost, observe.Broken, unknown} {
		of.acquisitions(outcome)
	}
	for _, reason := range []string{expired, observe.Broken} {
		of.losses(reason)
	}
	of.waits(acquired)
	of.holds(released)
	return of
}

// labeled returns a function that finds the metric of a class with a label. It keeps what it has found: to find a metric
// by its labels takes longer than to count.
func labeled[M any](find func(labels ...string) M, class string) func(label string) M {
	known := make(map[string]M)
	return func(label string) M {
		m, ok := known[label]
		if !ok {
			m = find(class, label)
			known[label] = m
		}
		return m
	}
}

func (c *Collector) reading(r observe.Reading) {
	if r.Err != nil {
		c.readErrors.Inc()
		return
	}
	c.reads.WithLabelValues(r.What).Observe(r.Took.Seconds())
}

// changed counts the events of a line.
func (c *Collector) changed(before, now stile.Line, events []observe.Event) {
	_, of := c.class(now.Name)
	admitted := 0
	for _, e := range events {
		switch e.What {
		case observe.Holds:
			admitted++
			of.attempted(acquired, e)
		case observe.Left:
			of.attempted(outcomeOf(e.Cause), e)
		case observe.Ended:
			of.ended(e)
		}
	}
	// Each holder of a line with waiters has been counted: when it was admitted, or when the first waiter came.
	switch {
	case len(now.Waiters) == 0:
	case len(before.Waiters) > 0:
		of.contentions.Add(float64(admitted))
	default:
		of.contentions.Add(float64(len(now.Holders)))
	}
}

func (c *counters) attempted(outcome string, e observe.Event) {
	c.acquisitions(outcome).Inc()
	if e.Measured {
		c.waits(outcome).Observe(e.Waited.Seconds())
	}
}

func outcomeOf(cause string) string {
	switch cause {
	case observe.Released:
		return left
	case "":
		return unknown
	default:
		return cause
	}
}

func (c *counters) ended(e observe.Event) {
	end := e.Cause
	switch e.Cause {
	case observe.Lost:
		c.losses(expired).Inc()
	case observe.Broken:
		c.losses(observe.Broken).Inc()
	case "":
		end = unknown
	}
	if e.Measured {
		c.holds(end).Observe(e.Held.Seconds())
	}
}

var (
	upDesc = prometheus.NewDesc("stile_observer_up",
		"1 if all locks of the store have been read and the last reading succeeded, 0 otherwise.", nil, nil)
	sinceDesc = prometheus.NewDesc("stile_observer_since_timestamp_seconds",
		"When stile_observer_up got its present value.", nil, nil)
	entriesDesc = prometheus.NewDesc("stile_lock_entries",
		"Entries in the lines: holds, and others that wait.", []string{"class", "state"}, nil)
	namesDesc = prometheus.NewDesc("stile_lock_names",
		"Locks that are held, and locks that are waited for.", []string{"class", "state"}, nil)
	longestWaitDesc = prometheus.NewDesc("stile_lock_longest_wait_seconds",
		"How long the entry that has waited longest has been waiting.", []string{"class"}, nil)
	longestHoldDesc = prometheus.NewDesc("stile_lock_longest_hold_seconds",
		"How long the lock that has been held longest has been held.", []string{"class"}, nil)
	leaseDesc = prometheus.NewDesc("stile_lock_lease_remaining_seconds",
		"Until the first lease of a holder ends, unless it has been renewed since it was last read.", []string{"class"}, nil)
)

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, part := range c.parts() {
		part.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{upDesc, sinceDesc, entriesDesc, namesDesc, longestWaitDesc, longestHoldDesc, leaseDesc} {
		ch <- d
	}
}

func (c *Collector) parts() []prometheus.Collector {
	return []prometheus.Collector{c.acquisitions, c.losses, c.contentions, c.waits, c.holds, c.reads, c.readErrors}
}

// Collect implements [prometheus.Collector]. While the observer is not up there are no values for the present
// holders and waiters, because nobody knows them.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	status := c.observer.Status()
	gauge(sinceDesc, float64(status.Since.UnixMilli())/1000)
	if status.Read && status.Err == nil {
		gauge(upDesc, 1)
		c.collectSums(gauge)
	} else {
		gauge(upDesc, 0)
	}
	for _, part := range c.parts() { // after the sums, which may have added classes
		part.Collect(ch)
	}
}

func (c *Collector) collectSums(gauge func(d *prometheus.Desc, value float64, labels ...string)) {
	for class, s := range c.sums() {
		gauge(entriesDesc, float64(s.holds), class, held)
		gauge(entriesDesc, float64(s.waits), class, waiting)
		gauge(namesDesc, float64(s.namesHeld), class, held)
		gauge(namesDesc, float64(s.namesWaited), class, waiting)
		gauge(longestWaitDesc, s.longestWait.Seconds(), class)
		gauge(longestHoldDesc, s.longestHold.Seconds(), class)
		if s.lease > 0 {
			gauge(leaseDesc, s.lease.Seconds(), class)
		}
	}
}

// sum is what the entries of a class are together.
type sum struct {
	holds, waits             int
	namesHeld, namesWaited   int
	longestHold, longestWait time.Duration
	lease                    time.Duration // the shortest that is known; zero if none is

	lastHeld, lastWaited string // names counted last
}

// sums returns the sums of all classes that are known, also those without entries.
func (c *Collector) sums() map[string]*sum {
	sums := make(map[string]*sum)
	c.observer.EachEntry(func(e observe.EntryState) {
		class, _ := c.class(e.Name)
		s := sums[class]
		if s == nil {
			s = new(sum)
			sums[class] = s
		}
		s.add(e)
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	for class := range c.known {
		if sums[class] == nil {
			sums[class] = new(sum)
		}
	}
	return sums
}

// add adds an entry. The entries of one line follow each other.
func (s *sum) add(e observe.EntryState) {
	if !e.Holds {
		s.waits++
		s.longestWait = max(s.longestWait, e.For)
		if s.waits == 1 || s.lastWaited != e.Name {
			s.namesWaited++
		}
		s.lastWaited = e.Name
		return
	}
	s.holds++
	s.longestHold = max(s.longestHold, e.For)
	if s.holds == 1 || s.lastHeld != e.Name {
		s.namesHeld++
	}
	s.lastHeld = e.Name
	if e.Remaining > 0 && (s.lease == 0 || e.Remaining < s.lease) {
		s.lease = e.Remaining
	}
}

// maxScrapes is the number of requests that a handler answers at the same time.
const maxScrapes = 3

// Handler returns a handler that serves the metrics of the collector and of this process. It answers three requests at a
// time, and others meanwhile with the status 503. So its answers must be kept until they are complete: clients that read
// slowly must not count. The handler does not authenticate clients.
func Handler(c *Collector) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}
