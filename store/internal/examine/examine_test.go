package examine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/examine"
)

func TestFindings_sameFindingOnce(t *testing.T) {
	var f examine.Findings
	f.Add("a", examine.Attention("x", "bad"))
	f.Add("b", examine.Attention("x", "bad"))
	f.Add("b", examine.Attention("x", "bad"))
	f.Add("b", examine.Attention("x", "worse"))
	f.Add("", examine.Fine("y", "good"))
	all := f.All()
	if len(all) != 3 || !slices.Equal(all[0].Servers, []string{"a", "b"}) || all[2].Servers != nil {
		t.Errorf("got %+v", all)
	}
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]examine.Version{
		"3.5.24": {3, 5, 24}, "v3.7.0-rc.1": {3, 7, 0}, "3.8.0-${mvngit}, built": {3, 8, 0}, "7.0": {7, 0, 0}, "255.255.255": {255, 255, 255},
	} {
		if got, ok := examine.ParseVersion(text); !ok || got != want {
			t.Errorf("%q: got %v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "3", "a.b.c", "3.x.1"} {
		if got, ok := examine.ParseVersion(text); ok {
			t.Errorf("%q: got %v", text, got)
		}
	}
}

func TestBug_affects(t *testing.T) {
	bug := examine.Bug{Fixed: []examine.Version{{6, 2, 20}, {7, 2, 11}, {7, 4, 6}}}
	for version, want := range map[string]bool{
		"6.2.19": true, "6.2.20": false, "6.0.99": true, "7.0.15": true, "7.2.10": true, "7.2.11": false, "7.4.5": true,
		"7.4.6": false, "7.6.0": false, "8.0.0": false,
	} {
		v, _ := examine.ParseVersion(version)
		if got := bug.Affects(v); got != want {
			t.Errorf("%s: got %v", version, got)
		}
	}
}

func TestKnownBugs(t *testing.T) {
	bugs := []examine.Bug{
		{Fixed: []examine.Version{{2, 1, 5}}, Promise: "P1", What: "it forgets", Source: "bug 1"},
		{Fixed: []examine.Version{{2, 2, 3}}, What: "it is slow", Source: "bug 2"},
	}
	for version, want := range map[string]struct {
		severity store.Severity
		has      []string
	}{
		"1.9.9": {store.Risk, []string{"older than 2.0.0", "bug 1", "bug 2"}},
		"2.1.4": {store.Risk, []string{"bug 1", "bug 2"}},
		"2.2.2": {store.Attention, []string{"it is slow (bug 2)"}},
		"2.2.3": {store.Fine, nil},
		"devel": {store.Attention, []string{"unknown"}},
	} {
		got := examine.KnownBugs("id", "it", version, examine.Version{2, 0, 0}, bugs)
		if got.Severity != want.severity || (got.Advice == "") != (want.severity == store.Fine) {
			t.Errorf("%s: got %+v", version, got)
		}
		for _, text := range want.has {
			if !strings.Contains(got.What, text) {
				t.Errorf("%s: got %q, want %q in it", version, got.What, text)
			}
		}
	}
	if got := examine.KnownBugs("id", "it", "2.1.4", examine.Version{}, bugs); !strings.Contains(got.Advice, "2.2.3") {
		t.Errorf("got the advice %q, want the version that has neither bug", got.Advice)
	}
}

func TestRoundTrip(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		took []time.Duration
		want store.Severity
	}{
		{[]time.Duration{ms, 2 * ms, 5000 * ms}, store.Fine}, // one slow answer is an accident
		{[]time.Duration{ms, 1500 * ms, 1600 * ms}, store.Fine},
		{[]time.Duration{1600 * ms}, store.Attention},
		{[]time.Duration{5000 * ms}, store.Attention},
	} {
		got := examine.RoundTrip("id", c.took, 15*time.Second)
		if got.Severity != c.want {
			t.Errorf("%v: got %+v", c.took, got)
		}
	}
}

// Servers that are about as fast have the same finding, so that it is shown once.
func TestRoundTrip_sameForSimilarServers(t *testing.T) {
	const ttl = 15 * time.Second
	for _, c := range []struct {
		took time.Duration
		want string
	}{
		{45 * time.Microsecond, "at most 150µs"},
		{60 * time.Microsecond, "at most 150µs"},
		{time.Nanosecond, "at most 150µs"},
		{time.Millisecond, "at most 1.5ms"},
		{16 * time.Millisecond, "at most 150ms"},
		{1500 * time.Millisecond, "at most 1.5s"},
	} {
		if got := examine.RoundTrip("id", []time.Duration{c.took}, ttl); !strings.Contains(got.What, "takes "+c.want+";") {
			t.Errorf("%v: got %q, want %q", c.took, got.What, c.want)
		}
	}
}

// What is said of the rates is as exact as the measurement.
func TestClockRate_saysHowExactItIs(t *testing.T) {
	begin := time.Now()
	for doubt, want := range map[time.Duration]string{0: "within 1 %", 15 * time.Millisecond: "within 2 %", 90 * time.Millisecond: "within 9 %"} {
		end := begin.Add(time.Second)
		got := examine.ClockRate("id", examine.Reading{Sent: begin, Received: begin, Server: begin},
			examine.Reading{Sent: end.Add(-doubt), Received: end, Server: end})
		if !strings.HasSuffix(got.What, want) {
			t.Errorf("%v: got %q, want %q", doubt, got.What, want)
		}
	}
}

// A promise is at risk if the server's clock runs a tenth faster. What the round trips leave in doubt
// does not count.
func TestClockRate(t *testing.T) {
	begin := time.Now()
	for _, c := range []struct {
		name               string
		server, local, rtt time.Duration
		want               store.Severity
	}{
		{"equal", time.Second, time.Second, 0, store.Fine},
		{"fast by an eighth", 1125 * time.Millisecond, time.Second, time.Millisecond, store.Risk},
		{"fast by a fiftieth", 1020 * time.Millisecond, time.Second, time.Millisecond, store.Attention},
		{"slow by half: leases only last longer", 500 * time.Millisecond, time.Second, time.Millisecond, store.Attention},
		{"set forward by an hour", time.Hour, time.Second, time.Millisecond, store.Risk},
		{"fast, but perhaps only the round trip was", 1125 * time.Millisecond, time.Second, 70 * time.Millisecond, store.Attention},
		{"slow network", time.Second, time.Second, 40 * time.Millisecond, store.Fine},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := examine.Reading{Sent: begin.Add(-c.rtt), Received: begin, Server: begin}
			end := begin.Add(c.local)
			last := examine.Reading{Sent: end.Add(-c.rtt), Received: end, Server: begin.Add(c.server)}
			if got := examine.ClockRate("id", first, last); got.Severity != c.want {
				t.Errorf("got %+v", got)
			}
		})
	}
}
