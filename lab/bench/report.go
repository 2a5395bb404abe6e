package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// A report has all results of a run.
type report struct {
	About    []string
	Settings []settingReport `json:",omitempty"`
	Crowds   []crowdRow      `json:",omitempty"`
	Distinct []distinctRow   `json:",omitempty"`
	Timed    []timedRow      `json:",omitempty"`
	Startup  []startupRow    `json:",omitempty"`
	Crashes  []crashRow      `json:",omitempty"`
	Expected []expectation   `json:",omitempty"`
}

// settingReport has the results of one setting.
type settingReport struct {
	Name     string
	Alone    []uncontendedRow
	Contests []contestRow `json:",omitempty"`
}

// uncontendedRow has the figures of one contender without competition and in hand-overs to a single
// waiter. The ratios are the subject's figure divided by this contender's.
type uncontendedRow struct {
	Contender                string
	Lock, Unlock, Pair       summary
	HandOver                 summary
	LockAfterPause           summary
	StilePair, StileHandOver *ratio  `json:",omitempty"`
	Commands                 float64 `json:",omitempty"` // of the server, for each pair
	GivenUp                  int
}

// contestRow has the figures of one contender in a contest.
type contestRow struct {
	contest
	Writes        float64 `json:",omitempty"` // unrelated writes per second
	Contender     string
	HandOver      summary
	PerSecond     float64
	StileHandOver *ratio  `json:",omitempty"`
	StileRate     *ratio  `json:",omitempty"`
	Most, Least   int     // acquisitions of the client with most and of the one with fewest, in the most unequal round
	Commands      float64 `json:",omitempty"` // commands of the server per acquisition
	GivenUp       int
	Violations    int // times a client acquired the lock while another client held it
}

// report returns the measurements of b.
func (b *bench) report() settingReport {
	r := settingReport{Name: b.name}
	for _, c := range b.contenders {
		a := b.uncontended[c.name]
		if a == nil {
			continue
		}
		row := uncontendedRow{
			Contender: c.name, Lock: a.locks.summary(), Unlock: a.unlocks.summary(), Pair: a.pairs.summary(),
			HandOver: a.handOvers.summary(), LockAfterPause: a.locksAfterPause.summary(), Commands: median(a.commands), GivenUp: a.givenUp,
		}
		if c.name != b.subject {
			row.StilePair, row.StileHandOver = b.pairRatio(c.name), b.handOverRatio(c.name)
		}
		r.Alone = append(r.Alone, row)
	}
	for _, k := range b.contests {
		for _, c := range b.contenders {
			t := b.contestResults[k][c.name]
			if t == nil {
				continue
			}
			row := contestRow{
				contest: k, Writes: median(b.noiseRates[k]), Contender: c.name, HandOver: t.handOvers.summary(),
				PerSecond: median(t.rates), Commands: median(t.commands), GivenUp: t.givenUp, Violations: t.violations,
			}
			row.Most, row.Least = t.shares()
			if c.name != b.subject {
				row.StileRate = b.rateRatio(k, c.name)
				row.StileHandOver = compare(b.contestResults[k][b.subject].handOvers.medians(), t.handOvers.medians())
			}
			r.Contests = append(r.Contests, row)
		}
	}
	return r
}

func (b *bench) lockRatio(other string) *ratio {
	return compare(b.uncontended[b.subject].locks.medians(), b.uncontended[other].locks.medians())
}

func (b *bench) pairRatio(other string) *ratio { return b.pairRatioOf(b.subject, other) }

func (b *bench) pairRatioOf(one, other string) *ratio {
	return compare(b.uncontended[one].pairs.medians(), b.uncontended[other].pairs.medians())
}

func (b *bench) handOverRatio(other string) *ratio {
	return compare(b.uncontended[b.subject].handOvers.medians(), b.uncontended[other].handOvers.medians())
}

func (b *bench) rateRatio(k contest, other string) *ratio {
	return compare(b.contestResults[k][b.subject].rates, b.contestResults[k][other].rates)
}

// shares returns the most and the fewest acquisitions of one client in the most unequal round.
func (t *contestResult) shares() (maxAcquired, minAcquired int) {
	worst := 0
	for i := range t.maxAcquired {
		if t.maxAcquired[i]*max(t.minAcquired[worst], 1) > t.maxAcquired[worst]*max(t.minAcquired[i], 1) {
			worst = i
		}
	}
	return t.maxAcquired[worst], t.minAcquired[worst]
}

func (r *report) violations() (n int) {
	for _, s := range r.Settings {
		for _, c := range s.Contests {
			n += c.Violations
		}
	}
	for _, c := range r.Crowds {
		n += c.Violations
	}
	return n
}

// markdown returns the report as Markdown that is readable without rendering.
func (r *report) markdown() string {
	var t strings.Builder
	for _, line := range r.About {
		fmt.Fprintf(&t, "* %s\n", line)
	}
	if len(r.Startup) > 0 {
		t.WriteString("\n")
		startupTable(&t, r.Startup)
		return t.String()
	}
	if len(r.Crashes) > 0 {
		t.WriteString("\n")
		crashTable(&t, r.Crashes)
		t.WriteString("\nExpected:\n\n")
		for _, e := range r.Expected {
			fmt.Fprintf(&t, "* %v\n", e)
		}
		return t.String()
	}
	t.WriteString("\nRatios are medians of the ratios within each round, with the lowest and the highest; times are p50 / p99 " +
		"of all rounds together.\n")
	contests := len(r.Crowds) > 0
	for _, s := range r.Settings {
		s.markdown(&t)
		contests = contests || len(s.Contests) > 0
	}
	crowdTable(&t, r.Crowds)
	distinctTable(&t, r.Distinct)
	timedTable(&t, r.Timed)
	t.WriteString("\nHand-over: from just before one client releases until Lock returns in the next, which was already in Lock.\n\nExpected:\n\n")
	for _, e := range r.Expected {
		fmt.Fprintf(&t, "* %v\n", e)
	}
	if contests {
		fmt.Fprintf(&t, "* two clients held one lock at once: %s\n", r.violationSummary())
	}
	return t.String()
}

func (r *report) violationSummary() string {
	var found []string
	for _, s := range r.Settings {
		for _, c := range s.Contests {
			if c.Violations > 0 {
				found = append(found, fmt.Sprintf("**%s, %s, %v: %d times**", c.Contender, s.Name, c.contest, c.Violations))
			}
		}
	}
	for _, c := range r.Crowds {
		if c.Violations > 0 {
			found = append(found, fmt.Sprintf("**%s, %s, %v: %d times**", c.Contender, c.Store, c.Crowd, c.Violations))
		}
	}
	if len(found) == 0 {
		return "never"
	}
	return strings.Join(found, ", ")
}

func (s settingReport) markdown(t *strings.Builder) {
	t.WriteString("\n")
	rows := [][]string{{
		s.Name, "Lock", "Unlock", "pair", "Stile's pair / this one's", "hand-over", "Stile's hand-over / this one's", "Lock after a pause",
		"commands per pair", "given up",
	}}
	for _, a := range s.Alone {
		rows = append(rows, []string{
			a.Contender, a.Lock.String(), a.Unlock.String(), a.Pair.String(), a.StilePair.String(), a.HandOver.String(),
			a.StileHandOver.String(), a.LockAfterPause.String(), formatCount(a.Commands), fmt.Sprint(a.GivenUp),
		})
	}
	table(t, rows)
	if len(s.Contests) == 0 {
		return
	}
	t.WriteString("\n")
	rows = [][]string{{
		s.Name + ": clients, hold", "unrelated writes/s", "", "acq/s", "Stile's / this one's", "hand-over", "Stile's / this one's",
		"most / least of one client", "commands per acquisition", "given up",
	}}
	for _, c := range s.Contests {
		rows = append(rows, []string{
			fmt.Sprintf("%d, %v", c.Clients, c.Hold), fmt.Sprintf("%.0f", c.Writes), c.Contender, fmt.Sprintf("%.0f", c.PerSecond),
			c.StileRate.String(), c.HandOver.String(), c.StileHandOver.String(), fmt.Sprintf("%d / %d", c.Most, c.Least), formatCount(c.Commands),
			fmt.Sprint(c.GivenUp),
		})
	}
	table(t, rows)
}

// formatCount returns a count with one decimal, and a dash if nothing was counted.
func formatCount(n float64) string {
	if n == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f", n)
}

// table writes rows as a Markdown table with aligned columns. The first row is the header.
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

// about describes when, where and how the run was made.
func about(began time.Time, c config) []string {
	command := "bench -store " + c.store
	if c.contest != "" {
		command += " -contest " + c.contest
	}
	return []string{
		"Date: " + began.UTC().Format("2006-01-02 15:04 UTC"),
		"Machine: " + machine(),
		fmt.Sprintf("`%s`: rounds: %d, slices of %v, %v in all",
			command, c.rounds, c.slice, time.Since(began).Round(time.Second)),
	}
}

// versions returns the Go version and the versions of the named modules that this program was built
// with.
func versions(paths ...string) string {
	all := []string{runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return all[0]
	}
	for _, m := range info.Deps {
		if slices.Contains(paths, m.Path) {
			all = append(all, m.Path+" "+m.Version)
		}
	}
	return strings.Join(all, ", ")
}

// machine describes the machine. It leaves out what it cannot find out.
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
	parts = append(parts, fmt.Sprintf("temporary files on %s", filesystem(os.TempDir())))
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		parts = append(parts, "load at the end "+strings.Join(strings.Fields(string(load))[:3], " "))
	}
	return strings.Join(parts, ", ")
}

// filesystem returns the type of the file system that contains dir. It matters because syncing
// costs nothing on tmpfs.
func filesystem(dir string) string {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "an unknown file system"
	}
	point, kind := "", "an unknown file system"
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		inside := len(f) > 2 && (f[1] == "/" || dir == f[1] || strings.HasPrefix(dir, f[1]+"/"))
		if inside && len(f[1]) >= len(point) {
			point, kind = f[1], f[2]
		}
	}
	return kind
}

// field returns the value of name in a file of lines "name: value", or "" if there is none.
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
