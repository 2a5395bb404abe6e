package stilegocron_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilegocron"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/store/redisstore"
)

const name = "jobs/report"

func newClient(t *testing.T, st store.Store, hostname string) *stile.Client {
	t.Helper()
	client, err := stile.New(st, &stile.Options{TTL: time.Minute, Owner: stile.Owner{Host: hostname}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	return client
}

func newScheduler(t *testing.T, options ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Shutdown() })
	return s
}

// schedule adds a job that runs in each minute, and starts the scheduler.
func schedule(t *testing.T, s gocron.Scheduler, task gocron.Task, options ...gocron.JobOption) gocron.Job {
	t.Helper()
	job, err := s.NewJob(gocron.CronJob("* * * * *", false), task, append(options, gocron.WithName("report"))...)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	return job
}

func onError(f func(error)) gocron.JobOption {
	return gocron.WithEventListeners(gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { f(err) }))
}

// Runs notes when jobs run, and on which host.
type runs struct {
	mu      sync.Mutex
	started []string
}

func (r *runs) add(hostname string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = append(r.started, time.Now().UTC().Format("15:04:05 ")+hostname)
}

func (r *runs) check(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.started, want) {
		t.Errorf("got runs %q, want %q", r.started, want)
	}
}

// Without a period, a job is skipped while it runs on another host.
// Promise: P1
func TestLocker_skips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		var r runs
		start := func(hostname string, d time.Duration, listener gocron.EventListener) {
			locker := stilegocron.NewLocker(newClient(t, st, hostname), stilegocron.Options{Prefix: "jobs/"})
			s := newScheduler(t, gocron.WithDistributedLocker(locker))
			schedule(t, s, gocron.NewTask(func() { r.add(hostname); time.Sleep(d) }), gocron.WithEventListeners(listener))
		}
		skipped := make(chan error, 10)
		note := gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { skipped <- err })
		start("a", 90*time.Second, note)
		time.Sleep(61 * time.Second)
		start("b", 0, note)
		time.Sleep(100 * time.Second) // the second tick, and until the job has ended: Shutdown waits without the fake clock
		r.check(t, "00:01:00 a")
		for range 2 { // both hosts skip the second tick
			if err := <-skipped; !errors.Is(err, stile.ErrHeld) {
				t.Errorf("the run was skipped with %v, want ErrHeld", err)
			}
		}
	})
}

// With a period, three hosts run the job once in it. A failure counts too.
func TestLocker_oncePerPeriod(t *testing.T) {
	for _, c := range []struct {
		name string
		task func(l *stilegocron.Locker, f func()) gocron.Task
	}{
		{"task that succeeds", func(l *stilegocron.Locker, f func()) gocron.Task {
			return l.Task(func(context.Context, *stile.Hold) error { f(); return nil })
		}},
		{"task that fails", func(l *stilegocron.Locker, f func()) gocron.Task {
			return l.Task(func(context.Context, *stile.Hold) error { f(); return errors.New("disk full") })
		}},
	} {
		for _, perJob := range []bool{false, true} {
			t.Run(c.name+map[bool]string{true: ", locker of the job"}[perJob], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					st := memstore.New()
					var r runs
					for range 3 {
						l := stilegocron.NewLocker(newClient(t, st, ""), stilegocron.Options{Prefix: "jobs/", Every: time.Minute})
						task := c.task(l, func() { r.add(""); time.Sleep(time.Second) })
						if perJob {
							schedule(t, newScheduler(t), task, gocron.WithDistributedJobLocker(l))
						} else {
							schedule(t, newScheduler(t, gocron.WithDistributedLocker(l)), task)
						}
					}
					time.Sleep(3*time.Minute + 30*time.Second)
					r.check(t, "00:01:00 ", "00:02:00 ", "00:03:00 ")
				})
			})
		}
	}
}

// Clocks may differ by a tenth of the period.
func TestLocker_clocks(t *testing.T) {
	for _, c := range []struct {
		name string
		wait time.Duration // between the two calls; the first host's clock is ahead by as much if it is negative
		done bool
	}{
		{"at once", 0, true},
		{"within the period", 53 * time.Minute, true},
		{"in the next tick, early", 55 * time.Minute, false},
		{"in the next tick", time.Hour, false},
		{"the other clock is ahead by a little", -5 * time.Minute, true},
		{"the other clock is ahead by much", -7 * time.Minute, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newClient(t, memstore.New(), "")
				l := stilegocron.NewLocker(client, stilegocron.Options{Every: time.Hour})
				l.Task(nil)
				called := time.Now().Add(max(0, -c.wait)).Format(time.RFC3339Nano)
				err := client.Mutex(name).Do(t.Context(), func(ctx context.Context, hold *stile.Hold) error {
					return hold.SetRecord(ctx, []byte(`{"stile_once":1,"jobs":{"":{"success":{"called":"`+called+`","exit_code":0,"token":"1","owner":"b"}}}}`))
				})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(c.wait)
				_, err = l.Lock(t.Context(), name)
				if done := errors.Is(err, stilegocron.ErrDone); done != c.done || !done && err != nil {
					t.Errorf("Lock: %v, want ErrDone: %t", err, c.done)
				}
			})
		})
	}
}

// The host that runs the job dies. Another one, which waits, runs it in the same period.
// Promise: P5
func TestLocker_takesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		a, b := newClient(t, st, "a"), newClient(t, st, "b")
		la := stilegocron.NewLocker(a, stilegocron.Options{Prefix: "jobs/", Every: time.Minute})
		lb := stilegocron.NewLocker(b, stilegocron.Options{Prefix: "jobs/", Every: time.Minute})
		failed := make(chan error, 1)
		started := make(chan struct{})
		schedule(t, newScheduler(t, gocron.WithDistributedLocker(la)), la.Task(func(ctx context.Context, _ *stile.Hold) error {
			close(started)
			<-ctx.Done()
			return context.Cause(ctx)
		}), onError(func(err error) { failed <- err }))
		<-started
		var r runs
		schedule(t, newScheduler(t, gocron.WithDistributedLocker(lb)), lb.Task(func(context.Context, *stile.Hold) error {
			r.add("b")
			return nil
		}))
		time.Sleep(time.Minute + time.Second)
		r.check(t)
		_ = a.Close(t.Context())
		if err := <-failed; !errors.Is(err, stile.ErrLost) {
			t.Errorf("the job of the host that died failed with %v, want ErrLost", err)
		}
		synctest.Wait()
		r.check(t, "00:02:01 b")
	})
}

// A job that the scheduler has interrupted is not recorded, so that another host runs it. One that has succeeded
// nevertheless is.
func TestLocker_interrupted(t *testing.T) {
	for _, succeeds := range []bool{false, true} {
		t.Run(map[bool]string{true: "succeeds", false: "fails"}[succeeds], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newClient(t, memstore.New(), "a")
				l := stilegocron.NewLocker(client, stilegocron.Options{Prefix: "jobs/", Every: time.Minute})
				s := newScheduler(t, gocron.WithDistributedLocker(l))
				started := make(chan struct{})
				job := schedule(t, s, l.Task(func(ctx context.Context, _ *stile.Hold) error {
					close(started)
					<-ctx.Done()
					if succeeds {
						return nil
					}
					return ctx.Err()
				}))
				<-started
				if err := s.RemoveJob(job.ID()); err != nil { // ends the job's context
					t.Fatal(err)
				}
				synctest.Wait()
				time.Sleep(time.Second)
				if record, err := client.Record(t.Context(), name); err != nil || len(record) > 0 != succeeds {
					t.Errorf("the record is %q, %v; want one: %t", record, err, succeeds)
				}
				if line, err := client.Line(t.Context(), name); err != nil || len(line.Holders) > 0 {
					t.Errorf("the line is %+v, %v; want it empty", line, err)
				}
			})
		})
	}
}

// A run whose function panics, or is not called, is not recorded, so another host runs the job.
// Promise: P5
func TestLocker_notRun(t *testing.T) {
	for what, c := range map[string]struct {
		listener gocron.EventListener
		started  []string
	}{
		"panics":     {gocron.AfterJobRunsWithPanic(func(uuid.UUID, string, any) {}), []string{"00:01:00 a"}},
		"is skipped": {gocron.BeforeJobRunsSkipIfBeforeFuncErrors(func(uuid.UUID, string) error { return errors.New("not ready") }), nil},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newClient(t, memstore.New(), "a")
				l := stilegocron.NewLocker(client, stilegocron.Options{Prefix: "jobs/", Every: time.Minute})
				var r runs
				task := l.Task(func(context.Context, *stile.Hold) error {
					r.add("a")
					panic("broken")
				})
				schedule(t, newScheduler(t, gocron.WithDistributedLocker(l)), task, gocron.WithEventListeners(c.listener))
				time.Sleep(61 * time.Second)
				r.check(t, c.started...)
				if record, err := client.Record(t.Context(), name); err != nil || len(record) > 0 {
					t.Errorf("the record is %q, %v; want none", record, err)
				}
				if line, err := client.Line(t.Context(), name); err != nil || len(line.Holders) > 0 {
					t.Errorf("the line is %+v, %v; want it empty", line, err)
				}
			})
		})
	}
}

// A locker with a period has nothing to record for jobs that are made without it, and refuses to run them.
func TestLocker_needsTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := stilegocron.NewLocker(newClient(t, memstore.New(), ""), stilegocron.Options{Every: time.Minute})
		refused := make(chan error, 1)
		schedule(t, newScheduler(t, gocron.WithDistributedLocker(l)), gocron.NewTask(func() { t.Error("the job ran") }),
			gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { refused <- err })))
		time.Sleep(61 * time.Second)
		select {
		case err := <-refused:
			if !strings.Contains(err.Error(), "Locker.Task") {
				t.Errorf("got %v, want an error that names Locker.Task", err)
			}
		default:
			t.Error("the run was not refused")
		}
	})
}

// A task that has no lock is not run.
func TestLocker_taskWithoutLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := stilegocron.NewLocker(newClient(t, memstore.New(), ""), stilegocron.Options{})
		failed := make(chan error, 1)
		schedule(t, newScheduler(t), l.Task(func(context.Context, *stile.Hold) error {
			t.Error("the task ran")
			return nil
		}), onError(func(err error) { failed <- err }))
		if err := <-failed; err == nil {
			t.Error("the job has no error")
		}
	})
}

// One of two hosts leads and runs all jobs; when it resigns, the other one does.
// Promise: P1
func TestElector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		var r runs
		start := func(hostname string) *stilegocron.Elector {
			e := stilegocron.NewElector(newClient(t, st, hostname), "scheduler", hostname)
			t.Cleanup(func() { _ = e.Close() })
			synctest.Wait()
			schedule(t, newScheduler(t, gocron.WithDistributedElector(e)), e.Task(func(context.Context, *stile.Leadership) error {
				r.add(hostname)
				return nil
			}))
			return e
		}
		a, b := start("a"), start("b")
		if err := a.IsLeader(t.Context()); err != nil {
			t.Errorf("IsLeader of the first candidate: %v", err)
		}
		if err := b.IsLeader(t.Context()); !errors.Is(err, stilegocron.ErrNotLeader) {
			t.Errorf("IsLeader of the second candidate: %v, want ErrNotLeader", err)
		}
		time.Sleep(2*time.Minute + time.Second)
		for range 2 {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		r.check(t, "00:01:00 a", "00:02:00 a", "00:03:00 b")
		if err := a.IsLeader(t.Context()); !errors.Is(err, stilegocron.ErrNotLeader) {
			t.Errorf("IsLeader after Close: %v, want ErrNotLeader", err)
		}
	})
}

// The leadership is broken while a job runs: its context ends. The elector campaigns again.
// Promise: P3
func TestElector_loss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t, memstore.New(), "a")
		e := stilegocron.NewElector(client, "scheduler", "a")
		defer e.Close()
		failed := make(chan error, 1)
		schedule(t, newScheduler(t, gocron.WithDistributedElector(e)), e.Task(func(ctx context.Context, lead *stile.Leadership) error {
			if _, err := client.Break(t.Context(), lead.Name(), lead.Token()); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return nil
		}), onError(func(err error) { failed <- err }), gocron.WithLimitedRuns(1))
		if err := <-failed; !errors.Is(err, stile.ErrLost) {
			t.Errorf("the job failed with %v, want ErrLost", err)
		}
		time.Sleep(time.Second)
		if err := e.IsLeader(t.Context()); err != nil {
			t.Errorf("IsLeader after another campaign: %v", err)
		}
	})
}

// An elector whose campaign cannot succeed says why, and so does Close.
func TestElector_permanentError(t *testing.T) {
	e := stilegocron.NewElector(newClient(t, memstore.New(), ""), "/bad", "")
	if err := e.Close(); !errors.Is(err, stile.ErrBadName) {
		t.Errorf("Close: %v, want ErrBadName", err)
	}
	err := e.IsLeader(t.Context())
	if !errors.Is(err, stilegocron.ErrNotLeader) || !errors.Is(err, stile.ErrBadName) {
		t.Errorf("IsLeader: %v, want ErrNotLeader and ErrBadName", err)
	}
}

// Close gives up a campaign that waits, without an error.
func TestElector_closeWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t, memstore.New(), "")
		a := stilegocron.NewElector(client, "scheduler", "a")
		synctest.Wait()
		b := stilegocron.NewElector(client, "scheduler", "b")
		synctest.Wait()
		if err := errors.Join(b.Close(), a.Close()); err != nil {
			t.Error(err)
		}
	})
}

// On Redis, two schedulers run a job once in a period, and a holder that is broken is stopped.
// Promise: P1
func TestRedis(t *testing.T) {
	addr := testservers.StartRedis(t).Addr()
	open := func(hostname string) *stile.Client {
		cli, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableRetry: true, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cli.Close)
		st, err := redisstore.New(cli, nil)
		if err != nil {
			t.Fatal(err)
		}
		return newClient(t, st, hostname)
	}
	a, b := open("a"), open("b")
	broken, tookOver := make(chan error, 1), make(chan struct{}) // they may come in either order
	var first atomic.Bool
	first.Store(true)
	for _, client := range []*stile.Client{a, b} {
		l := stilegocron.NewLocker(client, stilegocron.Options{Prefix: "jobs/", Every: 1000 * time.Hour})
		s := newScheduler(t, gocron.WithDistributedLocker(l))
		task := l.Task(func(ctx context.Context, hold *stile.Hold) error {
			if first.Swap(false) {
				if _, err := b.Break(t.Context(), name, hold.Token()); err != nil {
					return err
				}
				<-ctx.Done()
				broken <- context.Cause(ctx)
				return ctx.Err()
			}
			close(tookOver)
			return nil
		})
		_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), task, gocron.WithName("report"))
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
	}
	if err := <-broken; !errors.Is(err, stile.ErrLost) {
		t.Errorf("the broken job ended with %v, want ErrLost", err)
	}
	<-tookOver
	third := stilegocron.NewLocker(a, stilegocron.Options{Prefix: "jobs/", Every: 1000 * time.Hour})
	third.Task(nil)
	if _, err := third.Lock(t.Context(), "report"); !errors.Is(err, stilegocron.ErrDone) {
		t.Errorf("Lock after the job has run: %v, want ErrDone", err)
	}
}
