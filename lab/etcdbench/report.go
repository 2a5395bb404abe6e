package main

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// series are measurements, by round.
type series [][]time.Duration

// quantile returns the q-th quantile of all rounds together; zero if nothing was measured.
func (s series) quantile(q float64) time.Duration { return quantile(slices.Concat(s...), q) }

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[min(int(q*float64(len(d))), len(d)-1)]
}

// medians returns each round's median; NaN for rounds without measurements.
func (s series) medians() []float64 {
	var m []float64
	for _, round := range s {
		if len(round) == 0 {
			m = append(m, math.NaN())
			continue
		}
		m = append(m, float64(quantile(round, 0.5)))
	}
	return m
}

// ratio is how two figures compare, in the rounds in which both were measured.
type ratio struct {
	median, least, most float64
}

// compare divides a by b round by round. If no round has both, all of the ratio is NaN.
func compare(a, b []float64) ratio {
	var r []float64
	for i := range min(len(a), len(b)) {
		if x := a[i] / b[i]; !math.IsNaN(x) && !math.IsInf(x, 0) {
			r = append(r, x)
		}
	}
	if len(r) == 0 {
		return ratio{math.NaN(), math.NaN(), math.NaN()}
	}
	return ratio{median(r), slices.Min(r), slices.Max(r)}
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

func (r ratio) String() string {
	if math.IsNaN(r.median) {
		return "–"
	}
	digits := 2
	if r.median >= 10 {
		digits = 1
	}
	return fmt.Sprintf("%.*f (%.*f–%.*f)", digits, r.median, digits, r.least, digits, r.most)
}

// expectation is one of the figures that the project has set itself.
type expectation struct {
	what   string
	got    ratio
	limit  float64
	atMost bool // otherwise at least
}

// reached says whether the median keeps to the limit. What was not measured was not reached.
func (e expectation) reached() bool {
	if e.atMost {
		return e.got.median <= e.limit
	}
	return e.got.median >= e.limit
}

func (e expectation) String() string {
	verdict, sign := "**not reached**", "≥"
	if e.reached() {
		verdict = "reached"
	}
	if e.atMost {
		sign = "≤"
	}
	return fmt.Sprintf("%s %s %g: %v: %s", e.what, sign, e.limit, e.got, verdict)
}

func (b *bench) expectations() []expectation {
	of := func(clients int, hold time.Duration, puts bool) *contestResult {
		i := slices.IndexFunc(b.contests, func(c *contestResult) bool { return c.contest == contest{clients, hold, puts} })
		return b.contests[i]
	}
	const hold = 3 * time.Millisecond
	es := []expectation{
		{"uncontended pair, Stile / raw", compare(b.pairs[ours].medians(), b.pairs[raw].medians()), 1.10, true},
		{"2 clients, hold 0: hand-over p50, Stile / raw delete → watch event", of(2, 0, false).overRaw(), 1.4, true},
		{"2 clients, hold 0: acquisitions/s, Stile / concurrency.Mutex", of(2, 0, false).overStock(), 25, false},
		{"2 clients, hold 3 ms: the same", of(2, hold, false).overStock(), 9, false},
		{"2 clients, hold 3 ms, with unrelated puts: the same", of(2, hold, true).overStock(), 9, false},
		{"10 clients, hold 0: the same", of(10, 0, false).overStock(), 5, false},
	}
	worst := slices.MinFunc(b.contests, func(a, b *contestResult) int {
		if a.overStock().median < b.overStock().median {
			return -1
		}
		return 1
	})
	return append(es, expectation{
		fmt.Sprintf("never slower: the lowest of all contests (%v)", worst.contest), worst.overStock(), 1, false,
	})
}

// overRaw compares the hand-over with its floor.
func (c *contestResult) overRaw() ratio {
	return compare(c.handOvers[ours].medians(), c.handOvers[raw].medians())
}

// overStock compares the rate of acquisitions with that of the stock mutex.
func (c *contestResult) overStock() ratio { return compare(c.rates[ours], c.rates[stock]) }

// describe says when, where and how the measurements were made.
func describe(b *bench, command string) []string {
	dir := os.TempDir()
	return []string{
		"Date: " + b.began.UTC().Format("2006-01-02 15:04 UTC"),
		fmt.Sprintf("%s, etcd server %s, etcd client %s",
			runtime.Version(), b.etcd.version, module("go.etcd.io/etcd/client/v3")),
		"Machine: " + machine(),
		fmt.Sprintf("Command: `%s`: rounds: %d, slices of %v, %v in all",
			command, b.rounds, b.slice, b.took.Round(time.Second)),
		fmt.Sprintf("One etcd with default settings in a process of its own, data in %s (%s), compacted between rounds. "+
			"All clients in one other process, each with its own connection and session, TTL %v for all, etcd client "+
			"settings the same for all. Variants take turns within each round, in rotating order, on fresh names.",
			dir, filesystem(dir), ttl),
	}
}

func module(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	for _, m := range info.Deps {
		if m.Path == path {
			return strings.TrimPrefix(m.Version, "v")
		}
	}
	return "(unknown)"
}

// machine describes the machine as far as it can be found out.
func machine() string {
	parts := []string{fmt.Sprintf("%s/%s, %d CPUs", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())}
	if model := field("/proc/cpuinfo", "model name"); model != "" {
		parts = append(parts, model)
	}
	if memory := field("/proc/meminfo", "MemTotal"); memory != "" {
		parts = append(parts, memory+" of memory")
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		parts = append(parts, "kernel "+strings.TrimSpace(string(release)))
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		parts = append(parts, "load at the end "+strings.Join(strings.Fields(string(load))[:3], " "))
	}
	return strings.Join(parts, ", ")
}

// filesystem tells the kind of file system that a directory is in: syncing costs nothing on tmpfs.
func filesystem(dir string) string {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "unknown file system"
	}
	point, kind := "", "unknown file system"
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		inside := len(f) > 2 && (f[1] == "/" || dir == f[1] || strings.HasPrefix(dir, f[1]+"/"))
		if inside && len(f[1]) >= len(point) {
			point, kind = f[1], f[2]
		}
	}
	return kind
}

// field returns what a file of lines "name: text" has under name; empty if it has nothing.
func field(file, name string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if key, text, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(text)
		}
	}
	return ""
}

// report returns the whole of what was measured, in Markdown that can be read as it is.
func (b *bench) report(about []string) string {
	var t strings.Builder
	for _, line := range about {
		fmt.Fprintf(&t, "* %s\n", line)
	}
	t.WriteString("\nRatios are medians of the ratios within each round, with the lowest and the highest; times are " +
		"of all rounds together.\n\n")
	b.reportPairs(&t)
	t.WriteString("\n")
	b.reportContests(&t)
	t.WriteString("\nHand-over: from just before one client releases until Lock returns in the next, if that was " +
		"already in Lock. Raw: from just before one client deletes a key until a watch that has long been open tells " +
		"another; \"queueing again\": while each client puts its key in again as soon as it has deleted it, as those " +
		"do who want the lock again.\n\n")
	t.WriteString("Expected:\n\n")
	for _, e := range b.expectations() {
		fmt.Fprintf(&t, "* %v\n", e)
	}
	fmt.Fprintf(&t, "* two clients in one lock at once: %s\n", b.exclusion())
	return t.String()
}

func (b *bench) exclusion() string {
	var byVariant [variants]int
	for _, c := range b.contests {
		for v, n := range c.violations {
			byVariant[v] += n
		}
	}
	if b.violations() == 0 {
		return "never"
	}
	return fmt.Sprintf("**%d times with %v, %d times with %v**", byVariant[stock], stock, byVariant[ours], ours)
}

func (b *bench) reportPairs(t *strings.Builder) {
	rows := [][]string{{
		"nobody else wants the lock", "Lock p50/p99", "Unlock p50/p99", "pair p50/p99", "pair p50 / raw",
	}}
	names := [variants]string{"raw Txn (create == 0 → put), Delete", stock.String(), ours.String()}
	for v := range variants {
		over := compare(b.pairs[v].medians(), b.pairs[raw].medians()).String()
		if v == raw {
			over = "1"
		}
		rows = append(rows, []string{names[v], spread(b.locks[v]), spread(b.unlocks[v]), spread(b.pairs[v]), over})
	}
	table(t, rows)
}

func (b *bench) reportContests(t *strings.Builder) {
	rows := [][]string{{
		"clients", "hold", "puts/s", "raw hand-over p50/p99", "raw, queueing again", "Mutex hand-over p50/p99",
		"Stile hand-over p50/p99", "Stile / raw p50", "Stile / raw, queueing again", "Mutex acq/s", "Stile acq/s",
		"Stile / Mutex acq/s",
	}}
	for _, c := range b.contests {
		puts := "0"
		if c.puts {
			puts = fmt.Sprintf("%.0f", median(c.putRates))
		}
		rows = append(rows, []string{
			fmt.Sprint(c.clients), c.hold.String(), puts,
			spread(c.handOvers[raw]), spread(c.duel), spread(c.handOvers[stock]), spread(c.handOvers[ours]),
			c.overRaw().String(), compare(c.handOvers[ours].medians(), c.duel.medians()).String(),
			fmt.Sprintf("%.0f", median(c.rates[stock])), fmt.Sprintf("%.0f", median(c.rates[ours])), c.overStock().String(),
		})
	}
	table(t, rows)
}

// spread is the median and the 99th percentile.
func spread(s series) string {
	if len(slices.Concat(s...)) == 0 {
		return "–"
	}
	return short(s.quantile(0.5)) + " / " + short(s.quantile(0.99))
}

func short(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%d µs", d.Microseconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// table writes rows as a Markdown table whose columns line up. The first row is the head.
func table(t *strings.Builder, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for n, row := range rows {
		for i, cell := range row {
			fmt.Fprintf(t, "| %-*s ", widths[i], cell)
		}
		t.WriteString("|\n")
		if n == 0 {
			for _, w := range widths {
				t.WriteString("|" + strings.Repeat("-", w+2))
			}
			t.WriteString("|\n")
		}
	}
}
