//go:build linux

package main

import (
	"bytes"
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
		Short: "Catch every mutant, and hurt Stile itself for a while",
		Long: `Smoke runs every mutant of Stile until the harness catches it, and then Stile itself on one etcd and on three for a short while, and on
three without faults.
The last line sums up. It exits with 0 if every mutant was caught and Stile broke no rule.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return smoke(cmd.Context(), out, duration) },
	}
	cmd.Flags().StringVar(&out, "out", filepath.Join("torture-out", "smoke"), "the directory for histories and reports")
	cmd.Flags().DurationVar(&duration, "for", 20*time.Second, "how long Stile itself is tried, each time")
	return cmd
}

// smoke is what `make torture-smoke` runs: the mutants, and beside them, one after the other, what has to be right.
func smoke(ctx context.Context, out string, duration time.Duration) error {
	began := time.Now()
	mutants := mutant.All()
	var escaped []string
	var errMutants error
	var catching sync.WaitGroup
	catching.Go(func() { escaped, errMutants = catchAll(ctx, out, mutants) })
	verdicts, err := hurt(ctx, out, duration)
	catching.Wait()
	if err := errors.Join(err, errMutants); err != nil {
		return err
	}
	broken, conceded := 0, 0
	for _, v := range verdicts {
		broken += len(v.Broken())
		conceded += v.Conceded()
	}
	fmt.Printf("%d of %d mutants caught; stile: %s; %d rules broken, %d violations conceded; %v\n", len(mutants)-len(escaped), len(mutants),
		sum(verdicts...), broken, conceded, time.Since(began).Round(time.Second))
	switch {
	case len(escaped) > 0:
		return fmt.Errorf("not caught, so that nothing here proves anything: %s", strings.Join(escaped, ", "))
	case broken > 0:
		return errBroken
	}
	return nil
}

// fairTTL is the TTL of the runs that show whether somebody is overtaken: a caller that asks a TTL later may not be served first. On a
// busy machine a request may take two seconds to arrive.
const fairTTL = 10 * time.Second

// hurt runs Stile itself and judges it.
func hurt(ctx context.Context, out string, duration time.Duration) ([]*verdict.Verdict, error) {
	var verdicts []*verdict.Verdict
	for _, f := range []runFlags{
		{target: "stile@etcd", faults: "holder-pause,holder-kill,holder-deaf,evict,reset"},
		{target: "stile@etcd3", faults: "leader-kill,leader-isolate,follower-isolate,holder-pause"},
		{target: "stile@etcd3", faults: "none"}, // only so is it judged whether somebody was overtaken
	} {
		f.workload, f.duration, f.ttl, f.workers, f.seed = workload.Hot, duration, 2*time.Second, 6, 1
		f.out = filepath.Join(out, f.target)
		if f.faults == "none" {
			f.out += "-none"
			f.ttl = fairTTL
		}
		v, err := f.apart(ctx)
		if err != nil {
			return nil, err
		}
		verdicts = append(verdicts, v)
		fmt.Printf("%s, %s: %s: %s\n", f.target, f.faults, sum(v), report.Summary(v))
	}
	return verdicts, nil
}

// sum adds up what verdicts say in figures.
func sum(all ...*verdict.Verdict) string {
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

// catchAll runs all mutants, a few at a time: they mostly wait. It returns those that were not caught.
func catchAll(ctx context.Context, out string, mutants []mutant.Mutant) (escaped []string, err error) {
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	places := make(chan struct{}, 3)
	for _, m := range mutants {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			caught, by, err := catch(ctx, out, m)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("mutant %s: %w", m.Name, err))
			case caught:
				fmt.Printf("caught  %-20s %s\n", m.Name, by)
			default:
				escaped = append(escaped, m.Name)
				fmt.Printf("ESCAPED %-20s %s\n", m.Name, by)
			}
		})
	}
	all.Wait()
	slices.Sort(escaped)
	return escaped, errors.Join(errs...)
}

// tries is how often a mutant is run at most: chance decides whom a fault hits. Each run is longer, and has a longer TTL, than the
// one before: what shows only if somebody is there within a part of the TTL shows on a busy machine, too, if that is long enough.
// Most are caught the first time.
const tries = 6

// catch runs a mutant until it has broken one of the rules by which it is to be caught.
func catch(ctx context.Context, out string, m mutant.Mutant) (caught bool, by string, err error) {
	built, err := os.MkdirTemp("", "torture")
	if err != nil {
		return false, "", err
	}
	defer os.RemoveAll(built)
	target := trial.Target{Locker: "stile", Mutant: m.Name, Cluster: m.Cluster}
	if _, err := trial.Build(ctx, target, m.Workload, built); err != nil {
		return false, "", err
	}
	for seed := range uint64(tries) {
		f := runFlags{
			target: target.String(), workload: m.Workload, faults: m.Faults,
			duration: time.Duration(12+8*seed) * time.Second, ttl: time.Duration(2+seed) * time.Second, workers: 6, seed: seed + 1, built: built,
		}
		f.out = filepath.Join(out, m.Name)
		v, err := f.apart(ctx)
		if err != nil {
			return false, "", err
		}
		for _, violation := range v.Violations {
			if violation.Conceded == "" && slices.Contains(m.CaughtBy, violation.Rule) {
				return true, fmt.Sprintf("breaks %s\n%29s%s: %s", m.Breaks, "", violation.Rule, violation.What), nil
			}
		}
		by = fmt.Sprintf("breaks %s; found after %d runs: %s", m.Breaks, seed+1, sum(v))
	}
	return false, by, nil
}

// apart runs in a process of its own, which is taken to a site of its own, and returns the verdict.
func (f *runFlags) apart(ctx context.Context) (*verdict.Verdict, error) {
	if err := os.MkdirAll(f.out, 0o750); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	done := filepath.Join(f.out, reportJSON)
	if err := os.Remove(done); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var said bytes.Buffer
	args := append(f.args(), "--out", f.out)
	if f.built != "" {
		args = append(args, "--programs", f.built)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil && cmd.ProcessState.ExitCode() != exitBroken {
		return nil, fmt.Errorf("%s: %w: %s", f.command(), err, said.String())
	}
	b, err := os.ReadFile(done)
	if err != nil {
		return nil, err
	}
	v := &verdict.Verdict{}
	return v, json.Unmarshal(b, v)
}
