// Package report shows verdicts: as a table, and as a page with a timeline that zooms.
package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stilelock/stile/lab/torture/verdict"
)

// Table writes a Markdown table with one row for each kind of fault of each verdict, and one for
// the whole verdict. It is aligned, so that it can be read without rendering. A figure that the
// target's interface does not offer is "n/a", never 0. A brief table has only the rows for whole
// verdicts. For zero damage see [FormatCount].
func Table(out io.Writer, brief bool, verdicts ...*verdict.Verdict) error {
	table := [][]string{headings}
	for _, v := range verdicts {
		table = append(table, rows(v, brief)...)
	}
	return markdown(out, table)
}

var headings = []string{
	"target", "workload", "fault", "struck", "on holder", "on leader", "acquired", "hand-overs", "overlaps",
	"stale, unfenced", "stale, fenced", "refused", "lost updates", "longest gap", "verdict",
}

// FaultTable writes a table with a row for each kind of fault and a column for each verdict: how
// often the fault struck, in parentheses how often it struck a holder or a leader; the longest gap;
// and the overlaps, if any.
func FaultTable(out io.Writer, verdicts ...*verdict.Verdict) error {
	faults := map[string]bool{}
	heads := []string{"fault"}
	for _, v := range verdicts {
		heads = append(heads, v.Run.Target)
		for _, f := range v.Faults {
			faults[f.Name] = true
		}
	}
	table := [][]string{heads}
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		line := []string{name}
		for _, v := range verdicts {
			line = append(line, faultCell(v, name))
		}
		table = append(table, line)
	}
	return markdown(out, table)
}

func faultCell(v *verdict.Verdict, name string) string {
	for _, f := range v.Faults {
		if f.Name != name {
			continue
		}
		cell := fmt.Sprintf("%d (%d), %v", f.Strikes, f.OnHolder+f.OnLeader, f.LongestGap.Round(10*time.Millisecond))
		if f.Overlaps > 0 {
			cell += fmt.Sprintf(", **%d**", f.Overlaps)
		}
		return cell
	}
	return "–"
}

// rows returns the rows of one verdict: one for each kind of fault, unless brief, and one for the
// whole verdict.
func rows(v *verdict.Verdict, brief bool) [][]string {
	var table [][]string
	total := verdict.FaultFigures{
		Name: "all", Acquisitions: v.Figures.Acquisitions, HandOvers: v.Figures.HandOvers, Damage: v.Figures.Damage,
		LongestGap: v.Figures.LongestGap,
	}
	if v.Run.Faults == "none" {
		total.Name = v.Run.Faults
	}
	for _, f := range v.Faults {
		total.Strikes, total.OnHolder, total.OnLeader = total.Strikes+f.Strikes, total.OnHolder+f.OnHolder, total.OnLeader+f.OnLeader
		if !brief {
			table = append(table, row(v, f, ""))
		}
	}
	return append(table, row(v, total, Summary(v)))
}

func row(v *verdict.Verdict, f verdict.FaultFigures, summary string) []string {
	fenced := "n/a"
	if v.Run.Offers.Tokens {
		fenced = FormatCount(f.StaleAccepted, f.Strikes)
	}
	return []string{
		v.Run.Target, v.Run.Workload, f.Name, fmt.Sprint(f.Strikes), fmt.Sprint(f.OnHolder), fmt.Sprint(f.OnLeader),
		fmt.Sprint(f.Acquisitions), fmt.Sprint(f.HandOvers), FormatCount(f.Overlaps, f.Strikes), FormatCount(f.Stale, f.Strikes), fenced,
		fmt.Sprint(f.Refused), FormatCount(f.LostUpdates, f.Strikes), f.LongestGap.Round(10 * time.Millisecond).String(), summary,
	}
}

// FormatCount formats a count of damage. Beside a zero it shows the largest rate that this leaves
// possible in 95 of 100 cases: 3 divided by the number of strikes; without strikes it shows none.
func FormatCount(count, strikes int) string {
	if count > 0 || strikes == 0 {
		return fmt.Sprint(count)
	}
	return fmt.Sprintf("0 (< %.2g)", 3/float64(strikes))
}

// Summary returns the verdict in a few words: the broken rules, or "ok", and the number of conceded
// violations.
func Summary(v *verdict.Verdict) string {
	broken := v.Broken()
	var parts []string
	for _, rule := range slices.Sorted(maps.Keys(broken)) {
		parts = append(parts, fmt.Sprintf("%s ×%d", rule, broken[rule]))
	}
	if len(parts) == 0 {
		parts = []string{"ok"}
	}
	if n := v.Conceded(); n > 0 {
		parts = append(parts, fmt.Sprintf("%d conceded", n))
	}
	return strings.Join(parts, ", ")
}

func conceded(v verdict.Violation) string {
	if v.Conceded == "" {
		return ""
	}
	return " (conceded under " + v.Conceded + ")"
}

// markdown writes an aligned Markdown table.
func markdown(out io.Writer, rows [][]string) error {
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for n, r := range rows {
		for i, cell := range r {
			fmt.Fprintf(&b, "| %-*s ", widths[i], cell)
		}
		b.WriteString("|\n")
		if n > 0 {
			continue
		}
		for _, w := range widths {
			b.WriteString("|" + strings.Repeat("-", w+2))
		}
		b.WriteString("|\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// figures returns lines of text with the figures that are not in the table.
func figures(v *verdict.Verdict) []string {
	f := v.Figures
	lines := []string{fmt.Sprintf("%d workers, %d locks; calls: %d gave up, %d failed, %d with an unknown outcome; acquisitions per worker: %d to %d",
		f.Workers, f.Locks, f.GaveUp, f.Failed, f.Unknown, f.MinPerWorker, f.MaxPerWorker)}
	if f.Lost > 0 {
		lines = append(lines, fmt.Sprintf("%d holds lost, %d of them removed by the store while they were valid; holders notified %v (p50), %v (p99) after the observer saw it",
			f.Lost, f.RemovedEarly, f.NotifiedP50.Round(time.Millisecond), f.NotifiedP99.Round(time.Millisecond)))
	}
	if reached := reached(v); reached != "" {
		lines = append(lines, reached)
	}
	return lines
}

// reached returns a line that says how often the run reached what it promises, and the rest that it
// reached.
func reached(v *verdict.Verdict) string {
	var parts []string
	for _, r := range v.Reached {
		if r.Times > 0 || slices.Contains(v.Run.Promised, r.Name) {
			parts = append(parts, fmt.Sprintf("%s: %d", r.Name, r.Times))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "reached: " + strings.Join(parts, "; ")
}

// Text writes a verdict for the terminal: the table, the violations, at most five of each rule, and
// the other figures.
func Text(out io.Writer, v *verdict.Verdict) error {
	if err := Table(out, false, v); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", strings.Join(figures(v), "\n"))
	shown := map[string]int{}
	for _, violation := range v.Violations {
		if shown[violation.Rule]++; shown[violation.Rule] > 5 {
			continue
		}
		fmt.Fprintf(&b, "%10.3f s  %s: %s %s%s\n", time.Duration(violation.At-v.Begin).Seconds(), violation.Rule, violation.Lock,
			violation.What, conceded(violation))
	}
	for rule, n := range shown {
		if n > 5 {
			fmt.Fprintf(&b, "              and %d more of %q\n", n-5, rule)
		}
	}
	if len(v.Violations) == 0 {
		b.WriteString("no violations\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}
