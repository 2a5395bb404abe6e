//go:build linux

// Package trial is one run: a target, a workload and faults, from the start of the servers to the last line of the history.
// It judges nothing.
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

// HistoryFile is the name of the file with the history of a run.
const HistoryFile = "history.jsonl"

// Config says what to run.
type Config struct {
	Target   Target
	Workload string
	// Faults is a list that [nemesis.Parse] understands.
	Faults string
	// For is how long workers work and faults strike, at least. What comes before and after, takes some ten seconds more.
	For time.Duration
	// TTL is that of the locks' sessions.
	TTL time.Duration
	// Shipped runs ZooKeeper with the times that it is shipped with; see [site.Options].
	Shipped bool
	// Workers is how many there are at a time.
	Workers int
	// Seed decides about the faults and the workers' choices.
	Seed uint64
	// Out is the directory for the history, "history.jsonl", and for what the processes had to say, "words.txt".
	Out string
	// Command is how to repeat the run.
	Command string
	// Status is told, now and then, how far the run has come.
	Status func(string)
}

// Check returns the faults that are asked for, or why there is no such run: a fault that cannot be done, or no such workload. It
// needs a Target, a Workload and Faults.
func (c Config) Check() ([]nemesis.Fault, error) {
	if !slices.Contains(workload.Names(), c.Workload) {
		return nil, fmt.Errorf("no workload is called %q: there are %s", c.Workload, strings.Join(workload.Names(), ", "))
	}
	return nemesis.Parse(c.Faults, c.Target.Cluster)
}

// prefix is what the names of all locks begin with.
const prefix = "torture/"

type run struct {
	Config

	programs Programs
	faults   []nemesis.Fault
	network  *site.Network
	cluster  *site.Cluster
	observer observer.Observer
	recorder *history.Recorder
	live     *live
	said     *os.File
	sockets  string
}

// Run runs a trial at a site, and returns the path of the history. Faults and their consequences are no errors; an error
// means that the run says nothing.
func Run(ctx context.Context, here *site.Site, c Config, programs Programs) (string, error) {
	r := &run{Config: c, programs: programs, live: newLive(), sockets: here.Dir()}
	var err error
	if r.faults, err = c.Check(); err != nil {
		return "", err
	}
	if r.network, err = here.Network(); err != nil {
		return "", err
	}
	defer r.network.Close()
	if r.said, err = words(filepath.Join(c.Out, "words.txt")); err != nil {
		return "", err
	}
	defer r.said.Close()
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
	ctx, cancel := r.untilCrash(ctx)
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
	about, err := r.about(ctx)
	if err != nil {
		return "", err
	}
	r.recorder, err = history.Record(r.socket("recorder"), history.NewWriter(file, about), r.live.heard)
	if err != nil {
		return "", err
	}
	return path, errors.Join(r.work(ctx), r.recorder.Close())
}

// untilCrash ends a context when a server has ended that no fault has killed: what workers do without it says nothing. What
// the servers have said is saved.
func (r *run) untilCrash(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, fail := context.WithCancelCause(ctx)
	go func() {
		select {
		case err := <-r.cluster.Crashed():
			brief, _, _ := strings.Cut(err.Error(), ";")
			r.Status(brief)
			fail(errors.Join(fmt.Errorf("%w\nAll that the servers said is in %s", err, r.Out), r.cluster.SaveLogs(r.Out)))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { fail(nil) }
}

// work is the run itself, when all that it needs is there.
func (r *run) work(ctx context.Context) error {
	resource, err := r.begin(nil, r.config("resource"), "resource")
	if err != nil {
		return err
	}
	defer resource.end(5 * time.Second)
	watching, stopWatching := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.observer.Follow(watching, func(e history.Entry) {
			r.recorder.Add(history.Event{At: history.Now(), Entry: &e})
		})
	}()
	defer func() { stopWatching(); <-watched }()

	nodes, err := r.nodes()
	if err != nil {
		return err
	}
	workers := &crew{run: r, most: 3*r.TTL + r.longest() + busy}
	for _, node := range nodes {
		if err := workers.hire(node); err != nil {
			return errors.Join(err, workers.dismiss())
		}
	}
	r.hurt(ctx, workers)
	r.Status("ending")
	if err := errors.Join(workers.dismiss(), context.Cause(ctx)); err != nil {
		return err
	}
	return r.aftermath(ctx, nodes[0])
}

// busy is what a busy machine may need for anything, besides what it takes otherwise.
const busy = time.Minute

// longest is how long a hold of the workload may take by itself.
func (r *run) longest() time.Duration {
	if r.Workload == workload.Long {
		return 6 * r.TTL
	}
	return 0
}

// nodes makes one for each worker.
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

// hurt lets the faults strike for as long as the run is to last and, on a busy machine, until all have had their turn and something
// has happened at all; and heals everything.
func (r *run) hurt(ctx context.Context, workers *crew) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go r.tell(ctx)
	var mu sync.Mutex
	tried, strikes := map[string]bool{}, 0
	world := &nemesis.World{
		Cluster: r.cluster,
		Workers: workers.Workers,
		TTL:     r.TTL,
		Record: func(e history.Event) {
			mu.Lock()
			if e.Fault != nil {
				tried[e.Fault.Name], strikes = true, max(strikes, e.Fault.ID)
			}
			mu.Unlock()
			r.recorder.Add(e)
		},
		Progress: r.live.progress,
		Evict:    r.evict,
		Compact:  r.observer.Compact,
	}
	strike := func(d time.Duration, faults []nemesis.Fault) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		nemesis.Run(ctx, world, faults, nemesis.Schedule{Seed: r.Seed, PriorStrikes: strikes})
	}
	strike(r.For, r.faults)
	for end := time.Now().Add(busy); time.Now().Before(end) && ctx.Err() == nil; {
		left := slices.DeleteFunc(slices.Clone(r.faults), func(f nemesis.Fault) bool { return tried[f.Name] })
		before := r.live.progress()
		if (len(left) == 0 || r.Faults == "all") && before >= enough {
			return
		}
		strike(busy/10, left)
		if len(left) == 0 && r.live.progress() == before {
			return // more time would not help
		}
	}
}

// enough is how many grants a run must have that is to prove something. Package verdict believes in fewer, those of lost workers.
const enough = 20

// evict deletes the entry of a worker that holds a lock or, with all, its whole line.
func (r *run) evict(ctx context.Context, all bool) (history.Fault, error) {
	// After another fault it may take a while until somebody holds again.
	for end := time.Now().Add(r.TTL); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		for lock, worker := range r.live.locks() { // any: the order of maps is chance enough
			evicted, err := r.observer.Evict(ctx, lock, all)
			if evicted.What != "" || err != nil {
				return history.Fault{On: worker, Lock: lock, What: evicted.What, Took: evicted.Took}, err
			}
		}
	}
	return history.Fault{}, nil
}

// aftermath looks at what is left when everybody has gone and every session has ended, and tries every lock once more.
func (r *run) aftermath(ctx context.Context, node *site.Node) error {
	r.Status("looking at what is left")
	left, err := r.left(ctx)
	if err != nil {
		return fmt.Errorf("look at what is left: %w", err)
	}
	for _, lock := range slices.Sorted(maps.Keys(left)) {
		r.recorder.Add(history.Event{At: history.Now(), Left: &history.Left{Lock: lock, Keys: left[lock]}})
	}
	locks := workload.Locks(r.Workload, prefix)
	last, cancel := context.WithTimeout(ctx, 2*busy+time.Duration(len(locks))*time.Second/4)
	defer cancel()
	return r.final(last, node, locks)
}

// left looks until nothing is left, which is at once unless a worker was killed, or a session was not closed: such are over after
// their TTL and, as etcd looks for them twice a second and gives them another TTL after an election, some time more. A busy
// machine gets more time still: what should not be there stays for ever, or for as long as something renews it.
func (r *run) left(ctx context.Context) (map[string][]string, error) {
	const more = 15 * time.Second
	for end := time.Now().Add(2*r.TTL + time.Second + more); ; {
		look, cancel := context.WithTimeout(ctx, busy)
		left, err := r.observer.Remaining(look)
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

// tell says now and then how far the run has come.
func (r *run) tell(ctx context.Context) {
	began := time.Now()
	for tick := time.NewTicker(5 * time.Second); ; {
		select {
		case <-tick.C:
			r.Status(fmt.Sprintf("%v of %v: %d acquisitions", time.Since(began).Round(time.Second), r.For, r.live.progress()))
		case <-ctx.Done():
			tick.Stop()
			return
		}
	}
}

func (r *run) exited(worker, how string) {
	r.recorder.Add(history.Event{At: history.Now(), Worker: worker, Exited: &history.Exited{How: how}})
}

func (r *run) socket(name string) string { return filepath.Join(r.sockets, name) }

// config is what a worker is told.
func (r *run) config(worker string) workload.Config {
	return workload.Config{
		Worker: worker, Workload: r.Workload, Seed: r.Seed, Prefix: prefix, Stile: r.programs.Stile,
		Locker: locker.Config{
			Kind: r.Target.Locker, URL: r.cluster.URL(), Addresses: r.cluster.Addrs(), TTL: r.TTL,
		},
		Recorder: r.socket("recorder"), Resource: r.socket("resource"),
	}
}

// about is the first line of the history.
func (r *run) about(ctx context.Context) (history.Run, error) {
	conf := r.config("").Locker
	var l locker.Locker
	for end := time.Now().Add(busy); ; { // it gives up after some seconds, as a busy machine may need
		var err error
		if l, err = locker.Open(ctx, conf, "harness"); err == nil {
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
