package verdict

import (
	"cmp"
	"slices"
)

// Sum adds up verdicts on runs of the same thing with different seeds: their violations, strikes, acquisitions and damage, and
// the longest of their gaps. It has the [history.Run] of the first.
func Sum(verdicts ...*Verdict) *Verdict {
	sum := &Verdict{Violations: []Violation{}}
	rows := map[string]*FaultFigures{}
	for i, v := range verdicts {
		if i == 0 {
			sum.Run = v.Run
		}
		sum.Violations = append(sum.Violations, v.Violations...)
		f := &sum.Figures
		f.Acquisitions += v.Figures.Acquisitions
		f.HandOvers += v.Figures.HandOvers
		f.LongestGap = max(f.LongestGap, v.Figures.LongestGap)
		f.add(v.Figures.Damage)
		for _, more := range v.Faults {
			row := rows[more.Name]
			if row == nil {
				row = &FaultFigures{Name: more.Name}
				rows[more.Name] = row
			}
			row.Strikes += more.Strikes
			row.OnHolder += more.OnHolder
			row.OnLeader += more.OnLeader
			row.Failures += more.Failures
			row.Acquisitions += more.Acquisitions
			row.HandOvers += more.HandOvers
			row.LongestGap = max(row.LongestGap, more.LongestGap)
			row.add(more.Damage)
		}
	}
	for _, row := range rows {
		sum.Faults = append(sum.Faults, *row)
	}
	slices.SortFunc(sum.Faults, func(a, b FaultFigures) int { return cmp.Compare(a.Name, b.Name) })
	return sum
}

func (d *Damage) add(more Damage) {
	d.Overlaps += more.Overlaps
	d.Stale += more.Stale
	d.LostUpdates += more.LostUpdates
	d.StaleAccepted += more.StaleAccepted
	d.Refused += more.Refused
}
