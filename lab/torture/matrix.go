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

// A row is a row of the matrix.
type row struct {
	target, workload string
	faults           string // empty means all
	// shipped runs ZooKeeper with the ticks that it ships with.
	shipped bool
	linger  bool // clients keep locks for lingerTime
}

// lingerTime is Options.Linger in the runs with kept locks.
const lingerTime = time.Second

// rows returns the rows that `make torture` runs: Stile on all of its stores with the hot lock, its
// other workloads where they differ most, and the peers.
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
		{target: "stile@etcd3", workload: workload.Hot, linger: true},
		{target: "stile@redis", workload: workload.Hot, linger: true},
		{target: "stile@zk3", workload: workload.Hot, linger: true},
		{target: "stile@etcd", workload: workload.Command},
		// The rule against overtaking matters most without faults.
		{target: "stile@etcd3", workload: workload.Hot, faults: "none"},
		{target: "stile@redis", workload: workload.Hot, faults: "none"},
		{target: "stile@zk3", workload: workload.Hot, faults: "none"},
		{target: "stile@etcd3", workload: workload.ReadWrite},
		{target: "stile@redis", workload: workload.ReadWrite},
		{target: "stile@zk3", workload: workload.ReadWrite},
		{target: "stile@etcd3", workload: workload.Semaphore},
		{target: "stile@redis", workload: workload.Semaphore},
		{target: "stile@zk3", workload: workload.Semaphore},
		{target: "stile@etcd3", workload: workload.Batches},
		{target: "stile@etcd3", workload: workload.Election},
		{target: "stile@redis", workload: workload.Election},
		{target: "stile@zk3", workload: workload.Election},
		{target: "stile@etcd3", workload: workload.Sets},
		{target: "stile@redis", workload: workload.Sets},
		{target: "stile@zk3", workload: workload.Sets},
		{target: "stile@etcd3", workload: workload.Once},
		{target: "stile@redis", workload: workload.Once},
		{target: "stile@zk3", workload: workload.Once},
		{target: "stile@etcd3", workload: workload.Crowd},
		{target: "stile@redis", workload: workload.Crowd},
		{target: "stile@zk3", workload: workload.Crowd},
		{target: "stile@etcd3", workload: workload.ReadWrite, faults: "none"},
		{target: "stile@etcd3", workload: workload.Sets, faults: "none"},
		{target: "concurrency@etcd3", workload: workload.Hot},
		{target: "redsync@redis", workload: workload.Hot},
		{target: "redsync@redlock5", workload: workload.Hot},
		{target: "rueidislock@redis", workload: workload.Hot},
		{target: "redislock@redis", workload: workload.Hot},
		{target: "gozk@zk3", workload: workload.Hot},
	}
}

// String returns the name of the row: "stile@etcd3-hot", "stile@etcd3-hot-none" without faults,
// "stile@zk3-hot-shipped" with ZooKeeper's ticks as shipped, "stile@redis-hot-linger" with kept locks.
func (r row) String() string {
	name := r.target + "-" + r.workload
	if r.faults != "" {
		name += "-" + r.faults
	}
	if r.shipped {
		name += "-shipped"
	}
	if r.linger {
		name += "-linger"
	}
	return name
}

// matrix is the matrix command, and its results so far.
type matrix struct {
	out       string
	rowFilter string // part of the names of the rows to run
	duration  time.Duration
	seeds     []uint

	rows       []row
	programDir string                        // where the programs are built
	verdicts   map[string][]*verdict.Verdict // by row
	errs       []error
}

func newMatrix() *cobra.Command {
	m := &matrix{verdicts: map[string][]*verdict.Verdict{}}
	cmd := &cobra.Command{
		Use:   "matrix",
		Short: "Run every target under all faults, and write one table of the results",
		Long: `Matrix runs Stile on all of its stores and the peers, one after another, under all possible faults, and Stile on three
stores without faults: each row once for each seed. It writes OUT/table.md after each run.

The history of a run is in OUT/ROW-SEED. A run that exists is judged again and not repeated, unless it tested other programs
or had another duration. So a matrix that was stopped resumes where it was.

It exits with 0 if Stile broke no rule; what the peers broke is in the table.`,
		Example: `  torture matrix --seeds 7,8,9
  torture matrix --row zk3-storm`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return m.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&m.out, "out", filepath.Join("torture-out", "matrix"), "directory for histories, reports and the table")
	flags.StringVar(&m.rowFilter, "row", "", "run only the rows with this text in their names, such as stile@etcd3-hot")
	flags.DurationVar(&m.duration, "for", 45*time.Second, "duration of each run")
	flags.UintSliceVar(&m.seeds, "seeds", []uint{11, 12, 13, 14, 15}, "seeds of the random choices; each row runs once for each")
	return cmd
}

func (m *matrix) run(ctx context.Context) error {
	for _, r := range rows() {
		if strings.Contains(r.String(), m.rowFilter) {
			m.rows = append(m.rows, r)
		}
	}
	if len(m.rows) == 0 || len(m.seeds) == 0 || m.duration <= 0 {
		return fmt.Errorf("nothing to run: %d rows have %q in their names, with %d seeds, for %v; all rows are %v",
			len(m.rows), m.rowFilter, len(m.seeds), m.duration, rows())
	}
	var err error
	if m.programDir, err = os.MkdirTemp("", "torture"); err != nil {
		return err
	}
	defer os.RemoveAll(m.programDir)
	printStatus("building")
	// This builds the command and the worker. They are the same for all rows; only mutants have
	// others.
	if _, err := trial.Build(ctx, trial.Target{}, workload.Command, m.programDir); err != nil {
		return err
	}
	n := 0
	for _, seed := range m.seeds {
		for _, r := range m.rows {
			n++
			printStatus(fmt.Sprintf("%d of %d: %s, seed %d", n, len(m.rows)*len(m.seeds), r, seed))
			if err := m.runRow(ctx, r, seed); err != nil {
				return err
			}
		}
	}
	fmt.Println(filepath.Join(m.out, "table.md"))
	if len(m.errs) > 0 {
		return errors.Join(m.errs...)
	}
	if m.stileBroken() {
		return errBroken
	}
	return nil
}

// crowdTTL is the TTL of the workload Crowd. A fault may end all 468 sessions at once, and the clients open
// others at once. On two cores, with three servers, that takes longer than 2 s if other programs run too:
// then the first of them are lost before the last have been opened, and the crowd never recovers.
const crowdTTL = 5 * time.Second

// runRow runs a row with a seed unless that run exists, judges it, and writes the table. An error
// of one run is printed and kept in errs, and the matrix continues. runRow returns only errors
// after which it cannot.
func (m *matrix) runRow(ctx context.Context, r row, seed uint) error {
	f := runFlags{
		target: r.target, workload: r.workload, faults: "all", duration: m.duration, ttl: 2 * time.Second, workers: 6, seed: uint64(seed),
		out: filepath.Join(m.out, fmt.Sprintf("%s-%d", r, seed)), programDir: m.programDir,
	}
	if r.faults != "" {
		f.faults, f.ttl = r.faults, fairTTL
	}
	if r.workload == workload.Crowd {
		f.ttl = crowdTTL
	}
	if r.shipped {
		f.shipped, f.ttl = true, 8*time.Second
	}
	if r.linger {
		f.linger = lingerTime
	}
	hash, err := trial.ProgramsIn(m.programDir).Hash(r.workload)
	if err != nil {
		return err
	}
	v, err := f.rejudge(hash)
	if err != nil {
		v, err = f.runSubprocess(ctx)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		printStatus(err.Error())
		m.errs = append(m.errs, err)
		return nil
	}
	m.verdicts[r.String()] = append(m.verdicts[r.String()], v)
	printStatus(summarize(v) + ": " + report.Summary(v))
	return writeFile(filepath.Join(m.out, "table.md"), m.writeTable)
}

// rejudge judges the history of an earlier run again. It returns an error unless there is a
// complete run with the same programs and flags.
func (f *runFlags) rejudge(hash string) (*verdict.Verdict, error) {
	if _, err := os.Stat(filepath.Join(f.out, reportJSON)); err != nil { // it is written last
		return nil, err
	}
	h, err := history.Read(filepath.Join(f.out, trial.HistoryFile))
	if err != nil {
		return nil, err
	}
	of := h.Run
	if of.Tested != hash || of.Target != f.target || of.Workload != f.workload || of.Faults != f.faults || of.Seed != f.seed ||
		of.TTL != int64(f.ttl) || of.For != int64(f.duration) {
		return nil, fmt.Errorf("%s contains another run: %s", f.out, of.Command)
	}
	v := verdict.Judge(h)
	return v, writeReports(v, f.out)
}

// stileBroken reports whether Stile broke a rule.
func (m *matrix) stileBroken() bool {
	for _, all := range m.verdicts {
		for _, v := range all {
			if strings.HasPrefix(v.Run.Target, "stile@") && len(v.Broken()) > 0 {
				return true
			}
		}
	}
	return false
}

// writeTable writes the results so far, with the versions and flags that are needed to repeat them:
// a table with one line for each row, which adds up the runs with all seeds; the runs that broke a
// rule; and the effect of each kind of fault on Stile's hot lock.
func (m *matrix) writeTable(w io.Writer) error {
	versions := map[string]string{}
	var sums, hot []*verdict.Verdict
	var broken, missing []string
	for _, r := range m.rows {
		all := m.verdicts[r.String()]
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
		if r.linger {
			sum.Run.Target += ", linger"
		}
		sums = append(sums, sum)
		if strings.HasPrefix(r.target, "stile@") && r.workload == workload.Hot && r.faults == "" && !r.linger {
			hot = append(hot, sum)
		}
	}
	var versionList, seeds []string
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		versionList = append(versionList, name+" "+versions[name])
	}
	for _, seed := range m.seeds {
		seeds = append(seeds, fmt.Sprint(seed))
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s; `go run ./lab/torture matrix --seeds %s --for %v`: a run for each row and seed; %s; %d CPUs.\n\n",
		time.Now().UTC().Format("2006-01-02 15:04"), strings.Join(seeds, ","), m.duration, strings.Join(versionList, ", "), runtime.NumCPU())
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
