// Package stilegoose makes goose take a lock of Stile before it migrates a database.
//
//	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
//		goose.WithSessionLocker(stilegoose.New(client.Mutex("migrations/shop"))))
//
// All replicas may call Up when they start. One migrates; the others wait in line, and then find nothing
// to do. It is tested with PostgreSQL. It works with every driver whose connections return errors after they
// were closed. Those of modernc.org/sqlite panic then, so use goose.WithLocker with SQLite. goose's own
// lockers are for PostgreSQL and MySQL; all programs that migrate a database must use the same kind.
//
// # If the lock is lost
//
// With goose.WithSessionLocker the connection on which goose migrates is closed, as soon as the statement
// that it executes has ended. So the next statement fails, an open transaction is rolled back, and the
// version is not recorded. Up returns an error that matches [stile.ErrLost].
//
// What it cannot do: the statement under way is not interrupted, and a migration in Go that takes a
// *sql.DB instead of a transaction is not stopped, because it uses other connections; its version is recorded.
// goose waits until it returns, then fails. Migrations without a transaction leave what they have done.
//
// With goose.WithLocker nothing is stopped, because goose passes no connection. Up migrates to the end,
// and then returns the error.
//
// A program that calls Up itself needs no adapter, and can do better:
//
//	err := client.Mutex("migrations/shop").Do(ctx, func(ctx context.Context, _ *stile.Hold) error {
//		_, err := provider.Up(ctx)
//		return err
//	})
//
// goose passes ctx to each statement and to each migration in Go. It ends when the lock is lost, and a
// driver that supports it cancels the statement under way. This adapter is for a provider that other code
// calls.
package stilegoose

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	"github.com/pressly/goose/v3/lock"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/internal/slot"
)

// A Locker makes goose use a lock: pass it to goose.WithSessionLocker or, if goose's connection must not be
// closed when the lock is lost, to goose.WithLocker. Providers may share a Locker; it is safe for concurrent
// use. [New] makes one.
type Locker struct {
	mutex *stile.Mutex
	slot  slot.Slot
}

var (
	_ lock.SessionLocker = (*Locker)(nil)
	_ lock.Locker        = (*Locker)(nil)
)

// New returns a Locker that uses mutex. Give each database a name of its own. It does not contact the
// store.
func New(mutex *stile.Mutex) *Locker { return &Locker{mutex: mutex} }

// SessionLock waits in line for the lock until ctx ends. Its errors are those of [stile.Mutex.Lock]. When
// the hold is lost, conn is closed once its statement has ended, unless it was returned to its pool before.
func (l *Locker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if err := l.Lock(ctx, nil); err != nil {
		return err
	}
	hold := l.slot.Hold()
	context.AfterFunc(hold.Context(), func() {
		if hold.Err() != nil {
			closeConn(conn)
		}
	})
	return nil
}

// closeConn closes the connection of conn, between two statements. A transaction on conn cannot be
// committed any more. It does nothing if conn is closed.
func closeConn(conn *sql.Conn) {
	// Conn.Close would wait for the end of the transaction.
	_ = conn.Raw(func(c any) error {
		if c, ok := c.(driver.Conn); ok {
			_ = c.Close()
		}
		return driver.ErrBadConn // so that the pool drops it
	})
}

// SessionUnlock is Unlock.
func (l *Locker) SessionUnlock(ctx context.Context, _ *sql.Conn) error { return l.Unlock(ctx, nil) }

// Lock waits in line for the lock until ctx ends. Its errors are those of [stile.Mutex.Lock].
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error { return l.slot.Lock(ctx, l.mutex.Lock) }

// Unlock releases the lock. Its errors are those of [stile.Hold.Release]: one that matches [stile.ErrLost]
// means that another process may have migrated at the same time.
func (l *Locker) Unlock(ctx context.Context, _ *sql.DB) error {
	if err := l.slot.Unlock(ctx); err != nil {
		return fmt.Errorf("stilegoose: lock %q: %w", l.mutex.Name(), err)
	}
	return nil
}
