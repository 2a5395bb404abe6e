//go:build linux

package nemesis

import (
	"slices"
	"strings"
	"testing"

	"github.com/stilelock/stile/lab/torture/site"
)

func TestFaultsOfEachKind(t *testing.T) {
	everywhere := []string{
		"holder-pause", "holder-kill", "holder-cut", "holder-deaf", "holder-late", "cpu-starve",
		"server-kill", "server-pause", "server-isolate", "slow-net", "reset", "evict",
	}
	leaders := []string{
		"leader-kill", "leader-pause", "leader-isolate", "leader-mute", "leader-deaf", "follower-isolate",
	}
	disks := []string{"server-slow-disk", "server-full-disk"}
	redis := []string{"restart-empty", "clock-jump"}
	compact := []string{"compact"}
	want := map[string][]string{
		"etcd":     slices.Concat(everywhere, disks, compact),
		"etcd3":    slices.Concat(everywhere, leaders, disks, compact),
		"redis":    slices.Concat(everywhere, redis),
		"redlock3": slices.Concat(everywhere, redis),
		"redlock5": slices.Concat(everywhere, redis),
		"zk":       slices.Concat(everywhere, disks),
		"zk3":      slices.Concat(everywhere, leaders, disks),
	}
	for _, kind := range site.Kinds() {
		var got []string
		for _, f := range All() {
			f.programs = nil // whether they are installed is another question
			if f.Possible(kind) == nil {
				got = append(got, f.Name)
			}
		}
		slices.Sort(got)
		slices.Sort(want[kind])
		if !slices.Equal(got, want[kind]) {
			t.Errorf("on %s there are %v, want %v", kind, got, want[kind])
		}
	}
}

func TestEveryFaultSaysWhatItDoes(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range All() {
		if f.Name == "" || seen[f.Name] || f.Summary == "" || strings.ContainsAny(f.Summary, "\n") {
			t.Errorf("%q: %q is not a name of its own with a line about it", f.Name, f.Summary)
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
			t.Errorf("%q on %s is %v, %v, want %v", tc.list, tc.kind, names(faults), err, tc.want)
		}
	}
	all, err := Parse("all", "etcd3")
	if err != nil || !slices.Contains(names(all), "leader-pause") || slices.Contains(names(all), "clock-jump") {
		t.Errorf("all on etcd3 is %v, %v", names(all), err)
	}
}

func TestAListThatCannotBeSaysWhatCan(t *testing.T) {
	for _, tc := range []struct{ list, kind, says string }{
		{"holder-pausing", "etcd", `no fault "holder-pausing"`},
		{"", "etcd", `no fault ""`},
		{"holder-pause,", "etcd", `no fault ""`},
		{"holder-pause,leader-kill", "etcd", "leader-kill is not possible on etcd: no server leads others there"},
		{"clock-jump", "zk3", "it is about Redis"},
		{"all,holder-pause", "etcd", `no fault "all"`},
	} {
		faults, err := Parse(tc.list, tc.kind)
		switch {
		case err == nil:
			t.Errorf("%q on %s is %v, want an error", tc.list, tc.kind, names(faults))
		case !strings.Contains(err.Error(), tc.says), !strings.Contains(err.Error(), "server-kill"):
			t.Errorf("%q on %s: %v: it should say %q, and name what there is", tc.list, tc.kind, err, tc.says)
		}
	}
}

func TestAFaultWithoutItsProgramIsNotPossible(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := Parse("server-slow-disk", "etcd"); err == nil || !strings.Contains(err.Error(), "strace is not installed") {
		t.Errorf("without strace: %v", err)
	}
	all, err := Parse("all", "redis")
	if err != nil || slices.Contains(names(all), "clock-jump") {
		t.Errorf("without a compiler all is %v, %v", names(all), err)
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
			t.Errorf("%s needs %+v, want %+v", tc.list, got, tc.want)
		}
	}
}
