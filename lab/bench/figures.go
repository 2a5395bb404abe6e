package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// series holds measurements by round.
type series [][]time.Duration

// A summary has the percentiles of a series over all rounds.
type summary struct {
	P50, P99 time.Duration
	Count    int
}

func (s series) summary() summary {
	all := slices.Concat(s...)
	return summary{quantile(all, 0.5), quantile(all, 0.99), len(all)}
}

func (s summary) String() string {
	if s.Count == 0 {
		return "–"
	}
	return formatDuration(s.P50) + " / " + formatDuration(s.P99)
}

func formatDuration(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%d µs", d.Microseconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[min(int(q*float64(len(d))), len(d)-1)]
}

// medians returns the median of each round, NaN for rounds without measurements.
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

// A ratio relates two figures, over the rounds in which both were measured. A nil ratio means that
// no round measured both.
type ratio struct{ Median, Lowest, Highest float64 }

// compare divides a by b round by round.
func compare(a, b []float64) *ratio {
	var r []float64
	for i := range min(len(a), len(b)) {
		if x := a[i] / b[i]; !math.IsNaN(x) && !math.IsInf(x, 0) {
			r = append(r, x)
		}
	}
	return spread(r)
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// spread returns the median of x with the lowest and the highest, or nil if x is empty.
func spread(x []float64) *ratio {
	if len(x) == 0 {
		return nil
	}
	return &ratio{median(x), slices.Min(x), slices.Max(x)}
}

// median returns the median, or NaN for a nil ratio. NaN sorts below all numbers.
func (r *ratio) median() float64 {
	if r == nil {
		return math.NaN()
	}
	return r.Median
}

func (r *ratio) String() string {
	if r == nil {
		return "–"
	}
	digits := 2
	if r.Median >= 10 {
		digits = 1
	}
	return fmt.Sprintf("%.*f (%.*f–%.*f)", digits, r.Median, digits, r.Lowest, digits, r.Highest)
}

// An expectation is a goal that the project has set for one of the figures.
type expectation struct {
	What   string
	Got    *ratio
	Limit  float64
	AtMost bool // the limit is an upper one; otherwise a lower one
}

// reached reports whether the median satisfies the limit. A figure that was not measured does not.
func (e expectation) reached() bool {
	switch {
	case e.Got == nil:
		return false
	case e.AtMost:
		return e.Got.Median <= e.Limit
	default:
		return e.Got.Median >= e.Limit
	}
}

func (e expectation) String() string {
	verdict, sign := "**not reached**", "≥"
	if e.reached() {
		verdict = "reached"
	}
	if e.AtMost {
		sign = "≤"
	}
	return fmt.Sprintf("%s %s %g: %v: %s", e.What, sign, e.Limit, e.Got, verdict)
}
