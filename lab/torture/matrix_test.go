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

// leave leaves the history of a run in f.out, as the run itself does.
func leave(t *testing.T, f *runFlags, tested string) {
	t.Helper()
	var file bytes.Buffer
	w := history.NewWriter(&file, history.Run{
		Target: f.target, Workload: f.workload, Faults: f.faults, Seed: f.seed, TTL: int64(f.ttl), For: int64(f.duration), Tested: tested,
	})
	w.Write(history.Event{At: 1, Started: &history.Started{Pid: 1}})
	must(t, w.Err())
	must(t, os.MkdirAll(f.out, 0o750))
	must(t, os.WriteFile(filepath.Join(f.out, trial.HistoryFile), file.Bytes(), 0o600))
	must(t, writeReports(&verdict.Verdict{}, f.out))
}

func TestARunIsRepeatedOnlyIfItIsAnother(t *testing.T) {
	of := func() *runFlags {
		return &runFlags{
			target: "stile@etcd", workload: workload.Hot, faults: "all", duration: time.Minute, ttl: 2 * time.Second, seed: 7,
			out: filepath.Join(t.TempDir(), "run"),
		}
	}
	f := of()
	if _, err := f.judged("abc"); err == nil {
		t.Error("there is no run, and it is judged")
	}
	leave(t, f, "abc")
	v, err := f.judged("abc")
	must(t, err)
	if v.Run.Seed != 7 || v.Broken()[verdict.RuleTooLittle] == 0 {
		t.Errorf("it is not judged anew: %+v", v)
	}
	if report, err := os.ReadFile(filepath.Join(f.out, reportJSON)); err != nil || !strings.Contains(string(report), verdict.RuleTooLittle) {
		t.Errorf("the reports are not written anew: %s, %v", report, err)
	}
	for what, other := range map[string]func(*runFlags) string{
		"other programs":   func(*runFlags) string { return "abd" },
		"another target":   func(f *runFlags) string { f.target = "stile@etcd3"; return "abc" },
		"another workload": func(f *runFlags) string { f.workload = workload.Long; return "abc" },
		"other faults":     func(f *runFlags) string { f.faults = "none"; return "abc" },
		"another seed":     func(f *runFlags) string { f.seed = 8; return "abc" },
		"another TTL":      func(f *runFlags) string { f.ttl = time.Second; return "abc" },
		"another length":   func(f *runFlags) string { f.duration = time.Second; return "abc" },
		"no end":           func(f *runFlags) string { must(t, os.Remove(filepath.Join(f.out, reportJSON))); return "abc" },
	} {
		f := of()
		leave(t, f, "abc")
		if _, err := f.judged(other(f)); err == nil {
			t.Errorf("with %s it is taken for the same run", what)
		}
	}
}

func TestWhatWasTestedIsThePrograms(t *testing.T) {
	dir := t.TempDir()
	p := trial.ProgramsIn(dir)
	tested := func(worker, stile, load string) string {
		t.Helper()
		must(t, os.WriteFile(p.Worker, []byte(worker), 0o600))
		must(t, os.WriteFile(p.Stile, []byte(stile), 0o600))
		id, err := p.Hash(load)
		must(t, err)
		return id
	}
	one := tested("a", "b", workload.Hot)
	if tested("a", "b", workload.Hot) != one || tested("a", "c", workload.Hot) != one {
		t.Error("the same programs have another name, or one that is not used changes it")
	}
	if tested("x", "b", workload.Hot) == one || tested("a", "b", workload.Command) == tested("a", "c", workload.Command) {
		t.Error("other programs have the same name")
	}
}

func TestEveryRowCanBeRun(t *testing.T) {
	names := map[string]bool{}
	stile := map[string]bool{}
	for _, r := range rows() {
		target, err := trial.ParseTarget(r.target)
		must(t, err)
		if names[r.String()] {
			t.Errorf("there are two rows %s", r)
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
			t.Errorf("no row is of %s", target)
		}
	}
}

// The table has what there is so far: one line for a row, whatever the number of seeds, and which run broke what.
func TestTheTableOfAMatrixThatIsNotDone(t *testing.T) {
	m := &matrix{seeds: []uint{7, 8, 9}, each: time.Minute, rows: rows(), found: map[string][]*verdict.Verdict{}}
	for _, seed := range []uint64{7, 8} {
		m.found["stile@etcd-hot"] = append(m.found["stile@etcd-hot"], &verdict.Verdict{
			Run: history.Run{Target: "stile@etcd", Workload: workload.Hot, Seed: seed}, Figures: verdict.Figures{Acquisitions: 100},
		})
	}
	if m.broken() {
		t.Error("broken, though nothing is")
	}
	m.found["stile@etcd-hot"][1].Violations = []verdict.Violation{{Rule: verdict.RuleLeak}}
	m.found["stile@etcd-hot"][0].Faults = []verdict.FaultFigures{{Name: "evict", Strikes: 4, OnHolder: 3}}
	m.found["stile@etcd-hot"][1].Faults = []verdict.FaultFigures{{Name: "evict", Strikes: 1, Damage: verdict.Damage{Overlaps: 2}}}
	if !m.broken() {
		t.Error("not broken, though a rule is")
	}
	var table bytes.Buffer
	must(t, m.table(&table))
	text := table.String()
	for _, part := range []string{
		"--seeds 7,8,9 --for 1m0s`", "stile@etcd-hot has 2 of 3; stile@etcd3-hot has 0 of 3", "- stile@etcd-hot, seed 8: leak ×1",
		"| 5 (3), 0s, **2** |",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("it does not have %q", part)
		}
	}
	if strings.Count(text, "| 200 ") != 1 || strings.Contains(text, "| stile@redis") {
		t.Error(text)
	}
}
