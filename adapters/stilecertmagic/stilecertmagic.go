// Package stilecertmagic gives CertMagic locks that work, whatever its storage is.
//
//	config.Storage = stilecertmagic.Wrap(storage, stilecertmagic.New(client, "certmagic/"))
//
// CertMagic takes a lock to obtain or renew a certificate, to register an account and to clean its storage,
// so that a cluster does each once. The storage provides the locks, and those of some object stores do
// nothing. All members of the cluster must use the same kind of lock.
//
// # If the lock is lost
//
// CertMagic asks for a longer lease before each attempt to get a certificate (certmagic.LockLeaseRenewer).
// A lost lock is then taken again if it is free, and the attempt continues: CertMagic looks first whether
// somebody else has got the certificate meanwhile. If it is not free, the attempt fails, and CertMagic
// makes another one later. Without this a short outage of the store would stop all attempts of a renewal
// that can go on for thirty days.
//
// What it cannot do: an attempt under way is not stopped, and so two members may get a certificate for the
// same name. That costs a request to the issuer; the last one written is used. CertMagic's storages check
// no fencing tokens. A loss that no renewal has repaired is an error of Unlock, which CertMagic logs.
package stilecertmagic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/internal/slot"
)

// A Locker is a [certmagic.Locker], [certmagic.TryLocker] and [certmagic.LockLeaseRenewer]. It is safe for
// concurrent use. [New] makes one. Use one for each process: CertMagic unlocks by name.
type Locker struct {
	client *stile.Client
	prefix string

	mu    sync.Mutex
	locks map[string]*entry // by CertMagic's name; an entry exists while it has users
}

// An entry is a lock and the number of its users: holders, and calls that want to hold it.
type entry struct {
	slot  slot.Slot
	users int
}

var (
	_ certmagic.Locker           = (*Locker)(nil)
	_ certmagic.TryLocker        = (*Locker)(nil)
	_ certmagic.LockLeaseRenewer = (*Locker)(nil)
)

// New returns a Locker. Its locks have CertMagic's names, with prefix before them. It does not contact the
// store.
func New(client *stile.Client, prefix string) *Locker {
	return &Locker{client: client, prefix: prefix, locks: make(map[string]*entry)}
}

// Lock waits in line for the lock until ctx ends. Its errors are those of [stile.Mutex.Lock].
func (l *Locker) Lock(ctx context.Context, name string) error {
	e := l.use(name)
	err := e.slot.Lock(ctx, l.mutex(name).Lock)
	if err != nil {
		l.leave(name)
	}
	return err
}

// TryLock takes the lock if nobody holds it or waits for it, and otherwise returns false and no error. Its
// errors are those of [stile.Mutex.TryLock].
func (l *Locker) TryLock(ctx context.Context, name string) (bool, error) {
	e := l.use(name)
	err := e.slot.TryLock(ctx, l.mutex(name).TryLock)
	if err == nil {
		return true, nil
	}
	l.leave(name)
	if errors.Is(err, stile.ErrHeld) {
		err = nil
	}
	return false, err
}

// Unlock releases the lock. Its errors are those of [stile.Hold.Release]: one that matches [stile.ErrLost]
// means that another member of the cluster may have had the lock at the same time. The lock is free
// nevertheless.
func (l *Locker) Unlock(ctx context.Context, name string) error {
	e := l.find(name)
	if e == nil {
		return l.explain(name, slot.ErrEmpty)
	}
	err := e.slot.Unlock(ctx)
	if !errors.Is(err, slot.ErrEmpty) {
		l.leave(name)
	}
	return l.explain(name, err)
}

// RenewLockLease returns nil if the lock is held. If it was lost, RenewLockLease tries to take it again, and
// returns the errors of [stile.Mutex.TryLock]. The duration does not matter, because the client renews its
// session as long as the process lives.
func (l *Locker) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	e := l.find(name)
	if e == nil {
		return l.explain(name, slot.ErrEmpty)
	}
	hold := e.slot.Hold()
	switch {
	case hold == nil:
		return l.explain(name, slot.ErrEmpty)
	case hold.Valid():
		return nil
	}
	return e.slot.Relock(ctx, hold, l.mutex(name).TryLock)
}

func (l *Locker) mutex(name string) *stile.Mutex { return l.client.Mutex(l.prefix + name) }

// use adds a user to the entry of name.
func (l *Locker) use(name string) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.locks[name]
	if e == nil {
		e = new(entry)
		l.locks[name] = e
	}
	e.users++
	return e
}

// leave ends a use.
func (l *Locker) leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.locks[name]
	e.users--
	if e.users == 0 {
		delete(l.locks, name)
	}
}

// find returns the entry of name; nil if there is none.
func (l *Locker) find(name string) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locks[name]
}

func (l *Locker) explain(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("stilecertmagic: lock %q: %w", l.prefix+name, err)
}

// inner has the methods of the wrapped storage one level deeper than those of the Locker, which therefore
// hide the storage's own locks.
type inner struct{ certmagic.Storage }

// Storage is a storage whose locks are those of a Locker. [Wrap] makes one.
type Storage struct {
	inner
	*Locker
}

var _ certmagic.Storage = Storage{}

// Wrap returns storage with the locks of locker instead of its own.
func Wrap(storage certmagic.Storage, locker *Locker) Storage { return Storage{inner{storage}, locker} }
