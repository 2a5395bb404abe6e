//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/lab/torture/mutant"
	"github.com/stilelock/stile/lab/torture/report"
	"github.com/stilelock/stile/lab/torture/trial"
	"github.com/stilelock/stile/lab/torture/verdict"
	"github.com/stilelock/stile/lab/torture/workload"
)

func newSmoke() *cobra.Command {
	var out string
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "smoke",
		Short: "Catch every mutant, and run Stile itself under faults for a short time",
		Long: `Smoke runs every mutant of Stile until the harness catches it. It also runs Stile itself for a short time: on one etcd and on
three with faults, and on three without; each of the workloads with more than one exclusive lock once; and with kept locks.

It ends with the rules that Stile broke and a summary. It exits with 0 if every mutant was caught and Stile broke no rule.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return smoke(cmd.Context(), out, duration) },
	}
	cmd.Flags().StringVar(&out, "out", filepath.Join("torture-out", "smoke"), "directory for histories and reports")
	cmd.Flags().DurationVar(&duration, "for", 20*time.Second, "duration of each run of Stile itself")
	return cmd
}

// smoke is what `make torture-smoke` runs: the mutants and, at the same time, the runs of Stile
// itself, one after another.
func smoke(ctx context.Context, out string, duration time.Duration) error {
	began := time.Now()
	mutants := mutant.All()
	var escaped []string
	var errMutants error
	var mutantRuns sync.WaitGroup
	mutantRuns.Go(func() { escaped, errMutants = catchAll(ctx, out, mutants) })
	runs, err := runStile(ctx, out, duration)
	mutantRuns.Wait()
	if err := errors.Join(err, errMutants); err != nil {
		return err
	}
	var verdicts []*verdict.Verdict
	broken, conceded := 0, 0
	for _, r := range runs {
		verdicts = append(verdicts, r.verdict)
		broken += len(r.verdict.Broken())
		conceded += r.verdict.Conceded()
		for _, violation := range r.verdict.Violations {
			if violation.Conceded == "" {
				fmt.Printf("BROKEN %s: %s\n  %s\n  history and reports: %s\n", violation.Rule, violation.What, r.flags.command(), r.flags.out)
			}
		}
	}
	fmt.Printf("%d of %d mutants caught; stile: %s; %d rules broken, %d violations conceded; %v\n", len(mutants)-len(escaped), len(mutants),
		summarize(verdicts...), broken, conceded, time.Since(began).Round(time.Second))
	switch {
	case len(escaped) > 0:
		return fmt.Errorf("mutants not caught: %s; so the other results prove nothing", strings.Join(escaped, ", "))
	case broken > 0:
		return errBroken
	}
	return nil
}

// fairTTL is the TTL of the runs that show whether a client is overtaken: only a client that asked
// more than a TTL earlier must be served first. On a busy machine a request may take two seconds to
// arrive.
const fairTTL = 10 * time.Second

// judgedRun is a run of Stile itself and what was found in its history.
type judgedRun struct {
	flags   runFlags
	verdict *verdict.Verdict
}

// runStile runs Stile itself and judges it.
func runStile(ctx context.Context, out string, duration time.Duration) ([]judgedRun, error) {
	var runs []judgedRun
	for _, f := range []runFlags{
		{target: "stile@etcd", faults: "holder-pause,holder-kill,holder-deaf,evict,reset"},
		{target: "stile@etcd3", faults: "leader-kill,leader-isolate,follower-isolate,holder-pause"},
		{target: "stile@etcd3", faults: "none"}, // the rule against overtaking matters most here
		{target: "stile@etcd", workload: workload.ReadWrite, faults: "holder-pause,evict"},
		{target: "stile@redis", workload: workload.Semaphore, faults: "holder-pause,holder-kill"},
		{target: "stile@etcd3", workload: workload.Batches, faults: "leader-kill,holder-deaf"},
		{target: "stile@etcd3", workload: workload.Election, faults: "leader-kill,holder-pause"},
		{target: "stile@etcd", workload: workload.Sets, faults: "holder-kill,evict"},
		{target: "stile@redis", faults: "holder-pause,restart-empty,evict", linger: lingerTime},
	} {
		f.workload = cmp.Or(f.workload, workload.Hot)
		f.duration, f.ttl, f.workers, f.seed = duration, 2*time.Second, 6, 1
		f.out = filepath.Join(out, f.target+"-"+f.workload)
		if f.faults == "none" {
			f.out += "-none"
			f.ttl = fairTTL
		}
		if f.linger > 0 {
			f.out += "-linger"
		}
		v, err := f.runSubprocess(ctx)
		if err != nil {
			return nil, err
		}
		runs = append(runs, judgedRun{f, v})
		fmt.Printf("%s, %s, %s: %s: %s\n", f.target, f.workload, f.faults, summarize(v), report.Summary(v))
	}
	return runs, nil
}

// summarize adds up the figures of verdicts.
func summarize(all ...*verdict.Verdict) string {
	var strikes, holders, leaders, acquired, overlaps, stale, accepted int
	var gap time.Duration
	for _, v := range all {
		for _, f := range v.Faults {
			strikes, holders, leaders = strikes+f.Strikes, holders+f.OnHolder, leaders+f.OnLeader
		}
		acquired += v.Figures.Acquisitions
		overlaps, stale, accepted = overlaps+v.Figures.Overlaps, stale+v.Figures.Stale, accepted+v.Figures.StaleAccepted
		gap = max(gap, v.Figures.LongestGap)
	}
	return fmt.Sprintf("%d acquisitions, %d faults (%d hit a holder, %d a leader), overlaps %s, stale writes %s, accepted by the fenced resource %s, longest gap %v",
		acquired, strikes, holders, leaders, report.FormatCount(overlaps, strikes), report.FormatCount(stale, strikes),
		report.FormatCount(accepted, strikes), gap.Round(10*time.Millisecond))
}

// catchAll runs all mutants, four at a time, since they mostly wait. It returns those that were
// not caught.
func catchAll(ctx context.Context, out string, mutants []mutant.Mutant) (escaped []string, err error) {
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	slots := make(chan struct{}, 4)
	for _, m := range mutants {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			caught, details, err := catch(ctx, out, m)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("mutant %s: %w", m.Name, err))
			case caught:
				fmt.Printf("caught  %-20s %s\n", m.Name, details)
			default:
				escaped = append(escaped, m.Name)
				fmt.Printf("ESCAPED %-20s %s\n", m.Name, details)
			}
		})
	}
	all.Wait()
	slices.Sort(escaped)
	return escaped, errors.Join(errs...)
}

// maxRuns is the maximal number of runs of a mutant: which worker a fault affects is random. Each
// run is longer, and has a longer TTL, than the one before. A mutant that shows only if something
// happens within a part of the TTL shows on a busy machine, too, if that part is long enough. Most
// are caught in the first run.
const maxRuns = 6

// catch runs a mutant until it has broken one of the rules that are to catch it.
func catch(ctx context.Context, out string, m mutant.Mutant) (caught bool, details string, err error) {
	programDir, err := os.MkdirTemp("", "torture")
	if err != nil {
		return false, "", err
	}
	defer os.RemoveAll(programDir)
	if m.Package != "" {
		caught, err := trial.RunTests(ctx, m, programDir)
		return caught, fmt.Sprintf("breaks %s; tests: %s in %s", m.Breaks, m.Tests, m.Package), err
	}
	target := trial.Target{Locker: "stile", Mutant: m.Name, Cluster: m.Cluster}
	if _, err := trial.Build(ctx, target, m.Workload, programDir); err != nil {
		return false, "", err
	}
	for seed := range uint64(maxRuns) {
		f := runFlags{
			target: target.String(), workload: m.Workload, faults: m.Faults,
			duration: time.Duration(8+8*seed) * time.Second, ttl: time.Duration(2+seed) * time.Second, workers: 6, seed: seed + 1, programDir: programDir,
			linger: m.Linger,
		}
		f.out = filepath.Join(out, m.Name)
		v, err := f.runSubprocess(ctx)
		if err != nil {
			return false, "", err
		}
		for _, violation := range v.Violations {
			if violation.Conceded == "" && slices.Contains(m.CaughtBy, violation.Rule) {
				return true, fmt.Sprintf("breaks %s\n%29s%s: %s", m.Breaks, "", violation.Rule, violation.What), nil
			}
		}
		details = fmt.Sprintf("breaks %s; found after %d runs: %s", m.Breaks, seed+1, summarize(v))
	}
	return false, details, nil
}

// runSubprocess runs in a subprocess, which has its own site, and returns the verdict.
func (f *runFlags) runSubprocess(ctx context.Context) (*verdict.Verdict, error) {
	if err := os.MkdirAll(f.out, 0o750); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	reportPath := filepath.Join(f.out, reportJSON)
	if err := os.Remove(reportPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var output bytes.Buffer
	args := append(f.args(), "--out", f.out)
	if f.programDir != "" {
		args = append(args, "--programs", f.programDir)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil && cmd.ProcessState.ExitCode() != exitBroken {
		return nil, fmt.Errorf("%s: %w: %s", f.command(), err, output.String())
	}
	b, err := os.ReadFile(reportPath)
	if err != nil {
		return nil, err
	}
	v := &verdict.Verdict{}
	return v, json.Unmarshal(b, v)
}
