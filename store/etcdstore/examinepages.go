package etcdstore

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stilelock/stile/store/internal/examine"
)

// examinePages examines what a member's pages say: its metrics, and the time.
func (x *examination) examinePages(ctx context.Context, m member) {
	get := x.store.pages
	if get == nil {
		return
	}
	metrics, date, err := readMetrics(ctx, func(ctx context.Context) (*http.Response, error) { return get(ctx, m.endpoint, "/metrics") })
	if err != nil {
		f := examine.Attention("etcd-metrics", "/metrics cannot be read: %v; so the speed of the disk, changes of the leader and the rate of the "+
			"clock were not examined", err)
		f.Advice = "let this machine read it, or watch these in your monitoring"
		x.found.Add(m.endpoint, f)
		return
	}
	x.examineFsync(m.endpoint, metrics)
	x.examineLeaderChanges(m.endpoint, metrics, date)
	if m.status.DbSizeQuota == 0 { // before 3.6
		if quota, ok := metrics.value("etcd_server_quota_backend_bytes"); ok && quota > 0 {
			x.judgeQuota(m.endpoint, m.status.DbSize, int64(quota))
		}
	}
	x.examineClock(ctx, m.endpoint)
}

// samples are the lines of a page of metrics.
type samples []string

// readMetrics reads a page of metrics, and the time in its header.
func readMetrics(ctx context.Context, get func(context.Context) (*http.Response, error)) (samples, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	answer, err := get(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, time.Time{}, fmt.Errorf("the answer is %s", answer.Status)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 16<<20))
	if err != nil {
		return nil, time.Time{}, err
	}
	date, _ := http.ParseTime(answer.Header.Get("Date"))
	return strings.Split(string(text), "\n"), date, nil
}

// value returns the value of a metric without labels.
func (s samples) value(name string) (float64, bool) {
	for _, l := range s {
		if text, ok := strings.CutPrefix(l, name+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			return v, err == nil
		}
	}
	return 0, false
}

// quantile returns a bound of a quantile of a histogram: that of the bucket that it is in. n is the number
// of observations.
func (s samples) quantile(name string, q float64) (bound, n float64) {
	type bucket struct{ bound, count float64 }
	var buckets []bucket
	for _, l := range s {
		rest, ok := strings.CutPrefix(l, name+`_bucket{le="`)
		if !ok {
			continue
		}
		le, count, _ := strings.Cut(rest, `"} `)
		b, err := strconv.ParseFloat(le, 64)
		c, e := strconv.ParseFloat(count, 64)
		if err == nil && e == nil {
			buckets = append(buckets, bucket{b, c})
			n = max(n, c)
		}
	}
	slices.SortFunc(buckets, func(a, b bucket) int {
		if a.bound < b.bound {
			return -1
		}
		return 1
	})
	for _, b := range buckets {
		if b.count >= q*n {
			return b.bound, n
		}
	}
	return math.Inf(1), n
}

// examineFsync judges the member's disk. A member writes each change to disk before it counts.
func (x *examination) examineFsync(endpoint string, metrics samples) {
	const id = "etcd-fsync"
	const fewest = 100
	seconds, n := metrics.quantile("etcd_disk_wal_fsync_duration_seconds", 0.99)
	limit := x.store.limits.fsync
	switch {
	case n < fewest:
		x.found.Add(endpoint, examine.Fine(id, "too few writes to disk since the start to judge it"))
	case seconds <= limit.Seconds():
		x.found.Add(endpoint, examine.Fine(id, "99 %% of the writes to disk take less than %v", limit))
	default:
		bound := "longer than any bucket of the histogram"
		if !math.IsInf(seconds, 1) {
			bound = "up to " + time.Duration(seconds*float64(time.Second)).String()
		}
		f := examine.Attention(id, "the slowest hundredth of the writes to disk takes longer than %v (%s): leaders change, and locks are late or lost",
			limit, bound)
		f.Advice = "give etcd a disk of its own, an SSD"
		x.found.Add(endpoint, f)
	}
}

// examineLeaderChanges judges how often the leader changes. The member's own clock tells how long it has run.
func (x *examination) examineLeaderChanges(endpoint string, metrics samples, now time.Time) {
	const id = "etcd-leader"
	const fewest = 4
	changes, known := metrics.value("etcd_server_leader_changes_seen_total")
	start, _ := metrics.value("process_start_time_seconds")
	if !known || start == 0 || now.IsZero() {
		return
	}
	up := max(now.Sub(time.Unix(int64(start), 0)), time.Second)
	if changes < fewest || changes <= up.Hours() {
		x.found.Add(endpoint, examine.Fine(id, "the leader changes less than once an hour"))
		return
	}
	f := examine.Attention(id, "the leader has changed %.0f times in %v: at each change renewals may fail, and crashed holders' locks are free later",
		changes, up.Round(time.Second))
	f.Advice = "look for slow disks, a slow network or overload, or raise --election-timeout"
	x.found.Add(endpoint, f)
}

// clockInterval is the time between the two readings by which the rate of a member's clock is measured.
const clockInterval = 2 * time.Second

// examineClock measures the rate of a member's clock. etcd tells the time only in the Date of its pages, in
// whole seconds; but when that changes, the second has just begun.
func (x *examination) examineClock(ctx context.Context, endpoint string) {
	first, err := x.awaitSecond(ctx, endpoint)
	if err == nil {
		err = examine.Wait(ctx, clockInterval-500*time.Millisecond)
	}
	var last examine.Reading
	if err == nil {
		last, err = x.awaitSecond(ctx, endpoint)
	}
	if err != nil {
		f := examine.Attention("etcd-clock-rate", "the rate of the member's clock could not be measured: %v", err)
		f.Advice = "run stile doctor again"
		x.found.Add(endpoint, f)
		return
	}
	x.found.Add(endpoint, examine.ClockRate("etcd-clock-rate", first, last))
}

// awaitSecond waits for the next second of a member's clock.
func (x *examination) awaitSecond(ctx context.Context, endpoint string) (examine.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*examineTimeout)
	defer cancel()
	var before, at time.Time // of the page before: its Date, and when it was asked for
	for {
		sent := time.Now()
		answer, err := x.store.pages(ctx, endpoint, "/version")
		if err != nil {
			return examine.Reading{}, err
		}
		answer.Body.Close()
		received := time.Now()
		date, err := http.ParseTime(answer.Header.Get("Date"))
		switch {
		case err != nil:
			return examine.Reading{}, fmt.Errorf("the page /version has no date: %w", err)
		case !before.IsZero() && !date.Equal(before):
			return examine.Reading{Sent: at, Received: received, Server: date}, nil
		}
		before, at = date, sent
		if err := examine.Wait(ctx, 5*time.Millisecond); err != nil {
			return examine.Reading{}, err
		}
	}
}
