// Package stilegocron runs the jobs of a gocron scheduler (github.com/go-co-op/gocron/v2) on one of many hosts.
//
//	locker := stilegocron.NewLocker(client, stilegocron.Options{Prefix: "cron/", Every: 24 * time.Hour})
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	_, err = s.NewJob(
//		gocron.DailyJob(1, gocron.NewAtTimes(gocron.NewAtTime(3, 0, 0))),
//		locker.Task(func(ctx context.Context, hold *stile.Hold) error {
//			return backup(ctx, hold.Token()) // ctx ends if the lock is lost
//		}),
//		gocron.WithName("backup"), // the lock is cron/backup
//	)
//	s.Start()
//
// A [Locker] decides for each run of each job which host runs it. It can also be the locker of a single job, with
// gocron.WithDistributedJobLocker. An [Elector] chooses one host, which runs all jobs while it leads. A scheduler
// with an elector uses no lockers, so nothing keeps a new leader from repeating what the last one has just run.
// Use a Locker for jobs that must not be repeated.
//
// # What ends a job
//
// gocron cannot end a job whose lock is lost: its interfaces have no means for that. Nor does it report the error of
// Unlock. Jobs made with [Locker.Task] or [Elector.Task] get a context that ends with the lock, and report the
// loss as the job's error, which gocron passes to AfterJobRunsWithError. A job that is made with gocron.NewTask
// runs on after a loss, while another host may run it too; only the log of the client tells. Nor does gocron tell
// whether the function of such a job was run, or has panicked. So only runs of [Locker.Task] are recorded.
package stilegocron

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/history"
)

// ErrDone means that a job has already run in this period; see [Options].
var ErrDone = errors.New("the job has already run in this period")

// ErrNotLeader means that this host does not lead.
var ErrNotLeader = errors.New("this host is not the leader")

// Options configures a [Locker]. The zero value is ready for use.
type Options struct {
	// Prefix and the job's name make the name of the lock. Give every job a name (gocron.WithName): by default it
	// is that of its function, so that two jobs with one function have one lock, and a change of the code may
	// change the name.
	Prefix string
	// Every is the period in which a job runs once: the interval of the job's schedule. It needs jobs made with
	// [Locker.Task]; one made with gocron.NewTask runs once on each host. Zero or less means that
	// jobs are not recorded. Then the lock only keeps two hosts from running a job at the same time; if the job
	// takes less time than the clocks of the hosts differ, each host runs it. Jobs with other intervals need
	// a Locker of their own.
	Every time.Duration
}

// A Locker is a [gocron.Locker]. It is safe for concurrent use.
type Locker struct {
	client *stile.Client
	opts   Options

	hasTasks atomic.Bool // Task was called

	mu   sync.Mutex
	runs map[context.Context]*run // runs that hold their lock and have not begun, by the context of their job
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker returns a locker whose locks are the client's mutexes.
func NewLocker(client *stile.Client, opts Options) *Locker {
	return &Locker{client: client, opts: opts, runs: make(map[context.Context]*run)}
}

// Lock takes the lock for a run of the job with the given name. gocron calls it, and skips the run after an error,
// which it passes to the job's AfterLockError.
//
// Without Options.Every the lock is only tried: the error matches [stile.ErrHeld] if another host runs the job.
//
// With Options.Every a job runs once in each period. Lock returns [ErrDone] if the last run was called less than nine
// tenths of the period before. So the clocks of the hosts may differ by a tenth of the period, less the time by which
// the calls come late. While the job runs elsewhere, Lock waits until ctx ends, to take over if that host dies or
// loses the lock. A run of [Locker.Task] is recorded when its function has returned, also if it failed, as stile once
// records it; stile show prints it. It is not recorded, and so another host may run the job again, if the function
// panicked or was not called, or if it failed and the lock was lost or the scheduler stopped meanwhile. The record of
// a call that lies more than a tenth of the period in the future does not count. On a store without records, as
// Redlock is, the error matches [stile.ErrUnsupported]. If the locker has made no task, Lock fails: nothing would be
// recorded.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	if l.opts.Every > 0 && !l.hasTasks.Load() {
		return nil, errors.New("stilegocron: the job was not run because Options.Every needs jobs that are made with Locker.Task")
	}
	r := &run{locker: l, ctx: ctx, called: time.Now()}
	mutex := l.client.Mutex(l.opts.Prefix + key)
	var err error
	if l.opts.Every <= 0 {
		r.hold, err = mutex.TryLock(ctx)
	} else if err = r.read(mutex.Name()); err == nil { // if it is done, there is no need to join the line
		if r.hold, err = mutex.Lock(ctx); err == nil {
			if err = r.read(mutex.Name()); err != nil {
				err = errors.Join(err, r.hold.Release(ctx))
			}
		}
	}
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[ctx] = r
	return r, nil
}

// Task returns a task for a job whose lock is this locker's. The function's context ends when the lock is lost, with
// the [*stile.LostError] as its cause, and when gocron ends the job's context. The job's error is that of the
// function, joined with those of the record and of the release. The task releases the hold.
//
// If the run does not have a lock, the job's error says so, and the function is not called: the scheduler has an
// elector or another locker, or the job has the option WithDisabledDistributedJobLocker.
func (l *Locker) Task(f func(ctx context.Context, hold *stile.Hold) error) gocron.Task {
	l.hasTasks.Store(true)
	return gocron.NewTask(func(ctx context.Context) error {
		l.mu.Lock()
		r := l.runs[ctx] // gocron passes the same context to Lock and to the function
		delete(l.runs, ctx)
		l.mu.Unlock()
		if r == nil {
			return errors.New("stilegocron: the job was not run because it has no lock: give its scheduler, or the job, the Locker that has made the task")
		}
		inner, cancel := both(ctx, r.hold.Context())
		defer cancel()
		err := f(inner, r.hold) // if it panics, gocron calls Unlock
		return errors.Join(err, r.record(err), r.Unlock(ctx))
	})
}

// both returns a context that ends when either ends, with the values of the second.
func both(ctx, hold context.Context) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancelCause(hold)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return inner, func() { stop(); cancel(nil) }
}

// A run is a [gocron.Lock].
type run struct {
	locker *Locker
	ctx    context.Context // the job's; it is also the key in locker.runs
	called time.Time
	past   history.History
	hold   *stile.Hold
	once   sync.Once
}

// read reads what is recorded, and returns ErrDone if the job has run in this period.
func (r *run) read(name string) (err error) {
	if r.past, err = history.Read(r.ctx, r.locker.client, name); err != nil {
		return err
	}
	every := r.locker.opts.Every
	last := r.past.LastCall("")
	if since := r.called.Sub(last); !last.IsZero() && since < every-every/10 && since >= -every/10 {
		return fmt.Errorf("stilegocron: lock %q: %w: it was called at %s", name, ErrDone, last.Local().Format(time.DateTime))
	}
	return nil
}

// record records that the function of the task has returned err, if that is wanted and it was not interrupted.
func (r *run) record(err error) error {
	if r.locker.opts.Every <= 0 || err != nil && (r.ctx.Err() != nil || r.hold.Err() != nil) {
		return nil //nolint:nilerr // the task reports err
	}
	attempt := history.Attempt{Called: r.called, Owner: r.hold.Owner().String(), Token: r.hold.Token()}
	if err != nil {
		attempt.ExitCode = 1
	}
	return history.Write(r.hold.Context(), r.hold, r.past.With("", attempt, 0))
}

// Unlock releases the hold, unless the task has done so.
func (r *run) Unlock(context.Context) (err error) {
	r.once.Do(func() {
		r.locker.mu.Lock()
		if r.locker.runs[r.ctx] == r {
			delete(r.locker.runs, r.ctx)
		}
		r.locker.mu.Unlock()
		err = r.hold.Release(r.ctx)
	})
	return err
}

// An Elector is a [gocron.Elector]: one host leads, and runs the jobs. It is safe for concurrent use.
type Elector struct {
	name string
	stop context.CancelFunc
	done chan struct{} // closed when the campaign has ended

	mu   sync.Mutex
	lead *stile.Leadership // nil if this host does not lead
	err  error             // with which the campaign has ended
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector campaigns in the election of that name until [Elector.Close], and again after each loss, like
// [stile.Election.Run]. It does not wait. Others see the value, for example this host's name.
func NewElector(client *stile.Client, name, value string) *Elector {
	ctx, stop := context.WithCancel(context.Background())
	e := &Elector{name: name, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		err := client.Election(name).Run(ctx, value, func(ctx context.Context, lead *stile.Leadership) error {
			e.set(lead, nil)
			<-ctx.Done()
			e.set(nil, nil)
			return nil
		})
		e.set(nil, err)
	}()
	return e
}

func (e *Elector) set(lead *stile.Leadership, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lead, e.err = lead, err
}

// IsLeader returns nil if this host leads, by the clock and by all that is known of the store. It sends no request.
// Otherwise the error matches [ErrNotLeader]. If the campaign has ended, because the client was closed or the
// name is invalid for example, the error also matches that of [stile.Election.Run].
func (e *Elector) IsLeader(context.Context) error {
	_, err := e.leadership()
	return err
}

func (e *Elector) leadership() (*stile.Leadership, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.lead != nil && e.lead.Valid():
		return e.lead, nil
	case e.err != nil:
		return nil, fmt.Errorf("stilegocron: election %q: %w: %w", e.name, ErrNotLeader, e.err)
	}
	return nil, fmt.Errorf("stilegocron: election %q: %w", e.name, ErrNotLeader)
}

// Task returns a task for a job of a scheduler with this elector. The function's context ends when the leadership does,
// with its loss or [stile.ErrReleased] as the cause, and when gocron ends the job's context. If the host does not
// lead any more when the job begins, the function is not called, and the job's error matches [ErrNotLeader].
func (e *Elector) Task(f func(ctx context.Context, lead *stile.Leadership) error) gocron.Task {
	return gocron.NewTask(func(ctx context.Context) error {
		lead, err := e.leadership()
		if err != nil {
			return err
		}
		inner, cancel := both(ctx, lead.Context())
		defer cancel()
		return errors.Join(f(inner, lead), lead.Err())
	})
}

// Close resigns, or gives the campaign up, and waits until that is done. Shut the scheduler down first: Close does
// not wait for jobs. The error is that of the resignation, or that with which the campaign had ended before.
// Closing again returns the same.
func (e *Elector) Close() error {
	e.stop()
	<-e.done
	e.mu.Lock()
	defer e.mu.Unlock()
	if errors.Is(e.err, context.Canceled) {
		return nil // it was not leading
	}
	return e.err
}
