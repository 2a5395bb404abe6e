//go:build linux

// Package trial runs one trial: a target, a workload and faults, from the start of the servers to
// the last line of the history. It does not judge the history.
package trial

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/lab/torture/nemesis"
	"github.com/stilelock/stile/lab/torture/observer"
	"github.com/stilelock/stile/lab/torture/site"
	"github.com/stilelock/stile/lab/torture/workload"
)

// HistoryFile is the name of the file that contains the history of a run.
const HistoryFile = "history.jsonl"

// Config configures a run.
type Config struct {
	Target   Target
	Workload string
	// Faults is a list of faults, for [nemesis.Parse].
	Faults string
	// For is the minimal time for which workers work and faults strike. Starting and ending a run
	// takes some ten seconds more.
	For time.Duration
	// TTL is the TTL of the locks' sessions.
	TTL time.Duration
	// Linger is [stile.Options.Linger] of Stile's clients.
	Linger time.Duration
	// Shipped runs ZooKeeper with the ticks that it ships with; see [site.Options].
	Shipped bool
	// Workers is the number of workers at a time.
	Workers int
	// Seed determines the faults and the workers' random choices.
	Seed uint64
	// Out is the directory for the history, "history.jsonl", and for the standard error of the
	// processes, "words.txt".
	Out string
	// Command is the command that repeats the run.
	Command string
	// Status is called with the progress of the run from time to time.
	Status func(string)
}

// Check returns the requested faults, or an error if the workload does not exist, or it or a fault is
// not possible. It uses only Target, Workload and Faults.
func (c Config) Check() ([]nemesis.Fault, error) {
	if err := workload.Check(c.Workload, c.Target.Locker, c.Target.Cluster); err != nil {
		return nil, err
	}
	return nemesis.Parse(c.Faults, c.Target.Cluster)
}

// prefix is the prefix of the names of all locks.
const prefix = "torture/"

type run struct {
	Config

	programs Programs
	faults   []nemesis.Fault
	network  *site.Network
	cluster  *site.Cluster
	observer observer.Observer
	recorder *history.Recorder
	tracker  *tracker
	progress *progress
	output   *os.File
	sockets  string
}

// Run runs a trial at a site, and returns the path of the history. Faults and their consequences
// are no errors. After an error, the history proves nothing.
func Run(ctx context.Context, here *site.Site, c Config, programs Programs) (string, error) {
	r := &run{Config: c, programs: programs, tracker: newTracker(), progress: &progress{}, sockets: here.Dir()}
	var err error
	if r.faults, err = c.Check(); err != nil {
		return "", err
	}
	if r.network, err = here.Network(); err != nil {
		return "", err
	}
	defer r.network.Close()
	if r.output, err = openOutput(filepath.Join(c.Out, "words.txt")); err != nil {
		return "", err
	}
	defer r.output.Close()
	return r.run(ctx)
}

func (r *run) run(ctx context.Context) (string, error) {
	r.Status("starting " + r.Target.Cluster)
	var err error
	opts := nemesis.Options(r.faults)
	opts.Shipped = r.Shipped
	if r.cluster, err = site.Start(ctx, r.network, r.Target.Cluster, opts); err != nil {
		return "", err
	}
	defer r.cluster.Close()
	ctx, cancel := r.cancelOnCrash(ctx)
	defer cancel()
	if r.observer, err = observer.Open(r.Target.store(), r.cluster.DirectAddrs(), prefix, r.Target.token); err != nil {
		return "", err
	}
	defer r.observer.Close()

	path := filepath.Join(r.Out, HistoryFile)
	file, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	header, err := r.header(ctx)
	if err != nil {
		return "", err
	}
	r.progress.run = header
	r.recorder, err = history.Record(r.socket("recorder"), history.NewWriter(file, header), func(e history.Event) {
		r.tracker.update(e)
		r.progress.add(e)
	})
	if err != nil {
		return "", err
	}
	err = r.work(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("%w\nThe output of the servers is in %s", err, r.Out), r.cluster.SaveLogs(r.Out))
	}
	return path, errors.Join(err, r.recorder.Close())
}

// cancelOnCrash returns a context that is canceled when a server ends that no fault has killed,
// since the workers' behavior without it proves nothing.
func (r *run) cancelOnCrash(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, fail := context.WithCancelCause(ctx)
	go func() {
		select {
		case err := <-r.cluster.Crashed():
			summary, _, _ := strings.Cut(err.Error(), ";")
			r.Status(summary)
			fail(err)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { fail(nil) }
}

// work runs the workers and the faults, after the servers, the observer and the recorder have
// started.
func (r *run) work(ctx context.Context) error {
	resource, err := r.startProcess(nil, r.config("resource"), "resource")
	if err != nil {
		return err
	}
	defer resource.stop(5 * time.Second)
	followCtx, stopFollowing := context.WithCancel(ctx)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		r.observer.Follow(followCtx, func(e history.Entry) {
			r.recorder.Add(history.Event{At: history.Now(), Entry: &e})
		})
	}()
	defer func() { stopFollowing(); <-followed }()
	if r.Workload == workload.Crowd {
		measured := make(chan struct{})
		go func() { defer close(measured); r.measureLines(followCtx) }()
		defer func() { stopFollowing(); <-measured }()
	}

	nodes, err := r.nodes()
	if err != nil {
		return err
	}
	workers := &workerPool{run: r, stopTimeout: 3*r.TTL + r.maxHoldTime() + busyMargin}
	for _, node := range nodes {
		if err := workers.start(node); err != nil {
			return errors.Join(err, workers.stopAll())
		}
	}
	r.injectFaults(ctx, workers)
	r.Status("stopping the workers")
	r.recorder.Add(history.Event{At: history.Now(), Stopping: &history.Stopping{}})
	if err := errors.Join(workers.stopAll(), context.Cause(ctx)); err != nil {
		return err
	}
	return r.inspect(ctx, nodes[0])
}

// measureLines records the lengths of the lines five times a second, except while the store cannot be
// read.
func (r *run) measureLines(ctx context.Context) {
	ticks := time.NewTicker(time.Second / 5)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
		for _, lock := range workload.Locks(r.Workload, prefix) {
			readCtx, cancel := context.WithTimeout(ctx, r.TTL)
			n, err := r.observer.Length(readCtx, lock)
			cancel()
			if err == nil {
				r.recorder.Add(history.Event{At: history.Now(), Line: &history.Line{Lock: lock, Length: n}})
			}
		}
	}
}

// busyMargin is added to timeouts, for busy machines.
const busyMargin = time.Minute

// maxHoldTime returns the longest time for which the workload intends to hold a lock, or to wait for it at
// the end; zero if that is short.
func (r *run) maxHoldTime() time.Duration {
	switch r.Workload {
	case workload.Long:
		return 6 * r.TTL
	case workload.Crowd: // its callers wait until they have had the lock
		return 10 * r.TTL
	default:
		return 0
	}
}

// nodes creates a node for each worker.
func (r *run) nodes() ([]*site.Node, error) {
	var nodes []*site.Node
	for i := range r.Workers {
		node, err := r.network.Node(fmt.Sprintf("n%d", i+1))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// injectFaults lets the faults strike for the configured time. It continues for up to a minute, for
// busy machines, until every fault requested by name has been tried, there were enough grants, and
// everything has been reached that the run promises. In the end all faults are healed.
func (r *run) injectFaults(ctx context.Context, workers *workerPool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go r.reportStatus(ctx)
	var mu sync.Mutex
	attempted, strikes := map[string]bool{}, 0
	world := &nemesis.World{
		Cluster: r.cluster,
		Workers: workers.running,
		TTL:     r.TTL,
		Record: func(e history.Event) {
			mu.Lock()
			if e.Fault != nil {
				attempted[e.Fault.Name], strikes = true, max(strikes, e.Fault.ID)
			}
			mu.Unlock()
			r.recorder.Add(e)
		},
		Progress: r.tracker.grantCount,
		Evict:    r.evict,
		Compact:  r.observer.Compact,
	}
	runFaults := func(d time.Duration, faults []nemesis.Fault, severe bool) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		nemesis.Run(ctx, world, faults, nemesis.Schedule{Seed: r.Seed, PriorStrikes: strikes, Severe: severe})
	}
	runFaults(r.For, r.faults, false)
	for end := time.Now().Add(busyMargin); time.Now().Before(end) && ctx.Err() == nil; {
		left := slices.DeleteFunc(slices.Clone(r.faults), func(f nemesis.Fault) bool { return attempted[f.Name] })
		if r.Faults == "all" {
			left = nil
		}
		missing := r.progress.missing()
		before := r.tracker.grantCount()
		if len(left) == 0 && len(missing) == 0 && before >= minGrants {
			return
		}
		for _, f := range r.faults {
			if leadsTo(f.Name, missing) && !slices.ContainsFunc(left, func(other nemesis.Fault) bool { return other.Name == f.Name }) {
				left = append(left, f)
			}
		}
		if len(missing) > 0 {
			r.Status("not reached yet: " + strings.Join(missing, "; "))
		}
		round := busyMargin / 12
		if len(left) > 0 {
			round = max(round, 3*r.TTL) // a fault of up to 2.5 TTLs, and the pause before it
		}
		runFaults(round, left, true)
		if len(left) == 0 && r.tracker.grantCount() == before {
			return // more time would not help
		}
	}
}

// minGrants is the number of grants that a run needs to prove anything. Package verdict requires
// only ten, which leaves a margin for grants of killed workers.
const minGrants = 20

// evict deletes the entry of a worker that holds a lock or, with all, the whole line of the lock.
func (r *run) evict(ctx context.Context, all bool) (history.Fault, error) {
	// After another fault it may take a while until a worker holds a lock again.
	for end := time.Now().Add(r.TTL); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		for lock, worker := range r.tracker.locks() { // in the random order of maps
			evicted, err := r.observer.Evict(ctx, lock, all)
			if evicted.What != "" || err != nil {
				return history.Fault{On: worker, Lock: lock, What: evicted.What, Took: evicted.Took}, err
			}
		}
	}
	return history.Fault{}, nil
}

// inspect records the keys that remain in the store after all workers and sessions have ended, and
// makes the last attempt at every lock.
func (r *run) inspect(ctx context.Context, node *site.Node) error {
	r.Status("reading what remains in the store")
	left, err := r.awaitEmpty(ctx)
	if err != nil {
		return fmt.Errorf("read what remains in the store: %w", err)
	}
	for _, lock := range slices.Sorted(maps.Keys(left)) {
		r.recorder.Add(history.Event{At: history.Now(), Leftovers: &history.Leftovers{Lock: lock, Keys: left[lock]}})
	}
	locks := workload.Locks(r.Workload, prefix)
	finalCtx, cancel := context.WithTimeout(ctx, 2*busyMargin+time.Duration(len(locks))*time.Second/4)
	defer cancel()
	return r.runFinal(finalCtx, node, locks)
}

// awaitEmpty waits until the store has no keys left, and returns those that are left in the end.
// That takes no time unless a worker was killed or a session was not closed. Such a session ends
// after its TTL. etcd looks for expired leases twice a second and extends all leases by their TTL
// after an election, which takes longer. A busy machine gets extra time, which hides no error: a
// key that is left behind by mistake stays forever, or for as long as a session renews it.
func (r *run) awaitEmpty(ctx context.Context) (map[string][]string, error) {
	const extraTime = 15 * time.Second
	for end := time.Now().Add(2*r.TTL + time.Second + extraTime); ; {
		lookCtx, cancel := context.WithTimeout(ctx, busyMargin)
		left, err := r.observer.Remaining(lookCtx)
		cancel()
		if err == nil && len(left) == 0 || time.Now().After(end) {
			return left, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// reportStatus calls Status with the progress from time to time.
func (r *run) reportStatus(ctx context.Context) {
	began := time.Now()
	for tick := time.NewTicker(5 * time.Second); ; {
		select {
		case <-tick.C:
			r.Status(fmt.Sprintf("%v of %v: %d acquisitions", time.Since(began).Round(time.Second), r.For, r.tracker.grantCount()))
		case <-ctx.Done():
			tick.Stop()
			return
		}
	}
}

func (r *run) recordExit(worker, status string) {
	r.recorder.Add(history.Event{At: history.Now(), Worker: worker, Exited: &history.Exited{How: status}})
}

func (r *run) socket(name string) string { return filepath.Join(r.sockets, name) }

// config returns the configuration of a worker.
func (r *run) config(worker string) workload.Config {
	return workload.Config{
		Worker: worker, Workload: r.Workload, Seed: r.Seed, Prefix: prefix, Stile: r.programs.Stile,
		Locker: locker.Config{
			Kind: r.Target.Locker, URL: r.cluster.URL(), Addresses: r.cluster.Addrs(), TTL: r.TTL, Linger: r.Linger,
		},
		Recorder: r.socket("recorder"), Resource: r.socket("resource"),
	}
}

// header returns the first line of the history.
func (r *run) header(ctx context.Context) (history.Run, error) {
	config := r.config("").Locker
	var l locker.Locker
	for end := time.Now().Add(busyMargin); ; { // Open gives up after a few seconds, too soon for a busy machine
		var err error
		if l, err = locker.Open(ctx, config, "harness"); err == nil {
			break
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return history.Run{}, err
		}
	}
	tested, err := r.programs.Hash(r.Workload)
	if err != nil {
		return history.Run{}, err
	}
	offers := l.Offers()
	if err := l.Close(ctx); err != nil {
		return history.Run{}, err
	}
	return history.Run{
		Target: r.Target.String(), Workload: r.Workload, Faults: r.Faults, Seed: r.Seed,
		TTL: int64(r.TTL), For: int64(r.For), Began: time.Now().UTC().Format(time.RFC3339), Command: r.Command,
		Tested:   tested,
		Versions: r.versions(ctx),
		Offers:   workload.Offers(r.Workload, offers),
		Promised: promised(r.Workload, r.Target.Cluster, r.faults),
	}, nil
}

func (r *run) versions(ctx context.Context) map[string]string {
	versions := r.cluster.Versions(ctx)
	if versions == nil {
		versions = map[string]string{}
	}
	versions["go"] = runtime.Version()
	if info, ok := debug.ReadBuildInfo(); ok {
		peers := map[string]string{
			"concurrency": "go.etcd.io/etcd/client/v3", "redsync": "github.com/go-redsync/redsync/v4",
			"redislock": "github.com/bsm/redislock", "rueidislock": "github.com/redis/rueidis", "gozk": "github.com/go-zookeeper/zk",
		}
		for _, dep := range info.Deps {
			if dep.Path == peers[r.Target.Locker] {
				versions[r.Target.Locker] = dep.Version
			}
		}
	}
	return versions
}
