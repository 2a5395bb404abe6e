package stilecron_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/robfig/cron/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilecron"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/store/redisstore"
)

const name = "jobs/report"

// everyMinute begins a tick at each full minute.
var everyMinute = schedule("* * * * *")

func schedule(spec string) cron.Schedule {
	s, err := cron.ParseStandard(spec)
	if err != nil {
		panic(err)
	}
	return s
}

// A host is a process with a Cron and a client.
type host struct {
	*stile.Client
	cron *cron.Cron
	log  *logger
	ctx  context.Context // of the wrappers
	stop context.CancelFunc
}

func newHost(t *testing.T, st store.Store, hostname string) *host {
	t.Helper()
	client, err := stile.New(st, &stile.Options{TTL: time.Minute, Owner: stile.Owner{Host: hostname}})
	if err != nil {
		t.Fatal(err)
	}
	h := &host{Client: client, cron: cron.New(), log: &logger{}}
	h.ctx, h.stop = context.WithCancel(context.Background())
	t.Cleanup(func() {
		h.stop()
		<-h.cron.Stop().Done()
		_ = client.Close(context.Background())
	})
	return h
}

// schedule adds a job that runs in each minute, and starts the Cron.
func (h *host) schedule(wrapper cron.JobWrapper, job cron.Job) {
	h.cron.Schedule(everyMinute, cron.NewChain(wrapper).Then(job))
	h.cron.Start()
}

// A logger is a [cron.Logger] that keeps all messages.
type logger struct {
	mu    sync.Mutex
	lines []string
}

func (l *logger) Info(msg string, keysAndValues ...any) {
	l.add(fmt.Sprint("info: ", msg, " ", keysAndValues))
}

func (l *logger) Error(err error, msg string, keysAndValues ...any) {
	l.add(fmt.Sprint("error: ", msg, " ", keysAndValues, ": ", err))
}

func (l *logger) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

// count returns the number of lines that contain all parts.
func (l *logger) count(parts ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			n++
		}
	}
	return n
}

func (l *logger) check(t *testing.T, want int, parts ...string) {
	t.Helper()
	if n := l.count(parts...); n != want {
		t.Errorf("got %d log lines with %q, want %d; all of them:\n%s", n, parts, want, strings.Join(l.lines, "\n"))
	}
}

// Runs notes when jobs run, and on which host.
type runs struct {
	mu      sync.Mutex
	started []string
	running int
	overlap bool
}

// job returns a job that takes d.
func (r *runs) job(hostname string, d time.Duration) cron.Job {
	return cron.FuncJob(func() {
		r.mu.Lock()
		r.started = append(r.started, time.Now().UTC().Format("15:04:05 ")+hostname)
		r.running++
		r.overlap = r.overlap || r.running > 1
		r.mu.Unlock()
		time.Sleep(d)
		r.mu.Lock()
		r.running--
		r.mu.Unlock()
	})
}

func (r *runs) check(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.started, want) {
		t.Errorf("got runs %q, want %q", r.started, want)
	}
	if r.overlap {
		t.Error("two jobs ran at the same time")
	}
}

func (r *runs) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.started)
}

// A job that runs longer than a minute on one host is skipped on both hosts meanwhile.
// Promise: P1
func TestSkipIfHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		a, b := newHost(t, st, "a"), newHost(t, st, "b")
		var r runs
		a.schedule(stilecron.SkipIfHeld(a.ctx, a.Client, name, a.log), r.job("a", 150*time.Second))
		time.Sleep(90 * time.Second) // a runs the job in the first tick, b joins before the second
		b.schedule(stilecron.SkipIfHeld(b.ctx, b.Client, name, b.log), r.job("b", 10*time.Second))
		time.Sleep(120*time.Second - time.Second)
		r.check(t, "00:01:00 a")
		a.log.check(t, 2, "info: skip", name, "held by a")
		b.log.check(t, 2, "info: skip", name, "held by a")
	})
}

// Two hosts run the job one after the other, in each tick.
// Promise: P1
func TestDelayIfHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		a, b := newHost(t, st, "a"), newHost(t, st, "b")
		var r runs
		for _, h := range []*host{a, b} {
			h.schedule(stilecron.DelayIfHeld(h.ctx, h.Client, name, h.log), r.job("x", 20*time.Second))
		}
		time.Sleep(2*time.Minute + 50*time.Second)
		r.check(t, "00:01:00 x", "00:01:20 x", "00:02:00 x", "00:02:20 x")
	})
}

// Three hosts run the job once in each tick, also when it takes longer than the interval.
func TestOncePerTick(t *testing.T) {
	for _, c := range []struct {
		name string
		job  time.Duration
		want []string
	}{
		{"short", time.Second, []string{"00:01:00", "00:02:00", "00:03:00", "00:04:00"}},
		// The second tick's run begins when that of the first has ended, and so on: none is forgotten.
		{"long", 90 * time.Second, []string{"00:01:00", "00:02:30", "00:04:00"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New()
				var r runs
				for range 3 {
					h := newHost(t, st, "")
					h.schedule(stilecron.OncePerTick(h.ctx, h.Client, name, everyMinute, h.log), r.job("", c.job))
				}
				time.Sleep(4*time.Minute + 30*time.Second)
				for i := range c.want {
					c.want[i] += " "
				}
				r.check(t, c.want...)
			})
		})
	}
}

// Each host decides by its own clock. Two hosts call the job for one tick at times that differ by as much as
// their clocks and their delays: only the order in which they come matters, not how much later they come.
func TestOncePerTick_clocks(t *testing.T) {
	hourly := schedule("0 * * * *")
	for _, c := range []struct {
		name string
		last time.Duration // the last call by the clock of its host, since noon
		call time.Duration // this call by the clock of its host
		want bool
	}{
		{"same tick", 0, 0, false},
		{"same tick, later", 0, 59*time.Minute + 59*time.Second, false},
		{"same tick, earlier", time.Minute, 0, false},
		{"next tick", 0, time.Hour, true},
		{"next tick, after a late call", 59 * time.Minute, time.Hour, true},
		{"ticks were missed", 0, 5*time.Hour + time.Minute, true},
		{"a clock that is ahead by less than a tick", 59 * time.Minute, time.Minute, false},
		{"a clock that was ahead by a tick or more", time.Hour, time.Minute, true},
		{"a clock that was ahead by a year", 365 * 24 * time.Hour, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				noon := time.Date(2000, 1, 3, 12, 0, 0, 0, time.Local)
				time.Sleep(time.Until(noon.Add(c.call)))
				h := newHost(t, memstore.New(), "a")
				record(t, h.Client, fmt.Sprintf(`{"stile_once":1,"jobs":{"":{"success":{"called":%q,"exit_code":0,"token":"1","owner":"b"}}}}`,
					noon.Add(c.last).UTC().Format(time.RFC3339Nano)))
				ran := false
				job := stilecron.OncePerTick(h.ctx, h.Client, name, hourly, h.log)(cron.FuncJob(func() { ran = true }))
				job.Run()
				if ran != c.want {
					t.Errorf("ran: %t, want %t", ran, c.want)
				}
				job.Run() // the call has been recorded
				if h.log.count("info: skip", "in this tick") == 0 {
					t.Errorf("the second call was not skipped: %q", h.log.lines)
				}
				h.log.check(t, map[bool]int{true: 1}[c.last-c.call >= time.Hour-time.Minute && c.want], "check the clocks")
			})
		})
	}
}

// record sets the record of the lock.
func record(t *testing.T, client *stile.Client, value string) {
	t.Helper()
	err := client.Mutex(name).Do(t.Context(), func(ctx context.Context, hold *stile.Hold) error {
		return hold.SetRecord(ctx, []byte(value))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The host that runs the job dies. A host that has waited runs it in the same tick.
// Promise: P5
func TestOncePerTick_takesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		a, b := newHost(t, st, "a"), newHost(t, st, "b")
		started, ended := make(chan struct{}), make(chan error, 1)
		a.schedule(stilecron.OncePerTick(a.ctx, a.Client, name, everyMinute, a.log), stilecron.Func(func(ctx context.Context, _ *stile.Hold) error {
			close(started)
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return ctx.Err()
		}))
		<-started
		var r runs
		b.schedule(stilecron.OncePerTick(b.ctx, b.Client, name, everyMinute, b.log), r.job("b", time.Second))
		time.Sleep(time.Minute) // b waits in the second tick
		synctest.Wait()
		r.check(t)
		_ = a.Close(t.Context())
		if err := <-ended; !errors.Is(err, stile.ErrLost) {
			t.Errorf("the context of a's job ended with %v, want ErrLost", err)
		}
		time.Sleep(time.Second)
		r.check(t, "00:02:00 b")
	})
}

// The error of a job is logged, and the job is not repeated in the same tick.
func TestOncePerTick_failure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		a, b := newHost(t, st, "a"), newHost(t, st, "b")
		var mu sync.Mutex
		n := 0
		for _, h := range []*host{a, b} {
			h.schedule(stilecron.OncePerTick(h.ctx, h.Client, name, everyMinute, h.log), stilecron.Func(func(context.Context, *stile.Hold) error {
				mu.Lock()
				defer mu.Unlock()
				n++
				return errors.New("disk full")
			}))
		}
		time.Sleep(2*time.Minute + time.Second)
		if mu.Lock(); n != 2 {
			t.Errorf("the job ran %d times in two ticks, want twice", n)
		}
		mu.Unlock()
		if n := a.log.count("error: the job failed", "disk full") + b.log.count("error: the job failed", "disk full"); n != 2 {
			t.Errorf("got %d errors in the logs, want 2", n)
		}
	})
}

// What is in the record belongs to another program: nothing is run, and nothing is overwritten.
func TestOncePerTick_foreignRecord(t *testing.T) {
	h := newHost(t, memstore.New(), "a")
	record(t, h.Client, "another program's")
	var r runs
	stilecron.OncePerTick(h.ctx, h.Client, name, everyMinute, h.log)(r.job("a", 0)).Run()
	r.check(t)
	h.log.check(t, 1, "error: the job was not run", name, "cannot be read")
	if value, err := h.Record(t.Context(), name); err != nil || string(value) != "another program's" {
		t.Errorf("the record is %q, %v; want it unchanged", value, err)
	}
}

// When the context of the wrapper ends, so do the wait for a lock, and the context of a Func. Nothing is run
// later.
func TestWrappers_context(t *testing.T) {
	wrappers := map[string]func(*host) cron.JobWrapper{
		"SkipIfHeld":  func(h *host) cron.JobWrapper { return stilecron.SkipIfHeld(h.ctx, h.Client, name, h.log) },
		"DelayIfHeld": func(h *host) cron.JobWrapper { return stilecron.DelayIfHeld(h.ctx, h.Client, name, h.log) },
		"OncePerTick": func(h *host) cron.JobWrapper {
			return stilecron.OncePerTick(h.ctx, h.Client, name, everyMinute, h.log)
		},
	}
	for kind, wrapper := range wrappers {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New()
				a, b := newHost(t, st, "a"), newHost(t, st, "b")
				ends := make(chan error, 1)
				a.schedule(wrapper(a), stilecron.Func(func(ctx context.Context, _ *stile.Hold) error {
					<-ctx.Done()
					ends <- ctx.Err()
					return ctx.Err()
				}))
				time.Sleep(time.Minute + time.Second)
				var r runs
				b.schedule(wrapper(b), r.job("b", 0))
				time.Sleep(time.Minute)
				b.stop()
				<-b.cron.Stop().Done() // nothing waits any more
				a.stop()
				<-a.cron.Stop().Done()
				if err := <-ends; err != context.Canceled {
					t.Errorf("the context of the job ended with %v, want %v", err, context.Canceled)
				}
				wrapper(a)(r.job("a", 0)).Run()
				r.check(t)
				if value, err := a.Record(t.Context(), name); err != nil || len(value) > 0 {
					t.Errorf("the record is %q, %v; want none, because the job was interrupted", value, err)
				}
			})
		})
	}
}

// The lock is broken while a job runs that cannot be stopped: the loss is logged, and the call is not recorded.
// Promise: P3
func TestWrappers_lossDuringPlainJob(t *testing.T) {
	h := newHost(t, memstore.New(), "a")
	job := cron.FuncJob(func() { breakLock(t, h.Client) })
	stilecron.OncePerTick(h.ctx, h.Client, name, everyMinute, h.log)(job).Run()
	h.log.check(t, 1, "error: the job has ended, but this is not recorded", "lost")
	stilecron.SkipIfHeld(h.ctx, h.Client, name, h.log)(job).Run()
	h.log.check(t, 2, "error: the lock was lost or its release is not confirmed", "lost")
}

// breakLock breaks the hold of the lock.
func breakLock(t *testing.T, client *stile.Client) {
	l, err := client.Line(t.Context(), name)
	if err != nil || len(l.Holders) != 1 {
		t.Errorf("the line is %+v, %v; want one holder", l, err)
		return
	}
	if _, err := client.Break(t.Context(), name, l.Holders[0].Token); err != nil {
		t.Error(err)
	}
}

// A job that panics releases the lock, and counts as not run.
func TestWrappers_panic(t *testing.T) {
	h := newHost(t, memstore.New(), "a")
	chain := cron.NewChain(cron.Recover(h.log), stilecron.OncePerTick(h.ctx, h.Client, name, everyMinute, h.log))
	chain.Then(cron.FuncJob(func() { panic("oops") })).Run()
	h.log.check(t, 1, "error: panic", "oops")
	var r runs
	chain.Then(r.job("a", 0)).Run()
	if r.len() != 1 {
		t.Error("the job was not run after a panic")
	}
}

// A Func without its wrapper would run without the lock.
func TestFunc_needsWrapper(t *testing.T) {
	h := newHost(t, memstore.New(), "a")
	job := stilecron.Func(func(context.Context, *stile.Hold) error {
		t.Error("the job ran")
		return nil
	})
	cron.NewChain(cron.Recover(h.log)).Then(job).Run()
	cron.NewChain(stilecron.SkipIfHeld(h.ctx, h.Client, name, h.log), cron.Recover(h.log)).Then(job).Run()
	h.log.check(t, 2, "error: panic", "must be wrapped directly")
}

// Without a logger, messages are discarded.
func TestWrappers_nilLogger(t *testing.T) {
	h := newHost(t, memstore.New(), "a")
	if _, err := h.Mutex(name).Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	stilecron.SkipIfHeld(h.ctx, h.Client, name, nil)(cron.FuncJob(func() { t.Error("the job ran") })).Run()
}

// On Redis, two hosts run a job once in a tick, and a holder that is broken is stopped.
// Promise: P1
func TestRedis(t *testing.T) {
	addr := testservers.StartRedis(t).Addr()
	open := func(hostname string) *host {
		cli, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableRetry: true, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cli.Close)
		st, err := redisstore.New(cli, nil)
		if err != nil {
			t.Fatal(err)
		}
		return newHost(t, st, hostname)
	}
	a, b := open("a"), open("b")
	yearly := schedule("@yearly") // a tick that no test sees the end of, except at New Year
	wrap := func(h *host, job cron.Job) cron.Job {
		return stilecron.OncePerTick(h.ctx, h.Client, name, yearly, h.log)(job)
	}

	broken := make(chan error, 1)
	wrap(a, stilecron.Func(func(ctx context.Context, hold *stile.Hold) error {
		if _, err := b.Break(t.Context(), name, hold.Token()); err != nil {
			return err
		}
		<-ctx.Done()
		broken <- context.Cause(ctx)
		return ctx.Err()
	})).Run()
	if err := <-broken; !errors.Is(err, stile.ErrLost) {
		t.Errorf("the context of the broken job ended with %v, want ErrLost", err)
	}

	var r runs
	var both sync.WaitGroup
	for _, h := range []*host{a, b, a, b} {
		both.Go(wrap(h, r.job("", 10*time.Millisecond)).Run)
	}
	both.Wait()
	if r.len() != 1 {
		t.Errorf("the job ran %d times in a tick, want once", r.len())
	}
	hold, err := a.Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stilecron.SkipIfHeld(b.ctx, b.Client, name, b.log)(r.job("b", 0)).Run()
	if err := hold.Release(t.Context()); err != nil {
		t.Error(err)
	}
	b.log.check(t, 1, "info: skip", "held by a")
	if r.len() != 1 {
		t.Error("the job ran although the lock was held")
	}
}
