package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/cmd/stile/internal/child"
)

// run is one call of the verb.
type run struct {
	execution
	flock flockFlags
}

func newRun(stdio Stdio) *cobra.Command {
	return newRunInto(&run{execution: execution{request: newRequest(stdio)}})
}

// newRunInto returns the verb, which stores its flags and arguments in r.
func newRunInto(r *run) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "run [flags] NAME -- COMMAND [ARGUMENT…]",
		Short:      "Run a command while holding a lock",
		SuggestFor: []string{"lock", "exec", "flock", "acquire", "with"},
		Long: `Acquire the lock NAME, run the command, and release the lock.

If the lock cannot be kept, because the store is unreachable or the lock was broken, the
command is stopped with everything it has started: --signal (TERM) first, then KILL, before the
next holder is admitted. (If the lock was broken, two commands may overlap briefly; use
STILE_TOKEN, which increases with every holder, to tell them apart.)

The command inherits stdin, stdout, stderr and the terminal. Signals are forwarded to it.
If acquiring takes more than a second, a status line on the terminal shows the holder.

By default one command runs at a time. With -s it shares the lock with others that use -s, as
the readers of a read-write lock do, and excludes those without -s. With --slots N at most N
commands run at a time; all must name the same N. Commands get the lock in order of arrival.
With --all it takes the locks of several names, all exclusive, without deadlock among those that
use --all. It joins the lines of all names in one step (on Redis Cluster and Redlock it takes one
lock after another).

A NAME that begins with /, ./ or ../ is a path, as with flock: the lock's name is the
absolute path without its first slash. No file is created or opened. flock's -e, -o, --nb and
--timeout are accepted.

Environment of the command:
  STILE_NAME    the name of the lock; empty with --all
  STILE_TOKEN   the fencing token; empty with --all
  STILE_TOKENS  the fencing tokens by name, in JSON
  STILE_SLOT    with --slots N, a number from 0 to N-1 that no other of these commands has
  STILE_OWNER   the holder, as others see it
  STILE_TTL     the TTL, in seconds
  STILE_URL     the store; a password in --url is left out, one in STILE_URL is not
  STILE_HELD    these locks and those of the enclosing stile runs, in JSON

Exit codes:
  the command's own, or 128+N if signal N ended it
  75   the lock could not be acquired (-n, -w); -E chooses another
  79   the lock was lost, and the command was stopped or not started, or had just ended
  124  the command ran for too long and was stopped (--run-timeout)
  125  stile failed, was used wrongly, or waited too long for the store; the command was not run
  126  the command cannot be executed
  127  the command was not found
  128+N  signal N ended the wait

A DURATION is in seconds (5, 0.5) or has units (500ms, 1m30s).`,
		Example: `  stile run nightly-backup -- ./backup.sh
  stile run -n reindex -- ./reindex --all; test $? = 75 && echo "somebody else is at it"
  stile run -w 30 --ttl 10s deploy/web -- sh -c 'echo "token $STILE_TOKEN"; make deploy'
  stile run -n -q -E 0 --min-hold 50s report -- ./report   # in a crontab of several hosts
  stile run -n /var/lock/backup.lock ./backup.sh           # instead of flock -n …
  stile run --run-timeout 1h --ttl 60 -k 20 --reason "ticket 812" migrate -- ./migrate up
  stile run -s catalog -- ./report && stile run catalog -- ./rebuild
  stile run --slots 3 builds -- make -j4
  stile run --slots 4 gpus -- sh -c 'CUDA_VISIBLE_DEVICES=$STILE_SLOT ./train'
  stile run --all accounts orders -- ./reconcile           # tokens in STILE_TOKENS
  stile run --url etcd://db1:2379,db2:2379/team -c 'dump | gzip >dump.gz' backup`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := r.flock.refused(cmd.Flags()); err != nil {
				return err
			}
			return r.take(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after NAME belong to the command
	r.addFlags(flags)
	r.addWaitFlags(flags)
	r.kind.addFlags(flags)
	flags.Var(&r.minHold, "min-hold", "keep the lock for at least this long, even if the command ends sooner")
	flags.Var(&r.runTimeout, "run-timeout", "stop the command when it has run for this long; 0 means never")
	r.flock.add(flags)
	return cmd
}

func (r *run) run(ctx context.Context) error {
	if err := r.prepare(); err != nil {
		return err
	}
	signals := child.Listen()
	defer signals.Close()
	ctx, cancel := context.WithCancel(ctx) // ends the use of the local server, however long the last output takes
	defer cancel()
	l, err := r.acquire(ctx, signals, r.owner)
	if err != nil {
		return err
	}
	defer l.close()

	result, err := r.runUnder(l, signals)
	if err != nil {
		return err
	}
	l.keepFor(signals, time.Duration(r.minHold)-time.Since(l.obtained))
	return exitFor(result)
}
