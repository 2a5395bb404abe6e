package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// duration is the value of a flag that takes a duration as flock(1) and sleep(1) do, in seconds
// with or without a fraction, or as Go does: 5, 0.5, 5s, 1m30s. It is not negative.
type duration time.Duration

// Set implements pflag.Value.
func (d *duration) Set(s string) error {
	parsed, err := time.ParseDuration(s)
	if seconds, e := strconv.ParseFloat(s, 64); e == nil {
		parsed, err = time.Duration(seconds*float64(time.Second)), nil
		if math.IsNaN(seconds) || math.Abs(seconds) > math.MaxInt64/float64(time.Second)/2 {
			return fmt.Errorf("too large")
		}
		if seconds > 0 {
			parsed = max(parsed, 1) // zero has another meaning
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("must be seconds (5, 0.5) or a duration such as 500ms, 1m30s")
	case parsed < 0:
		return fmt.Errorf("must not be negative")
	}
	*d = duration(parsed)
	return nil
}

// String implements pflag.Value.
func (d *duration) String() string { return time.Duration(*d).String() }

// Type implements pflag.Value.
func (d *duration) Type() string { return "duration" }

// inSeconds formats d as a number of seconds.
func inSeconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

// brief formats a duration without zero parts: 5m, not 5m0s.
func brief(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
