//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/trial"
	"github.com/stilelock/stile/lab/torture/verdict"
	"github.com/stilelock/stile/lab/torture/workload"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writeRun writes the files of a complete run to f.out.
func writeRun(t *testing.T, f *runFlags, hash string) {
	t.Helper()
	var file bytes.Buffer
	w := history.NewWriter(&file, history.Run{
		Target: f.target, Workload: f.workload, Faults: f.faults, Seed: f.seed, TTL: int64(f.ttl), For: int64(f.duration), Tested: hash,
	})
	w.Write(history.Event{At: 1, Started: &history.Started{Pid: 1}})
	must(t, w.Err())
	must(t, os.MkdirAll(f.out, 0o750))
	must(t, os.WriteFile(filepath.Join(f.out, trial.HistoryFile), file.Bytes(), 0o600))
	must(t, writeReports(&verdict.Verdict{}, f.out))
}

func TestMatrix_repeatsOnlyOtherRuns(t *testing.T) {
	newFlags := func() *runFlags {
		return &runFlags{
			target: "stile@etcd", workload: workload.Hot, faults: "all", duration: time.Minute, ttl: 2 * time.Second, seed: 7,
			out: filepath.Join(t.TempDir(), "run"),
		}
	}
	f := newFlags()
	if _, err := f.rejudge("abc"); err == nil {
		t.Error("rejudge succeeded without a run")
	}
	writeRun(t, f, "abc")
	v, err := f.rejudge("abc")
	must(t, err)
	if v.Run.Seed != 7 || v.Broken()[verdict.RuleTooLittle] == 0 {
		t.Errorf("got verdict %+v, want a new one", v)
	}
	if report, err := os.ReadFile(filepath.Join(f.out, reportJSON)); err != nil || !strings.Contains(string(report), verdict.RuleTooLittle) {
		t.Errorf("got report %s, %v, want a new one", report, err)
	}
	for name, change := range map[string]func(*runFlags) string{
		"other programs":   func(*runFlags) string { return "abd" },
		"another target":   func(f *runFlags) string { f.target = "stile@etcd3"; return "abc" },
		"another workload": func(f *runFlags) string { f.workload = workload.Long; return "abc" },
		"other faults":     func(f *runFlags) string { f.faults = "none"; return "abc" },
		"another seed":     func(f *runFlags) string { f.seed = 8; return "abc" },
		"another TTL":      func(f *runFlags) string { f.ttl = time.Second; return "abc" },
		"another duration": func(f *runFlags) string { f.duration = time.Second; return "abc" },
		"no verdict":       func(f *runFlags) string { must(t, os.Remove(filepath.Join(f.out, reportJSON))); return "abc" },
	} {
		f := newFlags()
		writeRun(t, f, "abc")
		if _, err := f.rejudge(change(f)); err == nil {
			t.Errorf("%s: rejudge succeeded", name)
		}
	}
}

func TestPrograms_hash(t *testing.T) {
	dir := t.TempDir()
	p := trial.ProgramsIn(dir)
	hash := func(worker, stile, load string) string {
		t.Helper()
		must(t, os.WriteFile(p.Worker, []byte(worker), 0o600))
		must(t, os.WriteFile(p.Stile, []byte(stile), 0o600))
		id, err := p.Hash(load)
		must(t, err)
		return id
	}
	one := hash("a", "b", workload.Hot)
	if hash("a", "b", workload.Hot) != one || hash("a", "c", workload.Hot) != one {
		t.Error("got another hash of the same programs, or after a change of a program that is not used")
	}
	if hash("x", "b", workload.Hot) == one || hash("a", "b", workload.Command) == hash("a", "c", workload.Command) {
		t.Error("got the same hash of other programs")
	}
}

func TestRows_valid(t *testing.T) {
	names := map[string]bool{}
	stile := map[string]bool{}
	for _, r := range rows() {
		target, err := trial.ParseTarget(r.target)
		must(t, err)
		if names[r.String()] {
			t.Errorf("got two rows %s", r)
		}
		names[r.String()], stile[r.target] = true, true
		faults := r.faults
		if faults == "" {
			faults = "all"
		}
		if _, err := (trial.Config{Target: target, Workload: r.workload, Faults: faults}).Check(); err != nil {
			t.Errorf("%s: %v", r, err)
		}
	}
	for _, target := range trial.Targets() {
		if target.Locker == "stile" && !stile[target.String()] {
			t.Errorf("no row has the target %s", target)
		}
	}
}

// The table contains the results so far: one line for each row, for any number of seeds, and the
// runs that broke a rule.
func TestMatrix_incompleteTable(t *testing.T) {
	m := &matrix{seeds: []uint{7, 8, 9}, duration: time.Minute, rows: rows(), verdicts: map[string][]*verdict.Verdict{}}
	for _, seed := range []uint64{7, 8} {
		m.verdicts["stile@etcd-hot"] = append(m.verdicts["stile@etcd-hot"], &verdict.Verdict{
			Run: history.Run{Target: "stile@etcd", Workload: workload.Hot, Seed: seed}, Figures: verdict.Figures{Acquisitions: 100},
		})
	}
	if m.stileBroken() {
		t.Error("stileBroken: got true without a broken rule")
	}
	m.verdicts["stile@etcd-hot"][1].Violations = []verdict.Violation{{Rule: verdict.RuleLeak}}
	m.verdicts["stile@etcd-hot"][0].Faults = []verdict.FaultFigures{{Name: "evict", Strikes: 4, OnHolder: 3}}
	m.verdicts["stile@etcd-hot"][1].Faults = []verdict.FaultFigures{{Name: "evict", Strikes: 1, Damage: verdict.Damage{Overlaps: 2}}}
	if !m.stileBroken() {
		t.Error("stileBroken: got false with a broken rule")
	}
	var table bytes.Buffer
	must(t, m.writeTable(&table))
	text := table.String()
	for _, part := range []string{
		"--seeds 7,8,9 --for 1m0s`", "stile@etcd-hot has 2 of 3; stile@etcd3-hot has 0 of 3", "- stile@etcd-hot, seed 8: leak ×1",
		"| 5 (3), 0s, **2** |",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in the table", part)
		}
	}
	if strings.Count(text, "| 200 ") != 1 || strings.Contains(text, "| stile@redis") {
		t.Error(text)
	}
}
