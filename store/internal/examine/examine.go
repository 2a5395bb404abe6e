// Package examine has what the stores' examinations of their servers share: see [store.Examiner]. It
// only judges what a store has read or measured.
package examine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stilelock/stile/store"
)

// Findings collects findings. The zero value is empty. It is not safe for concurrent use.
type Findings struct{ all []store.Finding }

// Add adds a finding made at a server; an empty server means the whole store. If the same was found at
// another server before, only the server is added.
func (f *Findings) Add(server string, finding store.Finding) {
	for i, have := range f.all {
		same := have.ID == finding.ID && have.Severity == finding.Severity && have.What == finding.What && have.Advice == finding.Advice
		if same {
			if server != "" && !slices.Contains(have.Servers, server) {
				f.all[i].Servers = append(have.Servers, server)
			}
			return
		}
	}
	if server != "" {
		finding.Servers = []string{server}
	}
	f.all = append(f.all, finding)
}

// All returns the findings in the order in which they were added.
func (f *Findings) All() []store.Finding { return f.all }

// Fine returns a finding that is fine.
func Fine(id, format string, args ...any) store.Finding {
	return store.Finding{ID: id, Severity: store.Fine, What: fmt.Sprintf(format, args...)}
}

// Attention returns a finding that needs attention, without the advice.
func Attention(id, format string, args ...any) store.Finding {
	return store.Finding{ID: id, Severity: store.Attention, What: fmt.Sprintf(format, args...)}
}

// Risk returns a finding that puts a promise at risk, without the advice.
func Risk(id, promise, format string, args ...any) store.Finding {
	return store.Finding{ID: id, Severity: store.Risk, Promise: promise, What: fmt.Sprintf(format, args...)}
}

// RoundTrip judges how long a server takes to answer: the median of some requests. Above a tenth of the
// TTL renewals have little time to be repeated; above three tenths each is overtaken by the next.
func RoundTrip(id string, took []time.Duration, ttl time.Duration) store.Finding {
	took = slices.Sorted(slices.Values(took))
	median := took[len(took)/2]
	if median <= ttl/10 {
		limit := ttl / 10 // or a lower one, but the same for servers that are about as fast
		for limit > time.Millisecond && median <= limit/10 {
			limit /= 10
		}
		return Fine(id, "a request usually takes at most %v; a tenth of the TTL of %v is enough", rounded(limit), ttl)
	}
	f := Attention(id, "a request takes %v, more than a tenth of the TTL of %v", rounded(median), ttl)
	if median > 3*ttl/10 {
		f.What += ", and longer than the time between two renewals: locks are lost although nothing has failed"
	}
	f.Advice = "use a TTL of " + (10 * median).Round(time.Second).String() + " or more, or find out what makes the server or the network slow"
	return f
}

// rounded rounds a duration to two or three digits.
func rounded(d time.Duration) time.Duration {
	unit := time.Microsecond
	for d >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit)
}

// A Reading is what a server's clock showed, and when that was by the local monotonic clock: between
// Sent and Received.
type Reading struct {
	Sent, Received time.Time
	Server         time.Time
}

// ClockRate compares the rates of a server's clock and the local one by two readings. Holders stop at
// nine tenths of the TTL by their own clock, so a promise is at risk if the server's runs a tenth faster.
// A clock that was set between the readings looks like one with another rate, and has the same effect.
func ClockRate(id string, first, last Reading) store.Finding {
	local := last.Received.Sub(first.Received)
	server := last.Server.Sub(first.Server)
	// The server read its clock at an unknown moment between sending and receiving.
	doubt := first.Received.Sub(first.Sent) + last.Received.Sub(last.Sent)
	gain := server - local
	const advice = "let a service such as chrony correct the clocks of servers and clients slowly, in no steps; " +
		"check the clock source of virtual machines"
	switch share := float64(gain.Abs()-doubt) / float64(local); {
	case share >= 0.1 && gain > 0:
		f := Risk(id, "P1", "the server's clock runs too fast, or was set forward: it gained %v in %v on this machine's, so locks "+
			"end before their holders stop", rounded(gain), rounded(local))
		f.Advice = advice
		return f
	case share >= 0.01:
		gained := "gained"
		if gain < 0 {
			gained = "lost"
		}
		f := Attention(id, "the server's clock and this machine's run at different rates, or one was set: it %s %v in %v",
			gained, rounded(gain.Abs()), rounded(local))
		f.Advice = advice
		return f
	case doubt > local/10:
		f := Attention(id, "the rate of the server's clock could not be measured, because its answers take up to %v", rounded(doubt))
		f.Advice = "run stile doctor again when the server and the network are less busy"
		return f
	}
	percent := math.Ceil(100 * float64(gain.Abs()+doubt) / float64(local))
	return Fine(id, "the server's clock runs as fast as this machine's, to within %v %%", max(1, percent))
}

// Wait waits for d, or until ctx ends; then it returns the error of ctx.
func Wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// A Version is the numeric part of a server's version.
type Version [3]int

// ParseVersion parses the first three numbers of a version. What follows them is ignored.
func ParseVersion(text string) (v Version, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(text, "v"), ".", 3)
	if len(parts) < 2 {
		return v, false
	}
	for i, part := range parts {
		digits := strings.TrimRight(part[:len(part)-len(strings.TrimLeft(part, "0123456789"))], " ")
		n, err := strconv.Atoi(digits)
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

// Before reports whether v is older than other.
func (v Version) Before(other Version) bool { return slices.Compare(v[:], other[:]) < 0 }

// String returns the version as three numbers.
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

// A Bug is a known bug of a server.
type Bug struct {
	// Fixed has the version that fixes the bug in each release line, in ascending order. A line that is
	// not listed has the bug if it is older than the last version listed.
	Fixed []Version
	// Promise is the promise at risk; empty if there is none.
	Promise string
	// What says what goes wrong, and Source where that is documented.
	What, Source string
}

// Affects reports whether a version has the bug.
func (b Bug) Affects(v Version) bool {
	for _, fixed := range b.Fixed {
		if fixed[0] == v[0] && fixed[1] == v[1] {
			return v.Before(fixed)
		}
	}
	return v.Before(b.Fixed[len(b.Fixed)-1])
}

// KnownBugs judges a server's version: it must not be older than oldest, and may have bugs. There is one
// finding, because one upgrade cures all.
func KnownBugs(id, program, version string, oldest Version, bugs []Bug) store.Finding {
	v, ok := ParseVersion(version)
	if !ok {
		f := Attention(id, "the version of the %s server is unknown (%q), so its bugs are too", program, version)
		f.Advice = fmt.Sprintf("make sure that it is %v or newer", oldest)
		return f
	}
	f := store.Finding{ID: id}
	var texts []string
	upgrade := oldest
	if v.Before(oldest) {
		texts = append(texts, fmt.Sprintf("it is older than %v, the oldest that Stile supports", oldest))
		f.Severity = store.Risk
	}
	for _, b := range bugs {
		if !b.Affects(v) {
			continue
		}
		texts = append(texts, fmt.Sprintf("%s (%s)", b.What, b.Source))
		upgrade = later(upgrade, b.cure(v))
		f.Severity = max(f.Severity, store.Attention)
		if b.Promise != "" {
			f.Severity, f.Promise = store.Risk, cmp.Or(f.Promise, b.Promise)
		}
	}
	if f.Severity == store.Fine {
		return Fine(id, "%s %v has no known bug that concerns locks", program, v)
	}
	f.What = fmt.Sprintf("%s %v: %s", program, v, strings.Join(texts, "; "))
	f.Advice = fmt.Sprintf("upgrade to %v or newer; a distribution may have repaired it without changing the version", upgrade)
	return f
}

// cure returns the oldest version that fixes the bug and is not older than v.
func (b Bug) cure(v Version) Version {
	for _, fixed := range b.Fixed {
		if v.Before(fixed) {
			return fixed
		}
	}
	return v
}

func later(a, b Version) Version {
	if a.Before(b) {
		return b
	}
	return a
}
