package verdict

import (
	"cmp"
	"slices"
)

// Sum adds up verdicts on runs of the same target with different seeds: their violations, strikes,
// acquisitions and damage. LongestGap is the largest of their gaps. Run is that of the first
// verdict.
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
		for _, r := range v.Reached {
			sum.addReach(r)
		}
		for _, other := range v.Faults {
			row := rows[other.Name]
			if row == nil {
				row = &FaultFigures{Name: other.Name}
				rows[other.Name] = row
			}
			row.Strikes += other.Strikes
			row.OnHolder += other.OnHolder
			row.OnLeader += other.OnLeader
			row.Failures += other.Failures
			row.Acquisitions += other.Acquisitions
			row.HandOvers += other.HandOvers
			row.LongestGap = max(row.LongestGap, other.LongestGap)
			row.add(other.Damage)
		}
	}
	for _, row := range rows {
		sum.Faults = append(sum.Faults, *row)
	}
	slices.SortFunc(sum.Faults, func(a, b FaultFigures) int { return cmp.Compare(a.Name, b.Name) })
	return sum
}

func (v *Verdict) addReach(r Reach) {
	i := slices.IndexFunc(v.Reached, func(other Reach) bool { return other.Name == r.Name })
	if i < 0 {
		v.Reached = append(v.Reached, r)
		return
	}
	v.Reached[i].Times += r.Times
}

func (d *Damage) add(other Damage) {
	d.Overlaps += other.Overlaps
	d.Stale += other.Stale
	d.LostUpdates += other.LostUpdates
	d.StaleAccepted += other.StaleAccepted
	d.Refused += other.Refused
}
