package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/supervise"
	"github.com/stilelock/stile/store"
)

// kind says what kind of lock to take. The zero value is an exclusive lock.
type kind struct {
	exclusive bool // set by its flag; nothing else depends on it
	shared    bool
	slots     count
	all       bool // all of several names
	election  bool // the holder is the leader, and publishes the request's value
}

func (k *kind) addFlags(flags *pflag.FlagSet) {
	flags.BoolVarP(&k.shared, "shared", "s", false, "share the lock with others that use -s, as the readers of a read-write lock")
	flags.BoolVarP(&k.exclusive, "exclusive", "x", false, "exclude all others; the default")
	flags.Var(&k.slots, "slots", "take one of `N` slots, so that at most N clients hold the lock at a time; all must name the same N")
	flags.BoolVar(&k.all, "all", false, "take the locks of all NAMEs, or none of them")
}

func (k kind) check() error {
	switch {
	case k.shared && k.exclusive:
		return errors.New("-s and -x contradict each other: use one of them")
	case k.slots > 0 && (k.shared || k.exclusive):
		return errors.New("--slots is neither shared nor exclusive: leave out -s and -x")
	case k.all && (k.shared || k.slots > 0):
		return errors.New("--all takes exclusive locks only: leave out -s and --slots")
	default:
		return nil
	}
}

// hold is a [*stile.Hold] or a [*stile.MultiHold].
type hold interface {
	supervise.Hold
	Terms() store.Terms
	Release(ctx context.Context) error
	ReleaseAfter(ctx context.Context, d time.Duration) error
}

// A pendingHold is a place in the line for a lock, or an attempt to take several locks.
type pendingHold struct {
	ready <-chan struct{}
	// ahead returns how many entries are ahead, given the line as it was read last; -1 if that is unknown.
	ahead func(line stile.Line) int
	// wait returns the hold, and gives the attempt up when ctx ends.
	wait func(ctx context.Context) (hold, error)
}

// try takes the lock, or all locks, without waiting.
func (r *request) try(ctx context.Context, client *stile.Client) (hold, error) {
	switch name := r.names[0]; {
	case r.kind.all:
		return holdOrNil(client.TryLockAll(ctx, r.names...))
	case r.kind.shared:
		return holdOrNil(client.RWMutex(name).TryRLock(ctx))
	case r.kind.slots > 0:
		return holdOrNil(r.kind.semaphore(client, name).TryAcquire(ctx))
	default:
		return holdOrNil(client.Mutex(name).TryLock(ctx))
	}
}

// semaphore returns the semaphore of --slots. Its holds have slot numbers.
func (k kind) semaphore(client *stile.Client, name string) *stile.Semaphore {
	return client.Semaphore(name, int(k.slots)).Numbered()
}

// holdOrNil turns a nil pointer into a nil interface.
func holdOrNil[H interface {
	comparable
	hold
}](h H, err error) (hold, error) {
	if err != nil {
		return nil, err
	}
	return h, nil
}

// join begins to wait for the lock, or for all locks.
func (r *request) join(ctx context.Context, client *stile.Client) (*pendingHold, error) {
	name := r.names[0]
	join := client.Mutex(name).Join
	switch {
	case r.kind.all:
		return r.joinAll(ctx, client), nil
	case r.kind.election:
		candidate, err := client.Election(name).Join(ctx, r.value)
		if err != nil {
			return nil, err
		}
		return waitingFor(candidate.Place), nil
	case r.kind.shared:
		join = client.RWMutex(name).RJoin
	case r.kind.slots > 0:
		join = r.kind.semaphore(client, name).Join
	}
	place, err := join(ctx)
	if err != nil {
		return nil, err
	}
	return waitingFor(place), nil
}

func waitingFor(place *stile.Place) *pendingHold {
	return &pendingHold{
		ready: place.Ready(), ahead: func(stile.Line) int { return place.Ahead() },
		wait: func(ctx context.Context) (hold, error) { return holdOrNil(place.Wait(ctx)) },
	}
}

func (r *request) joinAll(ctx context.Context, client *stile.Client) *pendingHold {
	var (
		ready = make(chan struct{})
		m     hold
		err   error
	)
	go func() {
		defer close(ready)
		m, err = holdOrNil(client.LockAll(ctx, r.names...))
	}()
	return &pendingHold{
		ready: ready, ahead: aheadOfThisProcess,
		wait: func(context.Context) (hold, error) { // it ends with the ctx of joinAll
			<-ready
			return m, err
		},
	}
}

// heldLocks describes the locks of a hold.
func heldLocks(h hold, owner, validity string) []held {
	if one, ok := h.(*stile.Hold); ok {
		h := held{Name: one.Name(), Token: one.Token(), Owner: owner, Validity: validity}
		if slot := one.Slot(); slot >= 0 {
			h.Slot = &slot
		}
		return []held{h}
	}
	var all []held
	if several, ok := h.(*stile.MultiHold); ok {
		for _, name := range several.Names() {
			all = append(all, held{Name: name, Token: several.Token(name), Owner: owner, Validity: validity})
		}
	}
	return all
}

// lockText names locks: lock "a", or locks "a", "b" and "c".
func lockText(names ...string) string {
	quoted := make([]string, 0, len(names))
	for _, name := range names {
		quoted = append(quoted, strconv.Quote(name))
	}
	last := len(quoted) - 1
	if last == 0 {
		return "lock " + quoted[0]
	}
	return "locks " + strings.Join(quoted[:last], ", ") + " and " + quoted[last]
}

// count is the value of a flag that takes a positive number.
type count int

// Set implements pflag.Value.
func (c *count) Set(s string) error {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 || n > stile.MaxSlots {
		return fmt.Errorf("must be a number from 1 to %d", stile.MaxSlots)
	}
	*c = count(n)
	return nil
}

// String implements pflag.Value.
func (c *count) String() string {
	if *c == 0 {
		return ""
	}
	return fmt.Sprint(int(*c))
}

// Type implements pflag.Value.
func (c *count) Type() string { return "int" }
