package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

func (b *bench) report() string {
	var t strings.Builder
	fmt.Fprintf(&t, "* Date: %s\n", time.Now().UTC().Format("2006-01-02 15:04 UTC"))
	fmt.Fprintf(&t, "* %s, redis-server %s, rueidis and rueidislock 1.0.79, redsync 4.18.1, bsm/redislock 0.10.0 (both on go-redis 9.23)\n",
		runtime.Version(), b.version)
	fmt.Fprintf(&t, "* Machine: %s/%s, %d CPUs, load at the end %s\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), load())
	fmt.Fprintf(&t, "* `redisbench`: %d rounds, slices of %v, %v in all; one redis-server, all clients in one other process\n",
		b.rounds, b.slice, time.Since(b.began).Round(time.Second))
	for _, l := range b.links {
		fmt.Fprintf(&t, "\n| %s | uncontended pair p50 | hand-over p50 / p99 | Stile's hand-over / this one's | 16 clients: acq/s | "+
			"most / least per client | commands per acquisition | given up |\n|---|---|---|---|---|---|---|---|\n", l.name)
		for _, v := range variants {
			rs := b.results[l.name][v.name]
			fmt.Fprintf(&t, "| %s | %s | %s / %s | %s | %.0f | %s | %.1f | %d |\n", v.name,
				show(quantile(all(rs, pairs), 0.5)), show(quantile(all(rs, handovers), 0.5)), show(quantile(all(rs, handovers), 0.99)),
				b.ratio(l, v), median(each(rs, rate)), shares(rs), median(each(rs, commands)), stuckIn(rs))
		}
	}
	t.WriteString("\nExpected:\n\n")
	for _, e := range b.expectations() {
		fmt.Fprintf(&t, "* %s\n", e)
	}
	return t.String()
}

func pairs(r result) []time.Duration     { return r.pair }
func handovers(r result) []time.Duration { return r.handover }
func rate(r result) float64              { return float64(r.acquired) / r.took.Seconds() }

func commands(r result) float64 {
	if r.acquired == 0 {
		return 0
	}
	return float64(r.commands) / float64(r.acquired)
}

func all(rs []result, of func(result) []time.Duration) (ds []time.Duration) {
	for _, r := range rs {
		ds = append(ds, of(r)...)
	}
	return ds
}

func each(rs []result, of func(result) float64) (fs []float64) {
	for _, r := range rs {
		fs = append(fs, of(r))
	}
	return fs
}

func stuckIn(rs []result) (n int) {
	for _, r := range rs {
		n += r.stuck
	}
	return n
}

// shares is the worst of the rounds.
func shares(rs []result) string {
	worst := slices.MaxFunc(rs, func(a, b result) int { return a.most*max(b.least, 1) - b.most*max(a.least, 1) })
	return fmt.Sprintf("%d / %d", worst.most, worst.least)
}

// share is the same as a number.
func share(rs []result) (worst float64) {
	for _, r := range rs {
		worst = max(worst, float64(r.most)/float64(max(r.least, 1)))
	}
	return worst
}

// ratios returns Stile's hand-over divided by a variant's, round by round.
func (b *bench) ratios(l link, v string) (rs []float64) {
	mine, its := b.results[l.name][stileName], b.results[l.name][v]
	for i := range its {
		if m, o := quantile(mine[i].handover, 0.5), quantile(its[i].handover, 0.5); m > 0 && o > 0 {
			rs = append(rs, float64(m)/float64(o))
		}
	}
	return rs
}

func (b *bench) ratio(l link, v variant) string {
	rs := b.ratios(l, v.name)
	if v.name == stileName || len(rs) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", median(rs), slices.Min(rs), slices.Max(rs))
}

// expectations says which of them are reached.
func (b *bench) expectations() (lines []string) {
	say := func(what string, got, most float64) {
		verdict := "reached"
		if got > most {
			verdict = "**not reached**"
		}
		lines = append(lines, fmt.Sprintf("%s ≤ %.2f: %.2f: %s", what, most, got, verdict))
	}
	fast, slow := b.links[0], b.links[1]
	mine := quantile(all(b.results[slow.name][stileName], handovers), 0.5)
	say(slow.name+": Stile's hand-over in round trips", float64(mine)/float64(rtt), 1.3)
	for _, v := range variants {
		if strings.HasPrefix(v.name, "rueidislock") {
			say(slow.name+": Stile's hand-over / that of "+v.name, median(b.ratios(slow, v.name)), 0.6)
		}
	}
	worst := 0.0
	for _, v := range variants {
		if v.name != stileName {
			worst = max(worst, median(b.ratios(fast, v.name)))
		}
	}
	say(fast.name+": Stile's hand-over / that of the best of the others", worst, 1)
	for _, l := range b.links {
		say(l.name+": 16 clients on one lock, the most that one has / the least", share(b.results[l.name][stileName]), 1.3)
	}
	for l, byVariant := range b.results {
		for v, rs := range byVariant {
			for _, r := range rs {
				if r.violation > 0 {
					lines = append(lines, fmt.Sprintf("%s, %s: two in the lock at once, %d times", v, l, r.violation))
				}
			}
		}
	}
	if b.violations() == 0 {
		lines = append(lines, "two clients in one lock at once: never")
	}
	return lines
}

func quantile(ds []time.Duration, q float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(ds))
	return sorted[min(int(float64(len(sorted))*q), len(sorted)-1)]
}

func median(fs []float64) float64 {
	if len(fs) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(fs))
	return sorted[len(sorted)/2]
}

func show(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%d µs", d.Microseconds())
	}
	return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
}

func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		out, _ := exec.Command("uptime").Output()
		return strings.TrimSpace(string(out))
	}
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}
