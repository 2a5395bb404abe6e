//go:build linux

package nemesis

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/lab/torture/site"
)

func TestFault_possible(t *testing.T) {
	onAllKinds := []string{
		"holder-pause", "holder-kill", "holder-cut", "holder-deaf", "holder-late", "cpu-starve",
		"server-kill", "server-pause", "server-isolate", "slow-net", "reset", "evict",
	}
	withLeader := []string{
		"leader-kill", "leader-pause", "leader-isolate", "leader-mute", "leader-deaf", "follower-isolate",
	}
	withDisks := []string{"server-slow-disk", "server-full-disk"}
	redis := []string{"restart-empty", "clock-jump"}
	compact := []string{"compact"}
	want := map[string][]string{
		"etcd":     slices.Concat(onAllKinds, withDisks, compact),
		"etcd3":    slices.Concat(onAllKinds, withLeader, withDisks, compact),
		"redis":    slices.Concat(onAllKinds, redis),
		"redlock3": slices.Concat(onAllKinds, redis),
		"redlock5": slices.Concat(onAllKinds, redis),
		"zk":       slices.Concat(onAllKinds, withDisks),
		"zk3":      slices.Concat(onAllKinds, withLeader, withDisks),
	}
	for _, kind := range site.Kinds() {
		var got []string
		for _, f := range All() {
			f.programs = nil // ignore which programs are installed
			if f.Possible(kind) == nil {
				got = append(got, f.Name)
			}
		}
		slices.Sort(got)
		slices.Sort(want[kind])
		if !slices.Equal(got, want[kind]) {
			t.Errorf("on %s: got faults %v, want %v", kind, got, want[kind])
		}
	}
}

func TestAll_summaries(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range All() {
		if f.Name == "" || seen[f.Name] || f.Summary == "" || strings.ContainsAny(f.Summary, "\n") {
			t.Errorf("got name %q, summary %q, want a unique name and one line", f.Name, f.Summary)
		}
		seen[f.Name] = true
	}
}

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		list, kind string
		want       []string
	}{
		{"none", "etcd", nil},
		{"holder-pause", "redis", []string{"holder-pause"}},
		{"leader-kill,holder-pause", "zk3", []string{"leader-kill", "holder-pause"}},
		{" holder-kill , evict ,holder-kill", "etcd", []string{"holder-kill", "evict"}},
	} {
		faults, err := Parse(tc.list, tc.kind)
		if err != nil || !slices.Equal(names(faults), tc.want) {
			t.Errorf("%q on %s: got %v, %v, want %v", tc.list, tc.kind, names(faults), err, tc.want)
		}
	}
	all, err := Parse("all", "etcd3")
	if err != nil || !slices.Contains(names(all), "leader-pause") || slices.Contains(names(all), "clock-jump") {
		t.Errorf("all on etcd3: got %v, %v", names(all), err)
	}
}

func TestParse_invalid(t *testing.T) {
	for _, tc := range []struct{ list, kind, want string }{
		{"holder-pausing", "etcd", `unknown fault "holder-pausing"`},
		{"", "etcd", `unknown fault ""`},
		{"holder-pause,", "etcd", `unknown fault ""`},
		{"holder-pause,leader-kill", "etcd", "leader-kill is not possible on etcd: its servers elect no leader"},
		{"clock-jump", "zk3", "it needs Redis"},
		{"all,holder-pause", "etcd", `unknown fault "all"`},
	} {
		faults, err := Parse(tc.list, tc.kind)
		switch {
		case err == nil:
			t.Errorf("%q on %s: got %v, want an error", tc.list, tc.kind, names(faults))
		case !strings.Contains(err.Error(), tc.want), !strings.Contains(err.Error(), "server-kill"):
			t.Errorf("%q on %s: got error %v, want %q and the possible faults", tc.list, tc.kind, err, tc.want)
		}
	}
}

func TestParse_missingProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := Parse("server-slow-disk", "etcd"); err == nil || !strings.Contains(err.Error(), "strace is not installed") {
		t.Errorf("without strace: got %v", err)
	}
	all, err := Parse("all", "redis")
	if err != nil || slices.Contains(names(all), "clock-jump") {
		t.Errorf("all without a compiler: got %v, %v", names(all), err)
	}
}

func TestOptions(t *testing.T) {
	for _, tc := range []struct {
		list, kind string
		want       site.Options
	}{
		{"holder-pause,evict", "redis", site.Options{}},
		{"holder-pause,reset", "redis", site.Options{Proxies: true}},
		{"clock-jump,evict", "redis", site.Options{Clocks: true}},
		{"clock-jump,slow-net", "redis", site.Options{Clocks: true, Proxies: true}},
	} {
		faults, err := Parse(tc.list, tc.kind)
		if err != nil {
			t.Fatal(err)
		}
		if got := Options(faults); got != tc.want {
			t.Errorf("%s: got options %+v, want %+v", tc.list, got, tc.want)
		}
	}
}

// A severe pause is longer than the TTL. The others are sometimes shorter.
func TestSetDuration_severe(t *testing.T) {
	shorter := 0
	for seed := range uint64(100) {
		for _, severe := range []bool{false, true} {
			st := &striker{world: &World{TTL: time.Second}, random: rand.New(rand.NewPCG(seed, 0)), severe: severe}
			st.setDuration()
			switch {
			case st.Duration > time.Second:
			case severe:
				t.Fatalf("seed %d: got a severe duration of %v, want more than the TTL", seed, st.Duration)
			default:
				shorter++
			}
		}
	}
	if shorter == 0 {
		t.Error("no duration was shorter than the TTL")
	}
}
