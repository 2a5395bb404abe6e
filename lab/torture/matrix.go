//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/report"
	"github.com/stilelock/stile/lab/torture/trial"
	"github.com/stilelock/stile/lab/torture/verdict"
	"github.com/stilelock/stile/lab/torture/workload"
)

// A row is one line of the matrix.
type row struct {
	target, workload string
	faults           string // empty means all
	// shipped has ZooKeeper run with the times that it is shipped with.
	shipped bool
}

// rows are what `make torture` runs: Stile on all of its stores with the hot lock, its other workloads where they differ most, and
// the peers.
func rows() []row {
	return []row{
		{target: "stile@etcd", workload: workload.Hot},
		{target: "stile@etcd3", workload: workload.Hot},
		{target: "stile@redis", workload: workload.Hot},
		{target: "stile@redlock3", workload: workload.Hot},
		{target: "stile@redlock5", workload: workload.Hot},
		{target: "stile@zk", workload: workload.Hot},
		{target: "stile@zk3", workload: workload.Hot},
		{target: "stile@zk3", workload: workload.Hot, shipped: true},
		{target: "stile@etcd3", workload: workload.Many},
		{target: "stile@etcd3", workload: workload.Long},
		{target: "stile@etcd3", workload: workload.Storm},
		{target: "stile@etcd3", workload: workload.Churn},
		{target: "stile@redis", workload: workload.Storm},
		{target: "stile@zk3", workload: workload.Storm},
		{target: "stile@etcd", workload: workload.Command},
		// Only without faults is it judged whether somebody was overtaken.
		{target: "stile@etcd3", workload: workload.Hot, faults: "none"},
		{target: "stile@redis", workload: workload.Hot, faults: "none"},
		{target: "stile@zk3", workload: workload.Hot, faults: "none"},
		{target: "concurrency@etcd3", workload: workload.Hot},
		{target: "redsync@redis", workload: workload.Hot},
		{target: "redsync@redlock5", workload: workload.Hot},
		{target: "rueidislock@redis", workload: workload.Hot},
		{target: "redislock@redis", workload: workload.Hot},
		{target: "gozk@zk3", workload: workload.Hot},
	}
}

// String names the row: "stile@etcd3-hot", "stile@etcd3-hot-none" without faults, "stile@zk3-hot-shipped" with ZooKeeper's own times.
func (r row) String() string {
	name := r.target + "-" + r.workload
	if r.faults != "" {
		name += "-" + r.faults
	}
	if r.shipped {
		name += "-shipped"
	}
	return name
}

// matrix is the verb with that name, and what it has found so far.
type matrix struct {
	out   string
	only  string // of the names of rows: what they have in them
	each  time.Duration
	seeds []uint

	rows   []row
	built  string                        // where the programs are
	found  map[string][]*verdict.Verdict // by row
	errors []error
}

func newMatrix() *cobra.Command {
	m := &matrix{found: map[string][]*verdict.Verdict{}}
	cmd := &cobra.Command{
		Use:   "matrix",
		Short: "Run every target under all faults, and make one table of it",
		Long: `Matrix runs Stile on all of its stores and the peers, one after the other, under all the faults that are possible there, and
Stile on three of them without any: each row once for each seed. It writes OUT/table.md after each run.

The history of a run is in OUT/ROW-SEED. A run that is there is judged again and not repeated, unless something else was tested
then, or for another time. So a matrix that was stopped goes on where it was when it is called again.

It exits with 0 if Stile broke no rule; what peers break is in the table.`,
		Example: `  torture matrix --seeds 7,8,9
  torture matrix --row zk3-storm`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return m.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&m.out, "out", filepath.Join("torture-out", "matrix"), "the directory for histories, reports and the table")
	flags.StringVar(&m.only, "row", "", "run only the rows that have this in their names, as stile@etcd3-hot has")
	flags.DurationVar(&m.each, "for", 45*time.Second, "how long each run lasts")
	flags.UintSliceVar(&m.seeds, "seeds", []uint{11, 12, 13, 14, 15}, "what chance begins with, for one run of each row after another")
	return cmd
}

func (m *matrix) run(ctx context.Context) error {
	for _, r := range rows() {
		if strings.Contains(r.String(), m.only) {
			m.rows = append(m.rows, r)
		}
	}
	if len(m.rows) == 0 || len(m.seeds) == 0 || m.each <= 0 {
		return fmt.Errorf("there is nothing to run: %d rows have %q in their names, with %d seeds, for %v; all rows are %v",
			len(m.rows), m.only, len(m.seeds), m.each, rows())
	}
	var err error
	if m.built, err = os.MkdirTemp("", "torture"); err != nil {
		return err
	}
	defer os.RemoveAll(m.built)
	say("building")
	// The command, and with it the worker, which is the same for all: only mutants have others.
	if _, err := trial.Build(ctx, trial.Target{}, workload.Command, m.built); err != nil {
		return err
	}
	n := 0
	for _, seed := range m.seeds {
		for _, r := range m.rows {
			n++
			say(fmt.Sprintf("%d of %d: %s, seed %d", n, len(m.rows)*len(m.seeds), r, seed))
			if err := m.once(ctx, r, seed); err != nil {
				return err
			}
		}
	}
	fmt.Println(filepath.Join(m.out, "table.md"))
	if len(m.errors) > 0 {
		return errors.Join(m.errors...)
	}
	if m.broken() {
		return errBroken
	}
	return nil
}

// once runs a row with a seed, unless that has been done, judges it, and writes the table. What goes wrong with one run is noted:
// the others are worth their time still. An error means that the matrix cannot go on.
func (m *matrix) once(ctx context.Context, r row, seed uint) error {
	f := runFlags{
		target: r.target, workload: r.workload, faults: "all", duration: m.each, ttl: 2 * time.Second, workers: 6, seed: uint64(seed),
		out: filepath.Join(m.out, fmt.Sprintf("%s-%d", r, seed)), built: m.built,
	}
	if r.faults != "" {
		f.faults, f.ttl = r.faults, fairTTL
	}
	if r.shipped {
		f.shipped, f.ttl = true, 8*time.Second
	}
	tested, err := trial.ProgramsIn(m.built).Hash(r.workload)
	if err != nil {
		return err
	}
	v, err := f.judged(tested)
	if err != nil {
		v, err = f.apart(ctx)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		say(err.Error())
		m.errors = append(m.errors, err)
		return nil
	}
	m.found[r.String()] = append(m.found[r.String()], v)
	say(sum(v) + ": " + report.Summary(v))
	return writeFile(filepath.Join(m.out, "table.md"), m.table)
}

// judged judges the history of an earlier run again. It is an error if there is none of just this run that is complete.
func (f *runFlags) judged(tested string) (*verdict.Verdict, error) {
	if _, err := os.Stat(filepath.Join(f.out, reportJSON)); err != nil { // it is written last
		return nil, err
	}
	h, err := history.Read(filepath.Join(f.out, trial.HistoryFile))
	if err != nil {
		return nil, err
	}
	of := h.Run
	if of.Tested != tested || of.Target != f.target || of.Workload != f.workload || of.Faults != f.faults || of.Seed != f.seed ||
		of.TTL != int64(f.ttl) || of.For != int64(f.duration) {
		return nil, fmt.Errorf("%s is of another run: %s", f.out, of.Command)
	}
	v := verdict.Judge(h)
	return v, writeReports(v, f.out)
}

// broken reports whether Stile broke a rule.
func (m *matrix) broken() bool {
	for _, all := range m.found {
		for _, v := range all {
			if strings.HasPrefix(v.Run.Target, "stile@") && len(v.Broken()) > 0 {
				return true
			}
		}
	}
	return false
}

// table writes what there is so far, with what one has to know to repeat it: one line for each row, which adds up the runs with all
// seeds; what was broken in which run; and what each kind of fault did to Stile's hot lock.
func (m *matrix) table(w io.Writer) error {
	versions := map[string]string{}
	var sums, hot []*verdict.Verdict
	var broken, missing []string
	for _, r := range m.rows {
		all := m.found[r.String()]
		if len(all) < len(m.seeds) {
			missing = append(missing, fmt.Sprintf("%s has %d of %d", r, len(all), len(m.seeds)))
		}
		if len(all) == 0 {
			continue
		}
		for _, v := range all {
			maps.Copy(versions, v.Run.Versions)
			if len(v.Broken()) > 0 {
				broken = append(broken, fmt.Sprintf("- %s, seed %d: %s", r, v.Run.Seed, report.Summary(v)))
			}
		}
		sum := verdict.Sum(all...)
		if r.shipped {
			sum.Run.Target += ", shipped"
		}
		sums = append(sums, sum)
		if strings.HasPrefix(r.target, "stile@") && r.workload == workload.Hot && r.faults == "" {
			hot = append(hot, sum)
		}
	}
	var programs, seeds []string
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		programs = append(programs, name+" "+versions[name])
	}
	for _, seed := range m.seeds {
		seeds = append(seeds, fmt.Sprint(seed))
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s; `go run ./lab/torture matrix --seeds %s --for %v`: a run for each row and seed; %s; %d CPUs.\n\n",
		time.Now().UTC().Format("2006-01-02 15:04"), strings.Join(seeds, ","), m.each, strings.Join(programs, ", "), runtime.NumCPU())
	if len(missing) > 0 {
		fmt.Fprintf(&b, "Runs are missing: %s.\n\n", strings.Join(missing, "; "))
	}
	if err := report.Table(&b, true, sums...); err != nil {
		return err
	}
	if len(broken) > 0 {
		fmt.Fprintf(&b, "\nBroken:\n\n%s\n", strings.Join(broken, "\n"))
	}
	b.WriteString("\n")
	if err := report.FaultTable(&b, hot...); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}
