//go:build linux

package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/site"
)

// Fault is a kind of fault that can strike a [World].
type Fault struct {
	// Name is the name of the fault, such as "holder-pause".
	Name string
	// Summary describes the effect in one line.
	Summary string

	kinds    []string     // the kinds of clusters on which it is possible; nil means all
	reason   string       // why it is not possible on other kinds
	programs []string     // the programs that it needs
	options  site.Options // the options that the cluster needs for it
	// strike carries out the fault. It sets heal before it does anything that has to be healed.
	strike func(ctx context.Context, st *striker) error
}

// Strike is one occurrence of a fault. At is its time in the history; On, Role, What, Lock and Took
// are the fields of its [history.Fault].
type Strike struct {
	// At is the time just before the fault struck, from [history.Now].
	At int64
	// On names the victim, a worker or server; several are separated by commas. "all" means all
	// connections.
	On string
	// Role is the role of the victim at that time: "holder", "leader", "follower", or empty.
	Role string
	// What describes the strike, with its parameters.
	What string
	// Lock is the affected lock, if there is just one.
	Lock string
	// Took contains the tokens of the deleted entries; see [history.Fault].
	Took []uint64
	// Duration is the time from the strike to [Strike.Heal].
	Duration time.Duration

	heal    func() error
	release func()
}

// Heal undoes the fault as far as possible, and makes its victims available to other faults. Call
// it exactly once. The context of [Fault.Strike] does not limit it.
func (s *Strike) Heal() error {
	defer s.release()
	if s.heal == nil {
		return nil
	}
	return s.heal()
}

// Possible returns nil if the fault is possible on this kind of cluster and this machine, otherwise
// an error with the reason.
func (f Fault) Possible(kind string) error {
	if f.kinds != nil && !slices.Contains(f.kinds, kind) {
		return fmt.Errorf("%s is not possible on %s: %s", f.Name, kind, f.reason)
	}
	for _, program := range f.programs {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is not possible: %s is not installed", f.Name, program)
		}
	}
	return nil
}

// Strike carries out the fault, with random choices from random. It does not pick a victim of
// another strike that has not been healed. If it fails, it has healed what it had done; the
// returned Strike still names the intended victim.
func (f Fault) Strike(ctx context.Context, w *World, random *rand.Rand) (*Strike, error) {
	return f.strikeWith(ctx, w, random, false)
}

// strikeWith is Strike, severe or not; see [Schedule.Severe].
func (f Fault) strikeWith(ctx context.Context, w *World, random *rand.Rand, severe bool) (*Strike, error) {
	st := &striker{Strike: Strike{At: history.Now()}, world: w, random: random, severe: severe}
	st.release = func() { w.unclaim(st.claims) }
	err := f.strike(ctx, st)
	if err != nil {
		err = errors.Join(err, st.Heal())
	}
	return &st.Strike, err
}

// All returns all faults.
func All() []Fault {
	return slices.Concat(workerFaults(), serverFaults(), networkFaults(), diskFaults(), storeFaults())
}

// Parse parses a list of faults: names separated by commas, "all" for all that are possible on this
// kind of cluster, or "none". The error names the possible ones.
func Parse(list, kind string) ([]Fault, error) {
	switch list {
	case "none":
		return nil, nil
	case "all":
		return possible(kind), nil
	}
	var faults []Fault
	for name := range strings.SplitSeq(list, ",") {
		f, err := find(strings.TrimSpace(name), kind)
		if err != nil {
			return nil, fmt.Errorf("%w; on %s use all, none, or a list of %s", err, kind, strings.Join(names(possible(kind)), ", "))
		}
		if !slices.Contains(names(faults), f.Name) {
			faults = append(faults, f)
		}
	}
	return faults, nil
}

func find(name, kind string) (Fault, error) {
	for _, f := range All() {
		if f.Name == name {
			return f, f.Possible(kind)
		}
	}
	return Fault{}, fmt.Errorf("unknown fault %q", name)
}

func possible(kind string) []Fault {
	return slices.DeleteFunc(All(), func(f Fault) bool { return f.Possible(kind) != nil })
}

func names(faults []Fault) []string {
	var all []string
	for _, f := range faults {
		all = append(all, f.Name)
	}
	return all
}

// Options returns the cluster options that these faults need.
func Options(faults []Fault) site.Options {
	var all site.Options
	for _, f := range faults {
		all.Proxies = all.Proxies || f.options.Proxies
		all.Clocks = all.Clocks || f.options.Clocks
	}
	return all
}
