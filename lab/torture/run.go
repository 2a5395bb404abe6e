//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/lab/torture/site"
	"github.com/stilelock/stile/lab/torture/trial"
	"github.com/stilelock/stile/lab/torture/workload"
)

// programsVar is the environment variable with the directory of the programs, which are built
// before [site.Enter]: inside there is no network to download modules.
const programsVar = "STILE_TORTURE_PROGRAMS"

// runFlags are the flags of the run command, which smoke and matrix run too.
type runFlags struct {
	target, workload, faults, out string
	programDir                    string // where the programs are; empty if they have to be built
	duration, ttl, linger         time.Duration
	workers                       int
	seed                          uint64
	shipped                       bool
}

func newRun() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run --target TARGET",
		Short: "Run a workload on a target under faults, and judge it",
		Long: `Run starts the servers of a target and worker processes that use locks on them, lets faults strike, and records what happens
in OUT/history.jsonl. Then it judges that history as "torture check" does. It needs Linux, and root or user namespaces.

A target is LOCKER@CLUSTER, or stile+MUTANT@CLUSTER for Stile with a planted bug; "torture list" lists them all,
and the workloads and faults.

It exits with 0 if no rule was broken, 1 if one was, and 2 if it failed.`,
		Example: `  torture run --target stile@etcd3 --faults all --for 5m --seed 1
  torture run --target stile@redis --faults clock-jump,holder-pause --for 1m
  torture run --target concurrency@etcd3 --faults holder-pause --workload long
  torture run --target stile+no-deadline@redis --faults holder-cut --for 20s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.target, "target", "", "lock implementation and cluster")
	flags.StringVar(&f.workload, "workload", workload.Hot, "what the workers do with locks")
	flags.StringVar(&f.faults, "faults", "none", "faults that strike: a comma-separated list, all or none")
	flags.DurationVar(&f.duration, "for", time.Minute, "duration of the run")
	flags.DurationVar(&f.ttl, "ttl", 2*time.Second, "TTL of the locks' sessions")
	flags.DurationVar(&f.linger, "linger", 0, "Options.Linger of Stile's clients")
	flags.BoolVar(&f.shipped, "shipped", false, "run ZooKeeper with the ticks it ships with; needs a --ttl of at least 8s")
	flags.IntVar(&f.workers, "workers", 6, "number of workers at a time")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of the random choices")
	flags.StringVar(&f.out, "out", "", "directory for the history and the reports (default torture-out/TARGET-WORKLOAD-SEED)")
	flags.StringVar(&f.programDir, "programs", "", "directory of programs that are already built")
	_ = flags.MarkHidden("programs")
	_ = cmd.MarkFlagRequired("target")
	return cmd
}

func (f *runFlags) run(ctx context.Context) error {
	target, err := trial.ParseTarget(f.target)
	if err != nil {
		return err
	}
	if f.duration <= 0 || f.ttl < time.Second || f.workers < 1 || f.workers > 100 {
		return errors.New("--for must be positive, --ttl at least 1s, and --workers between 1 and 100")
	}
	if f.shipped && (!strings.HasPrefix(target.Cluster, "zk") || f.ttl < 8*time.Second) {
		return errors.New("--shipped needs ZooKeeper and a --ttl of at least 8s, which is four ticks")
	}
	config := trial.Config{
		Target: target, Workload: f.workload, Faults: f.faults, For: f.duration, TTL: f.ttl, Workers: f.workers, Seed: f.seed,
		Linger: f.linger, Shipped: f.shipped, Command: f.command(), Status: printStatus,
	}
	if _, err := config.Check(); err != nil { // before anything is built
		return err
	}
	if f.out == "" {
		f.out = filepath.Join("torture-out", fmt.Sprintf("%s-%s-%d", target, f.workload, f.seed))
	}
	if err := os.MkdirAll(f.out, 0o750); err != nil {
		return err
	}
	programs, remove, err := f.programs(ctx, target)
	if err != nil {
		return err
	}
	here, err := site.Enter() // outside it does not return: the program starts again, inside
	if err != nil {
		remove()
		return err
	}
	defer remove()
	config.Out = f.out
	path, err := trial.Run(ctx, here, config, programs)
	if err != nil {
		return err
	}
	return check(path, f.out, "text")
}

// programs builds the programs of the run, outside, and finds them again inside. remove removes
// them.
func (f *runFlags) programs(ctx context.Context, target trial.Target) (p trial.Programs, remove func(), err error) {
	if f.programDir != "" {
		return trial.ProgramsIn(f.programDir), func() {}, nil
	}
	dir, found := os.LookupEnv(programsVar)
	remove = func() { _ = os.RemoveAll(dir) }
	if found {
		return trial.ProgramsIn(dir), remove, os.Unsetenv(programsVar)
	}
	if dir, err = os.MkdirTemp("", "torture"); err != nil {
		return p, nil, err
	}
	printStatus("building " + target.String())
	if p, err = trial.Build(ctx, target, f.workload, dir); err == nil {
		err = os.Setenv(programsVar, dir)
	}
	if err != nil {
		remove()
	}
	return p, remove, err
}

// command returns the command that repeats the run.
func (f *runFlags) command() string {
	return strings.Join(append([]string{"go run ./lab/torture"}, f.args()...), " ")
}

func (f *runFlags) args() []string {
	args := []string{
		"run", "--target", f.target, "--workload", f.workload, "--faults", f.faults, "--for", f.duration.String(),
		"--ttl", f.ttl.String(), "--workers", fmt.Sprint(f.workers), "--seed", fmt.Sprint(f.seed),
	}
	if f.linger > 0 {
		args = append(args, "--linger", f.linger.String())
	}
	if f.shipped {
		args = append(args, "--shipped")
	}
	return args
}

// printStatus prints the progress of the command.
func printStatus(text string) { fmt.Fprintln(os.Stderr, "torture:", text) }
