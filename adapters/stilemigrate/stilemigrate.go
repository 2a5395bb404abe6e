// Package stilemigrate makes golang-migrate take a lock of Stile before it migrates a database.
//
//	m, err := migrate.NewWithInstance("iofs", files, "shop",
//		stilemigrate.New(driver, client.Mutex("migrations/shop")))
//
// All replicas may call Up when they start. One migrates; the others wait in line, and then find nothing
// to do. It works with every driver. The driver's own lock is not taken, so that databases whose lock does
// nothing, or does not work behind a connection pooler, are protected too; all programs that migrate a
// database must use the same kind of lock.
//
// # If the lock is lost
//
// The next step is refused: nothing more is run, and no version is recorded. The error matches
// [stile.ErrLost]. A migration that was begun stays marked as dirty, also if it has succeeded. So if
// another replica has the lock by then, it stops with [migrate.ErrDirty]: the migration may still be
// running. Look at the database, then call Force.
//
// What it cannot do: golang-migrate passes no context, so the migration under way is not interrupted. Give
// the connection a statement timeout to bound it. If the process is stopped just after a step was
// allowed, and continues after another replica has got the lock, that step is carried out beside it.
package stilemigrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/internal/slot"
)

// A Driver is a database driver of golang-migrate with a lock of Stile instead of its own. [New] makes one.
// Like other drivers it is for one [migrate.Migrate].
type Driver struct {
	database.Driver // for Version

	// LockTimeout is how long Lock waits in line. Keep it a little smaller than the LockTimeout of the
	// migrate.Migrate, which does not tell the driver when it gives up: a lock that is acquired after
	// that is held until Close. Zero means nine tenths of [migrate.DefaultLockTimeout], which is 13.5 s.
	LockTimeout time.Duration

	mutex *stile.Mutex
	slot  slot.Slot
}

var _ database.Driver = (*Driver)(nil)

// New returns a Driver that uses driver under mutex. Give each database a name of its own. It contacts
// neither the database nor the store.
func New(driver database.Driver, mutex *stile.Mutex) *Driver {
	return &Driver{Driver: driver, mutex: mutex}
}

// Open opens the driver for url, and returns it with the same lock.
func (d *Driver) Open(url string) (database.Driver, error) {
	opened, err := d.Driver.Open(url)
	if err != nil {
		return nil, err
	}
	return &Driver{Driver: opened, LockTimeout: d.LockTimeout, mutex: d.mutex}, nil
}

// Lock waits in line for the lock. If it takes longer than LockTimeout, the error matches
// [database.ErrLocked]. Its other errors are those of [stile.Mutex.Lock].
func (d *Driver) Lock() error {
	timeout := d.LockTimeout
	if timeout == 0 {
		timeout = migrate.DefaultLockTimeout * 9 / 10
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	err := d.slot.Lock(ctx, d.mutex.Lock)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w within %v: %w", database.ErrLocked, timeout, err)
	}
	return d.explain(err)
}

// Unlock releases the lock. It waits for the store, as long as the session lasts. If the lock is not held,
// the error matches [database.ErrNotLocked]. Its other errors are those of [stile.Hold.Release]: one that
// matches [stile.ErrLost] means that another process may have migrated at the same time. After any error
// golang-migrate takes the database for locked; make a new migrate.Migrate.
func (d *Driver) Unlock() error {
	err := d.slot.Unlock(context.Background())
	if errors.Is(err, slot.ErrEmpty) {
		err = database.ErrNotLocked
	}
	return d.explain(err)
}

// Close closes the driver, and then releases the lock if it is held. So a migration that still runs cannot run
// another step without the lock.
func (d *Driver) Close() error {
	closed := d.Driver.Close()
	err := d.slot.Unlock(context.Background())
	if errors.Is(err, slot.ErrEmpty) {
		err = nil
	}
	return errors.Join(closed, d.explain(err))
}

// Run runs a migration, unless the lock is lost. If it is lost meanwhile, the next step fails, or Unlock.
// The lock counts only between Lock and Unlock; golang-migrate runs nothing outside.
func (d *Driver) Run(migration io.Reader) error {
	return d.whileHeld(func() error { return d.Driver.Run(migration) })
}

// SetVersion records a version, unless the lock is lost, as with Run.
func (d *Driver) SetVersion(version int, dirty bool) error {
	return d.whileHeld(func() error { return d.Driver.SetVersion(version, dirty) })
}

// Drop deletes everything in the database, unless the lock is lost, as with Run.
func (d *Driver) Drop() error { return d.whileHeld(d.Driver.Drop) }

// whileHeld runs a step, unless the hold was lost.
func (d *Driver) whileHeld(step func() error) error {
	if hold := d.slot.Hold(); hold != nil && !hold.Valid() {
		<-hold.Context().Done() // Valid may notice the deadline a moment earlier
		return d.explain(context.Cause(hold.Context()))
	}
	return step()
}

// explain adds to an error of the lock that it is not one of the database.
func (d *Driver) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("stilemigrate: lock %q: %w", d.mutex.Name(), err)
}
