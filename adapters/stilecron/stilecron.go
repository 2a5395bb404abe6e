// Package stilecron runs the jobs of a cron.Cron (github.com/robfig/cron/v3) under locks, so that the same
// schedule can run on many hosts.
//
//	nightly, err := cron.ParseStandard("0 3 * * *")
//	c := cron.New()
//	c.Schedule(nightly, cron.NewChain(
//		stilecron.OncePerTick(ctx, client, "nightly-backup", nightly, logger),
//	).Then(stilecron.Func(func(ctx context.Context, hold *stile.Hold) error {
//		return backup(ctx, hold.Token()) // ctx ends if the lock is lost
//	})))
//	c.Start()
//
// There are three wrappers:
//
//   - [SkipIfHeld] skips a job while it runs on another host
//   - [DelayIfHeld] waits until it has ended there
//   - [OncePerTick] runs it on one host in each tick of its schedule
//
// The first two are [cron.SkipIfStillRunning] and [cron.DelayIfStillRunning] for many hosts. They do not keep
// a host from running a job that another host has just run: if the job takes less time than the clocks of the
// hosts differ, each host runs it. Use OncePerTick for jobs that must not be repeated.
//
// # What ends a job
//
// A [Func] gets a context. It ends when the lock is lost, and when the context ends that the wrapper was made
// with. Every other [cron.Job] has no context, and so cannot be stopped: if the lock is lost while such a job
// runs, the loss is logged when it has ended, and another host may have run it at the same time.
//
// [cron.Cron.Stop] ends neither the jobs nor their wait for a lock. End the context of the wrappers, then wait
// for the context that Stop returns.
//
// A wrapper finds out that a job is a Func only if no other wrapper is between the two: put Stile's wrapper
// last in a chain, after cron.Recover for example.
package stilecron

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/history"
)

// A Func is a job that knows its lock. Its context ends when the lock is lost, with the [*stile.LostError] as
// its cause, and when the context of the wrapper ends; the Func should then return. The context has the values
// of [stile.Hold.Context]. The wrapper releases the hold. An error is logged.
type Func func(ctx context.Context, hold *stile.Hold) error

// Run makes a Func a [cron.Job], and panics: a Func can run only in a wrapper of this package. If there is one,
// another wrapper is between the two.
func (f Func) Run() {
	panic("stilecron: a Func must be wrapped directly by SkipIfHeld, DelayIfHeld or OncePerTick: put that wrapper last in its chain")
}

// SkipIfHeld returns a wrapper that runs a job only if nobody holds the mutex of that name or waits for it, and
// holds it while the job runs. A job that is skipped is logged at Info level, with the holder. A job that is
// not run because the lock could not be requested is logged as an error.
//
// The jobs' contexts end with ctx, and none is started after it has ended. A nil logger discards what is logged.
// The wrapper is safe for concurrent use.
func SkipIfHeld(ctx context.Context, client *stile.Client, name string, logger cron.Logger) cron.JobWrapper {
	l := newLock(client, name, logger)
	return l.wrapper(func(job cron.Job) {
		hold, err := l.mutex.TryLock(ctx)
		if err != nil {
			l.notRun(ctx, err)
			return
		}
		defer l.release(ctx, hold)
		l.logFailure(l.run(ctx, hold, job))
	})
}

// DelayIfHeld returns a wrapper that waits in line for the mutex of that name, until ctx ends, and holds it while
// the job runs. So every host runs the job in every tick, one after the other. If the job takes longer than the
// interval between two ticks, more and more calls wait; put [cron.SkipIfStillRunning] first in the chain to have at
// most one on each host. For everything else it is like [SkipIfHeld].
func DelayIfHeld(ctx context.Context, client *stile.Client, name string, logger cron.Logger) cron.JobWrapper {
	l := newLock(client, name, logger)
	return l.wrapper(func(job cron.Job) {
		hold, err := l.mutex.Lock(ctx)
		if err != nil {
			l.notRun(ctx, err)
			return
		}
		defer l.release(ctx, hold)
		l.logFailure(l.run(ctx, hold, job))
	})
}

// OncePerTick returns a wrapper that runs a job on one host in each tick of its schedule. A host that calls the job
// while it runs elsewhere waits, and takes over if that host dies or loses the lock. When the job has ended, the
// call is recorded in the store, in one step with a check that the lock is still held, and all other hosts skip
// the tick. So a job runs at least once in each tick in which a host is up and reaches the store, and again only
// if it was not recorded that it has ended: because the host died, the lock was lost, the Func returned an error
// after its context had ended, or the job panicked. Any other error of a Func is recorded as a failure, is logged,
// and is not repeated before the next tick. The record is that of stile once: stile show prints it, and stile once --forget
// removes it.
//
// Each host decides by its own clock which tick it is in. A call is skipped if the schedule has no tick between the
// last recorded call and this one. So the clocks may differ by anything less than the interval between two ticks,
// and it does not matter how long the job takes. A record from a later tick than the next does not count, because
// that host's clock was wrong; this is logged.
//
// The schedule must be that of the job, and the same on all hosts. If they are in different time zones, or the Cron
// has a location of its own, name it in the schedule: "CRON_TZ=UTC 0 3 * * *". With "@every 1h" the hosts have
// different ticks; then the job runs at most once in such an interval. On a store without records, as Redlock
// is, no job is run, and that is logged. For everything else OncePerTick is like [DelayIfHeld].
func OncePerTick(ctx context.Context, client *stile.Client, name string, schedule cron.Schedule, logger cron.Logger) cron.JobWrapper {
	l := newLock(client, name, logger)
	return l.wrapper(func(job cron.Job) {
		called := time.Now()
		if past, err := history.Read(ctx, client, name); err != nil || done(past, schedule, called) { // usually there is no need to join the line
			l.notRun(ctx, err)
			return
		}
		hold, err := l.mutex.Lock(ctx)
		if err != nil {
			l.notRun(ctx, err)
			return
		}
		defer l.release(ctx, hold)
		past, err := history.Read(ctx, client, name)
		if err != nil || done(past, schedule, called) {
			l.notRun(ctx, err)
			return
		}
		if last := lastCall(past); inFuture(last, schedule, called) {
			err := fmt.Errorf("it is said to be of %s, in the future: check the clocks of the hosts", last.Format(time.DateTime))
			l.logger.Error(err, "the last call does not count", "lock", name)
		}
		err = l.run(ctx, hold, job)
		l.logFailure(err)
		if err != nil && (ctx.Err() != nil || hold.Context().Err() != nil) {
			return // interrupted
		}
		if err := record(hold, past, called, err); err != nil {
			l.logger.Error(err, "the job has ended, but this is not recorded, so another host may run it again", "lock", name)
		}
	})
}

// A lock is what the wrappers share.
type lock struct {
	mutex  *stile.Mutex
	logger cron.Logger
}

func newLock(client *stile.Client, name string, logger cron.Logger) lock {
	if logger == nil {
		logger = cron.DiscardLogger
	}
	return lock{client.Mutex(name), logger}
}

// wrapper returns a wrapper that calls run with the wrapped job.
func (l lock) wrapper(run func(job cron.Job)) cron.JobWrapper {
	return func(job cron.Job) cron.Job { return cron.FuncJob(func() { run(job) }) }
}

// run runs the job under the hold, and returns the error of a Func.
func (l lock) run(ctx context.Context, hold *stile.Hold, job cron.Job) error {
	f, ok := job.(Func)
	if !ok {
		job.Run()
		return nil
	}
	inner, cancel := context.WithCancelCause(hold.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	return f(inner, hold)
}

// notRun logs why a job was not run. It is no error that the lock is held, that the tick is done (nil), or that ctx
// has ended.
func (l lock) notRun(ctx context.Context, err error) {
	switch {
	case err == nil:
		l.logger.Info("skip", "lock", l.mutex.Name(), "reason", "another host has run the job in this tick")
	case errors.Is(err, stile.ErrHeld) || ctx.Err() != nil:
		l.logger.Info("skip", "lock", l.mutex.Name(), "reason", err)
	default:
		l.logger.Error(err, "the job was not run", "lock", l.mutex.Name())
	}
}

func (l lock) logFailure(err error) {
	if err != nil {
		l.logger.Error(err, "the job failed", "lock", l.mutex.Name())
	}
}

func (l lock) release(ctx context.Context, hold *stile.Hold) {
	if err := hold.Release(ctx); err != nil {
		l.logger.Error(err, "the lock was lost or its release is not confirmed", "lock", l.mutex.Name())
	}
}

// done reports whether the job has been called in the tick to which a call belongs.
func done(past history.History, schedule cron.Schedule, called time.Time) bool {
	last := lastCall(past)
	if last.IsZero() || inFuture(last, schedule, called) {
		return false
	}
	next := schedule.Next(last)
	return next.IsZero() || next.After(called)
}

// inFuture reports whether the last call is from a later tick than the one after a call.
func inFuture(last time.Time, schedule cron.Schedule, called time.Time) bool {
	next := schedule.Next(called)
	return !next.IsZero() && !last.Before(next)
}

// lastCall returns the time of the last call that is recorded, in the local time zone as [cron.Cron] has it, or zero.
func lastCall(h history.History) time.Time {
	last := h.LastCall("")
	if last.IsZero() {
		return last
	}
	return last.Local()
}

// record records that a call has ended, while the lock is held.
func record(hold *stile.Hold, past history.History, called time.Time, failure error) error {
	attempt := history.Attempt{Called: called, Owner: hold.Owner().String(), Token: hold.Token()}
	if failure != nil {
		attempt.ExitCode = 1
	}
	return history.Write(hold.Context(), hold, past.With("", attempt, 0))
}
