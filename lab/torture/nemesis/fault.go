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

// Fault is a way to hurt a [World].
type Fault struct {
	// Name is the fault's: "holder-pause".
	Name string
	// Summary says in a line what it does.
	Summary string

	kinds    []string     // the kinds of clusters on which it is possible; nil: all
	why      string       // it is not possible on others
	programs []string     // that it needs
	options  site.Options // that the cluster needs for it
	// strike sets what the strike's heal is before it does anything that needs it.
	strike func(ctx context.Context, h *hand) error
}

// Strike is a fault that has struck.
type Strike struct {
	// At is the time of [history.Now] just before it struck.
	At int64
	// On is the worker or server that was hit, or several with commas between them, or "all".
	On string
	// Role is what it was then: "holder", "leader", "follower", or empty.
	Role string
	// What says with figures what was done.
	What string
	// Lock is the lock that was hit, if it was one only.
	Lock string
	// Took are the tokens of the entries that were deleted: see [history.Fault].
	Took []uint64
	// For is how long it is to last before [Strike.Heal].
	For time.Duration

	heal func() error
	free func()
}

// Heal undoes what the fault did, as far as that is possible. Call it once; it is not bounded by the context of
// [Fault.Strike].
func (s *Strike) Heal() error {
	defer s.free()
	if s.heal == nil {
		return nil
	}
	return s.heal()
}

// Possible returns why the fault cannot be done to a cluster of this kind on this machine, nil if it can.
func (f Fault) Possible(kind string) error {
	if f.kinds != nil && !slices.Contains(f.kinds, kind) {
		return fmt.Errorf("%s is not possible on %s: %s", f.Name, kind, f.why)
	}
	for _, program := range f.programs {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is not possible: %s is not installed", f.Name, program)
		}
	}
	return nil
}

// Strike does the fault to the world, with what is random taken from random. Who is the victim of another strike that is not
// healed is left alone. If it fails it has healed what it had done, and what it returns says on whom it was tried.
func (f Fault) Strike(ctx context.Context, w *World, random *rand.Rand) (*Strike, error) {
	h := &hand{Strike: Strike{At: history.Now()}, world: w, random: random}
	h.free = func() { w.leave(h.places) }
	err := f.strike(ctx, h)
	if err != nil {
		err = errors.Join(err, h.Heal())
	}
	return &h.Strike, err
}

// All returns all faults there are.
func All() []Fault {
	return slices.Concat(workerFaults(), serverFaults(), networkFaults(), diskFaults(), storeFaults())
}

// Parse reads a list of faults: names with commas between them, "all" for all that are possible there, or "none". The error
// says which there are.
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
			return nil, fmt.Errorf("%w; on %s there are all, none, or of %s", err, kind, strings.Join(names(possible(kind)), ", "))
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
	return Fault{}, fmt.Errorf("there is no fault %q", name)
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

// Options returns what a cluster needs that these faults are to be done to.
func Options(faults []Fault) site.Options {
	var all site.Options
	for _, f := range faults {
		all.Proxies = all.Proxies || f.options.Proxies
		all.Clocks = all.Clocks || f.options.Clocks
	}
	return all
}
