// Package workload runs the workloads: what a worker does with locks during a run.
//
// A worker that holds a lock writes to the resource that the lock protects, as a careful user
// would: it checks that its hold is valid, works for a while, and writes. It stops as soon as it is
// notified that the hold is lost. It records every request, grant, loss and release with the
// recorder.
package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
)

// The workloads.
const (
	// Hot: one lock that all workers want.
	Hot = "hot"
	// Many: 200 locks, some much more popular than others. Each worker requests four at a time.
	Many = "many"
	// Long: three locks, each of which is held for more than three times the TTL.
	Long = "long"
	// Storm: three locks. Each worker makes four calls at a time, each of which tries for a lock or
	// waits only for a short time.
	Storm = "storm"
	// Churn: four locks. Each worker opens a session, acquires a few of the locks, releases them or
	// does not, closes or abandons the session, and starts again.
	Churn = "churn"
	// Command: two locks, under which the real `stile run` runs commands.
	//
	// Each `stile run` is recorded as a worker of its own: w1-1, w1-2 and so on for the worker w1.
	// Started has the process of `stile run`. Holds and writes are those of the command, which
	// knows no deadline. Exited is recorded when `stile run` and all processes that it started have
	// ended. If the command is killed, the resource records its End.
	Command = "command"
	// ReadWrite: two read-write locks. Each worker makes three calls at a time: most read, some write,
	// and some of those downgrade their hold or yield it. Some readers have owners of their own, and so
	// an entry of their own. Only Stile has this workload and the following ones.
	ReadWrite = "read-write"
	// Semaphore: a semaphore with three slots and one with two. Each worker makes two calls at a time,
	// half of them for a slot with a number.
	Semaphore = "semaphore"
	// Batches: two semaphores and 100 locks. Each worker makes 24 calls at a time with one client, so that
	// many of its requests are under way at once.
	Batches = "batches"
	// Election: one election. Each worker is a candidate, which proclaims other values when it leads,
	// and resigns or yields; and it observes who leads.
	Election = "election"
	// Sets: four locks. Each worker makes two calls at a time: most are for two or three of the locks at
	// once, in any order, and the others for one of them, some for reading.
	Sets = "several-names"
	// Once: one lock, under which the real `stile once` runs commands, recorded as for Command. All
	// workers use the same key at a time, and another one after half a second. A third of the commands fail.
	Once = "once"
	// Crowd: one lock, which the 84 callers of each worker want all the time. Most of them have a client,
	// and so an entry in the store, of their own. They hold the lock for a moment. Some give up in the
	// middle of the line, or close or abandon their client, and come again. When the run ends, most wait
	// until they have had the lock.
	Crowd = "crowd"
	// Final: one attempt at each of [Config.Locks] after the run, recorded as [history.Final].
	Final = "final"
)

// Config configures a worker. The worker reads it as one line of JSON, the first on its standard
// input.
//
// The worker ends in order when it gets SIGTERM or its standard input is closed: it finishes the
// work of its hold, releases it, closes the session, takes a census, and exits with status 0.
type Config struct {
	// Worker is the worker's name. It is unique in a run.
	Worker string `json:"worker"`
	// Workload is one of the constants of this package.
	Workload string `json:"workload"`
	// Locker configures the locker that acquires the locks.
	Locker locker.Config `json:"locker"`
	// Seed is the seed of the random numbers, together with the worker's name.
	Seed uint64 `json:"seed"`
	// Recorder and Resource are the unix sockets at which the recorder and the resource listen.
	// Final needs no Resource.
	Recorder string `json:"recorder"`
	Resource string `json:"resource,omitempty"`
	// Prefix is the prefix of the names of all locks.
	Prefix string `json:"prefix,omitempty"`
	// HoldUnit is the unit in which hold times are specified that depend on the TTL; zero means the
	// TTL. Tests set it: for sessions that survive a busy machine they need a long TTL, but their
	// holds have to be short.
	HoldUnit time.Duration `json:"hold_unit_ns,omitempty"`
	// FinalTimeout is how long Final waits for a lock; zero means the TTL and ten seconds.
	FinalTimeout time.Duration `json:"final_timeout_ns,omitempty"`
	// SettleTimeout is how long the last census waits for goroutines and descriptors to be closed;
	// zero means 30 seconds, which only a leak exceeds, on a busy machine too. If several workers
	// share a process, as in tests, waiting is useless.
	SettleTimeout time.Duration `json:"settle_timeout_ns,omitempty"`
	// CrowdSize is the number of callers of a worker of Crowd; zero means [crowdCallers]. Tests have
	// fewer.
	CrowdSize int `json:"crowd_size,omitempty"`
	// Locks are the full names of the locks for Final.
	Locks []string `json:"locks,omitempty"`
	// Stile is the path of the command `stile`, for Command.
	Stile string `json:"stile,omitempty"`
}

func (c *Config) holdUnit() time.Duration { return cmp.Or(c.HoldUnit, c.Locker.TTL) }

func (c *Config) finalTimeout() time.Duration {
	return cmp.Or(c.FinalTimeout, c.Locker.TTL+10*time.Second)
}

func (c *Config) settleTimeout() time.Duration { return cmp.Or(c.SettleTimeout, 30*time.Second) }

// Names returns the workloads that a run can have, which are all but Final.
func Names() []string {
	return []string{Hot, Many, Long, Storm, Churn, Command, ReadWrite, Semaphore, Batches, Election, Sets, Once, Crowd}
}

// Check returns an error if a workload does not exist, or is not possible with that kind of locker on
// that kind of cluster.
func Check(workload, kind, cluster string) error {
	switch {
	case !slices.Contains(Names(), workload):
		return fmt.Errorf("unknown workload %q: use one of %s", workload, strings.Join(Names(), ", "))
	case plans()[workload].recipe && kind != "stile":
		return fmt.Errorf("the workload %s needs stile, not %s", workload, kind)
	case workload == Crowd && strings.HasPrefix(cluster, "redlock"):
		return fmt.Errorf("the workload %s is not possible on %s, which has no line", workload, cluster)
	case (workload == ReadWrite || workload == Semaphore || workload == Batches) && strings.HasPrefix(cluster, "redlock"):
		return fmt.Errorf("the workload %s is not possible on %s, which has only exclusive locks", workload, cluster)
	}
	return nil
}

// plan describes a workload. Each worker runs the given number of sequences at the same time. Each
// sequence repeats step, on the given number of locks.
type plan struct {
	sequences int
	locks     int
	step      func(*sequence, context.Context) error // an error ends the worker
	recipe    bool                                   // only Stile has it
}

func plans() map[string]plan {
	return map[string]plan{
		Hot:       {sequences: 1, locks: 1, step: (*sequence).hot},
		Many:      {sequences: 4, locks: 200, step: (*sequence).many},
		Long:      {sequences: 1, locks: 3, step: (*sequence).long},
		Storm:     {sequences: 4, locks: 3, step: (*sequence).storm},
		Churn:     {sequences: 1, locks: 4, step: (*sequence).churn},
		Command:   {sequences: 1, locks: 2, step: (*sequence).command},
		ReadWrite: {sequences: 3, locks: 2, step: (*sequence).readWrite, recipe: true},
		Semaphore: {sequences: 2, locks: len(slots), step: (*sequence).semaphore, recipe: true},
		Batches:   {sequences: 24, locks: len(slots) + 100, step: (*sequence).batches, recipe: true},
		Election:  {sequences: 2, locks: 1, step: (*sequence).election, recipe: true},
		Sets:      {sequences: 2, locks: 4, step: (*sequence).several, recipe: true},
		Once:      {sequences: 1, locks: 1, step: (*sequence).once, recipe: true},
		Crowd:     {sequences: crowdCallers, locks: 1, step: (*sequence).crowdCall, recipe: true},
		Final:     {sequences: 8, step: (*sequence).final},
	}
}

// Locks returns the full names of all locks of a workload, whether they are requested in a run or
// not. It returns nil for Final and for an unknown workload.
func Locks(workload, prefix string) []string {
	var names []string
	for i := range plans()[workload].locks {
		names = append(names, fmt.Sprintf("%s%s-%d", prefix, workload, i))
	}
	return names
}

// Offers returns what holders learn in a workload on a locker with the given offers: commands get a
// token and nothing else.
func Offers(workload string, offers history.Offers) history.Offers {
	if RunsStile(workload) {
		return history.Offers{Tokens: offers.Tokens, Fair: offers.Fair}
	}
	return offers
}

// RunsStile reports whether a workload runs the command `stile`.
func RunsStile(workload string) bool { return workload == Command || workload == Once }

// Run runs the worker until ctx ends. It records everything from Started to the last Census, and
// returns nil if that succeeded. Failures of the locks' servers are no errors, unless the worker
// cannot connect to them for two minutes.
func Run(ctx context.Context, c Config) error {
	p, known := plans()[c.Workload]
	if !known {
		return fmt.Errorf("unknown workload %q: use one of %s", c.Workload, strings.Join(Names(), ", "))
	}
	sender, err := history.Dial(c.Recorder, c.Worker)
	if err != nil {
		return err
	}
	sender.Send(history.Event{Started: &history.Started{Pid: os.Getpid()}})
	w := &worker{config: c, sender: sender, locks: Locks(c.Workload, c.Prefix)}
	if c.Workload == Crowd {
		p.sequences = cmp.Or(c.CrowdSize, p.sequences)
		w.crowd = newCrowd(w, p.sequences)
	}
	return errors.Join(w.run(ctx, p), sender.Close())
}
