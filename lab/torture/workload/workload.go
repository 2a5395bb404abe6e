// Package workload is what a worker does with locks, for as long as a run lasts.
//
// A worker that holds a lock writes to the resource that the lock protects, as a careful user
// would: it looks whether its hold is valid, does some work, and writes, and it stops as soon as it
// is told that the hold is lost. What it asks for, gets, sees and gives up it tells the recorder.
package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
)

// The workloads.
const (
	// Hot: all workers want the same lock.
	Hot = "hot"
	// Many: 200 locks, some much more zipf than others; each worker is after four at a time.
	Many = "many"
	// Long: three locks, each held for more than three times the TTL.
	Long = "long"
	// Storm: three locks that all try for, or wait for no longer than a shortCtx, four times at
	// once in each worker.
	Storm = "storm"
	// Churn: each worker opens a session, takes a few of four locks, releases them or does not,
	// closes or abandons the session, and begins again.
	Churn = "churn"
	// Command: two locks, under which the real `stile run` runs commands.
	//
	// Each of these is a worker of its own, w1-1, w1-2 and so on for the worker w1: Started tells
	// the process of `stile run`, and holds and writes are those of the command, which knows
	// nothing of deadlines. Exited is recorded when `stile run` and everything it started are gone.
	// If the command is killed the resource records its End.
	Command = "command"
	// Final: one attempt at each of [Config.Locks], when a run is over, recorded as
	// [history.Final].
	Final = "final"
)

// Config is all that a worker is told: as one line of JSON, the first on its standard input.
//
// The worker ends in order when it gets SIGTERM or its standard input is closed: it finishes what
// it holds, releases it, closes the session, takes a census and exits with status 0.
type Config struct {
	// Worker is the worker's name. No two processes of a run have the same.
	Worker string `json:"worker"`
	// Workload is one of the constants of this package.
	Workload string `json:"workload"`
	// Locker is what takes the locks.
	Locker locker.Config `json:"locker"`
	// Seed is what chance begins with, together with the worker's name.
	Seed uint64 `json:"seed"`
	// Recorder and Resource are the unix sockets at which those two listen. Final needs no
	// Resource.
	Recorder string `json:"recorder"`
	Resource string `json:"resource,omitempty"`
	// Prefix is what the names of all locks begin with.
	Prefix string `json:"prefix,omitempty"`
	// HoldUnit is what holds last multiples of, where that is said in TTLs; zero means the TTL. A
	// test whose sessions must not be lost on a busy machine has a long TTL, and yet little time.
	HoldUnit time.Duration `json:"hold_unit_ns,omitempty"`
	// FinalTimeout is how long Final waits for a lock; zero means the TTL and ten seconds.
	FinalTimeout time.Duration `json:"final_timeout_ns,omitempty"`
	// SettleTimeout is how long what has been closed may take until it has ended; zero means 30
	// seconds, which only a leak takes on however busy a machine. Where several workers share a
	// process, as in tests, there is nothing to wait for.
	SettleTimeout time.Duration `json:"settle_timeout_ns,omitempty"`
	// Locks are the full names of the locks that Final is about.
	Locks []string `json:"locks,omitempty"`
	// Stile is the path of the command `stile`, for Command.
	Stile string `json:"stile,omitempty"`
}

func (c *Config) holdUnit() time.Duration { return cmp.Or(c.HoldUnit, c.Locker.TTL) }

func (c *Config) finalTimeout() time.Duration {
	return cmp.Or(c.FinalTimeout, c.Locker.TTL+10*time.Second)
}

func (c *Config) settleTimeout() time.Duration { return cmp.Or(c.SettleTimeout, 30*time.Second) }

// Names returns the workloads that a run can have: all but Final.
func Names() []string { return []string{Hot, Many, Long, Storm, Churn, Command} }

// plan is how a workload goes: so many sequences in each worker do the same thing at the same time,
// each again and again, on so many locks.
type plan struct {
	sequences int
	locks     int
	step      func(*sequence, context.Context) error // an error ends the worker
}

func plans() map[string]plan {
	return map[string]plan{
		Hot:     {sequences: 1, locks: 1, step: (*sequence).hot},
		Many:    {sequences: 4, locks: 200, step: (*sequence).many},
		Long:    {sequences: 1, locks: 3, step: (*sequence).long},
		Storm:   {sequences: 4, locks: 3, step: (*sequence).storm},
		Churn:   {sequences: 1, locks: 4, step: (*sequence).churn},
		Command: {sequences: 1, locks: 2, step: (*sequence).command},
		Final:   {sequences: 8, step: (*sequence).final},
	}
}

// Locks returns the full names of the locks that a workload uses, those included that nobody may
// happen to ask for. It is nil for Final, and if there is no such workload.
func Locks(workload, prefix string) []string {
	var names []string
	for i := range plans()[workload].locks {
		names = append(names, fmt.Sprintf("%s%s-%d", prefix, workload, i))
	}
	return names
}

// Offers returns what is told to the holders in a workload on a locker that offers this much:
// commands get a token and nothing else.
func Offers(workload string, offers history.Offers) history.Offers {
	if workload == Command {
		return history.Offers{Tokens: offers.Tokens, Fair: offers.Fair}
	}
	return offers
}

// Run does what the worker is told to, until ctx ends. It records everything from Started to the
// last Census, and returns nil if it could do so. What the locks' servers do is no error, unless
// there is no connecting to them for two minutes.
func Run(ctx context.Context, c Config) error {
	p, known := plans()[c.Workload]
	if !known {
		return fmt.Errorf("unknown workload %q: use one of %s", c.Workload, strings.Join(Names(), ", "))
	}
	voice, err := history.Speak(c.Recorder, c.Worker)
	if err != nil {
		return err
	}
	voice.Say(history.Event{Started: &history.Started{Pid: os.Getpid()}})
	w := &worker{config: c, voice: voice, locks: Locks(c.Workload, c.Prefix)}
	return errors.Join(w.run(ctx, p), voice.Close())
}
