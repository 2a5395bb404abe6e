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

// programsIn is the environment variable that says where the programs are that have been built before: inside there is no
// network to fetch what they are built from.
const programsIn = "STILE_TORTURE_PROGRAMS"

// runFlags are those of the verb run, and of what runs it.
type runFlags struct {
	target, workload, faults, out string
	built                         string // where the programs are, if they have been built
	duration, ttl                 time.Duration
	workers                       int
	seed                          uint64
	shipped                       bool
}

func newRun() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run --target TARGET",
		Short: "Run a workload on a target under faults, and judge it",
		Long: `Run starts the servers of a target and worker processes that take locks on them, injects faults, and writes what happened to
OUT/history.jsonl, which it then judges as "torture check" does. It needs Linux, and root or user namespaces.

A target is LOCKER@CLUSTER, or stile+MUTANT@CLUSTER for Stile with one rule broken on purpose; "torture list" has them all,
and the workloads and faults.

It exits with 0 if no rule was broken, 1 if one was, and 2 if it could not be run.`,
		Example: `  torture run --target stile@etcd3 --faults all --for 5m --seed 1
  torture run --target stile@redis --faults clock-jump,holder-pause --for 1m
  torture run --target concurrency@etcd3 --faults holder-pause --workload long
  torture run --target stile+no-deadline@redis --faults holder-cut --for 20s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.target, "target", "", "what takes the locks, on what")
	flags.StringVar(&f.workload, "workload", workload.Hot, "what the workers do with locks")
	flags.StringVar(&f.faults, "faults", "none", "which faults strike: a comma separated list, all or none")
	flags.DurationVar(&f.duration, "for", time.Minute, "how long")
	flags.DurationVar(&f.ttl, "ttl", 2*time.Second, "the time to live of the locks' sessions")
	flags.BoolVar(&f.shipped, "shipped", false, "run ZooKeeper with the times it is shipped with, which needs a --ttl of 8s")
	flags.IntVar(&f.workers, "workers", 6, "how many workers there are at a time")
	flags.Uint64Var(&f.seed, "seed", 1, "what chance begins with")
	flags.StringVar(&f.out, "out", "", "the directory for the history and the reports (default torture-out/TARGET-WORKLOAD-SEED)")
	flags.StringVar(&f.built, "programs", "", "the directory of the programs, which are not built then")
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
		return errors.New("--for must be positive, --ttl a second or more, and --workers between 1 and 100")
	}
	if f.shipped && (!strings.HasPrefix(target.Cluster, "zk") || f.ttl < 8*time.Second) {
		return errors.New("--shipped is about ZooKeeper, and needs a --ttl of 8s or more: four ticks")
	}
	config := trial.Config{
		Target: target, Workload: f.workload, Faults: f.faults, For: f.duration, TTL: f.ttl, Workers: f.workers, Seed: f.seed,
		Shipped: f.shipped, Command: f.command(), Status: say,
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
	here, err := site.Enter() // if this is outside, the rest happens inside
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

// programs builds what the run needs, outside, and finds it again inside. remove takes it away again.
func (f *runFlags) programs(ctx context.Context, target trial.Target) (p trial.Programs, remove func(), err error) {
	if f.built != "" {
		return trial.ProgramsIn(f.built), func() {}, nil
	}
	dir, built := os.LookupEnv(programsIn)
	remove = func() { _ = os.RemoveAll(dir) }
	if built {
		return trial.ProgramsIn(dir), remove, os.Unsetenv(programsIn)
	}
	if dir, err = os.MkdirTemp("", "torture"); err != nil {
		return p, nil, err
	}
	say("building " + target.String())
	if p, err = trial.Build(ctx, target, f.workload, dir); err == nil {
		err = os.Setenv(programsIn, dir)
	}
	if err != nil {
		remove()
	}
	return p, remove, err
}

// command is what repeats the run.
func (f *runFlags) command() string {
	return strings.Join(append([]string{"go run ./lab/torture"}, f.args()...), " ")
}

func (f *runFlags) args() []string {
	args := []string{
		"run", "--target", f.target, "--workload", f.workload, "--faults", f.faults, "--for", f.duration.String(),
		"--ttl", f.ttl.String(), "--workers", fmt.Sprint(f.workers), "--seed", fmt.Sprint(f.seed),
	}
	if f.shipped {
		args = append(args, "--shipped")
	}
	return args
}

// say tells a person how far things have come.
func say(what string) { fmt.Fprintln(os.Stderr, "torture:", what) }
