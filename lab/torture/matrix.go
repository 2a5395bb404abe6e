//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/lab/torture/report"
	"github.com/stilelock/stile/lab/torture/verdict"
	"github.com/stilelock/stile/lab/torture/workload"
)

// A trialOf is one line of the matrix.
type trialOf struct {
	target, workload string
	faults           string // empty means all
	// share is how much of the time of one trial this one gets; zero means all.
	share float64
	// shipped has ZooKeeper run with the times that it is shipped with.
	shipped bool
}

// matrix is what `make torture` runs: Stile on all of its stores with the hot lock, its other workloads where they differ
// most, and the peers.
func matrix() []trialOf {
	return []trialOf{
		{target: "stile@etcd", workload: workload.Hot},
		{target: "stile@etcd3", workload: workload.Hot},
		{target: "stile@redis", workload: workload.Hot},
		{target: "stile@redlock5", workload: workload.Hot},
		{target: "stile@zk", workload: workload.Hot},
		{target: "stile@zk3", workload: workload.Hot},
		{target: "stile@zk3", workload: workload.Hot, shipped: true},
		{target: "stile@etcd3", workload: workload.Many, share: 0.5},
		{target: "stile@etcd3", workload: workload.Long, share: 0.5},
		{target: "stile@etcd3", workload: workload.Storm, share: 0.5},
		{target: "stile@etcd3", workload: workload.Churn, share: 0.5},
		{target: "stile@redis", workload: workload.Storm, share: 0.5},
		{target: "stile@zk3", workload: workload.Storm, share: 0.5},
		{target: "stile@etcd", workload: workload.Command, share: 0.5},
		// Only without faults is it judged whether somebody was overtaken.
		{target: "stile@etcd3", workload: workload.Hot, faults: "none", share: 0.1},
		{target: "stile@redis", workload: workload.Hot, faults: "none", share: 0.1},
		{target: "stile@zk3", workload: workload.Hot, faults: "none", share: 0.1},
		{target: "concurrency@etcd3", workload: workload.Hot, share: 0.5},
		{target: "redsync@redis", workload: workload.Hot, share: 0.5},
		{target: "redsync@redlock5", workload: workload.Hot, share: 0.5},
		{target: "rueidislock@redis", workload: workload.Hot, share: 0.5},
		{target: "redislock@redis", workload: workload.Hot, share: 0.5},
		{target: "gozk@zk3", workload: workload.Hot, share: 0.5},
	}
}

func newMatrix() *cobra.Command {
	var out string
	var each time.Duration
	var seed uint64
	cmd := &cobra.Command{
		Use:   "matrix",
		Short: "Run every target under all faults, and make one table of it",
		Long: `Matrix runs Stile on all of its stores and the peers, one after the other, under all the faults that are possible there, and
Stile on three of them without any, and writes OUT/table.md. A whole one, with the default of 4m for each, takes about an hour.

It exits with 0 if Stile broke no rule; what peers break is in the table.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runMatrix(cmd.Context(), out, each, seed) },
	}
	cmd.Flags().StringVar(&out, "out", filepath.Join("torture-out", "matrix"), "the directory for histories, reports and the table")
	cmd.Flags().DurationVar(&each, "for", 4*time.Minute, "how long each trial lasts; some take half of it")
	cmd.Flags().Uint64Var(&seed, "seed", 1, "what chance begins with")
	return cmd
}

func runMatrix(ctx context.Context, out string, each time.Duration, seed uint64) error {
	began := time.Now()
	var done []*verdict.Verdict
	var errs []error
	broken := 0
	for i, t := range matrix() {
		f := runFlags{
			target: t.target, workload: t.workload, faults: "all", duration: each, ttl: 2 * time.Second, workers: 6, seed: seed,
		}
		f.out = filepath.Join(out, fmt.Sprintf("%s-%s", t.target, t.workload))
		if t.faults != "" {
			f.faults = t.faults
			f.out += "-" + t.faults
		}
		if t.shipped {
			f.shipped, f.ttl = true, 8*time.Second
			f.out += "-shipped"
		}
		if t.share > 0 {
			f.duration = time.Duration(float64(each) * t.share)
		}
		say(fmt.Sprintf("%d of %d: %s", i+1, len(matrix()), f.command()))
		v, err := f.apart(ctx)
		if ctx.Err() != nil {
			return err
		}
		if err != nil { // the others are worth their time still
			say(err.Error())
			errs = append(errs, err)
			continue
		}
		if strings.HasPrefix(t.target, "stile@") {
			broken += len(v.Broken())
		}
		done = append(done, v)
		say(sum(v) + ": " + report.Summary(v))
		// After each, so that what is there is not lost.
		err = writeFile(filepath.Join(out, "table.md"), func(w io.Writer) error { return writeTable(w, began, each, seed, done) })
		if err != nil {
			return err
		}
	}
	fmt.Println(filepath.Join(out, "table.md"))
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if broken > 0 {
		return errBroken
	}
	return nil
}

// writeTable writes the table with what one has to know to repeat it.
func writeTable(w io.Writer, began time.Time, each time.Duration, seed uint64, done []*verdict.Verdict) error {
	versions := map[string]string{}
	for _, v := range done {
		maps.Copy(versions, v.Run.Versions)
	}
	var programs []string
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		programs = append(programs, name+" "+versions[name])
	}
	_, err := fmt.Fprintf(w, "%s; `go run ./lab/torture matrix --for %v --seed %d`; %s; %d CPUs.\n\n",
		began.UTC().Format("2006-01-02 15:04"), each, seed, strings.Join(programs, ", "), runtime.NumCPU())
	if err != nil {
		return err
	}
	return report.Table(w, false, done...)
}
