package stilegoose_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilegoose"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/store/redisstore"
)

// testTimeout is how long tests wait for events that should happen within seconds, on however busy a
// machine.
const testTimeout = 4 * time.Minute

var (
	postgres = testservers.Shared[*testservers.Postgres]{New: func() (*testservers.Postgres, error) { return testservers.NewPostgres() }}
	redis    = testservers.Shared[*testservers.Redis]{New: func() (*testservers.Redis, error) { return testservers.NewRedis() }}
)

func TestMain(m *testing.M) {
	code := m.Run()
	postgres.Close()
	redis.Close()
	os.Exit(code)
}

// onStores runs a test on the memory store and on Redis. The lock has a name of its own.
func onStores(t *testing.T, test func(t *testing.T, st store.Store, name string)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { test(t, memstore.New(), "migrations") })
	t.Run("redis", func(t *testing.T) {
		cli, err := rueidis.NewClient(redisstore.ClientOptions(redis.Get(t).Addr()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cli.Close)
		st, err := redisstore.New(cli, nil)
		if err != nil {
			t.Fatal(err)
		}
		test(t, st, "migrations/"+rand.Text())
	})
}

func newClient(t *testing.T, st store.Store) *stile.Client {
	t.Helper()
	c, err := stile.New(st, &stile.Options{TTL: stile.MaxTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// newDatabase creates an empty database, and returns its pool of connections.
func newDatabase(t *testing.T) *sql.DB {
	t.Helper()
	name := "test_" + strings.ToLower(rand.Text())
	admin := open(t, "")
	exec(t, admin, "CREATE DATABASE "+name)
	return open(t, " dbname="+name)
}

func open(t *testing.T, more string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", postgres.Get(t).DSN()+more)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func exec(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

func newProvider(t *testing.T, db *sql.DB, locker goose.ProviderOption, migrations ...*goose.Migration) *goose.Provider {
	t.Helper()
	p, err := goose.NewProvider(goose.DialectPostgres, db, nil, locker, goose.WithGoMigrations(migrations...))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// checkVersion checks which version goose has recorded.
func checkVersion(t *testing.T, db *sql.DB, want int64) {
	t.Helper()
	p, err := goose.NewProvider(goose.DialectPostgres, db, nil,
		goose.WithGoMigrations(goose.NewGoMigration(9, nil, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.GetDBVersion(t.Context()); err != nil || got != want {
		t.Errorf("version of the database: got %d, %v, want %d", got, err, want)
	}
}

// checkTable checks that the table exists, or that it does not.
func checkTable(t *testing.T, db *sql.DB, table string, want bool) {
	t.Helper()
	var exists bool
	err := db.QueryRowContext(t.Context(), "SELECT to_regclass($1) IS NOT NULL", table).Scan(&exists)
	if err != nil || exists != want {
		t.Errorf("table %s exists: got %v, %v, want %v", table, exists, err, want)
	}
}

// lose makes the hold of the lock lost.
func lose(ctx context.Context, c *stile.Client, name string) error {
	l, err := c.Line(ctx, name)
	if err != nil {
		return err
	}
	if len(l.Holders) != 1 {
		return fmt.Errorf("lock %q has the holders %+v, want one", name, l.Holders)
	}
	_, err = c.Break(ctx, name, l.Holders[0].Token)
	return err
}

// lockers are the two ways in which goose can use a Locker.
var lockers = map[string]func(*stilegoose.Locker) goose.ProviderOption{
	"WithSessionLocker": func(l *stilegoose.Locker) goose.ProviderOption { return goose.WithSessionLocker(l) },
	"WithLocker":        func(l *stilegoose.Locker) goose.ProviderOption { return goose.WithLocker(l) },
}

// All replicas migrate the database when they start. Each migration runs once, although they look before
// one of them has begun.
func TestLocker_replicas(t *testing.T) {
	for how, option := range lockers {
		t.Run(how, func(t *testing.T) {
			onStores(t, func(t *testing.T, st store.Store, name string) {
				db := newDatabase(t)
				var running, runs atomic.Int32
				migrate := func(ctx context.Context, tx *sql.Tx) error {
					runs.Add(1)
					if running.Add(1) != 1 {
						t.Error("two migrations run at the same time")
					}
					defer running.Add(-1)
					_, err := tx.ExecContext(ctx, "SELECT pg_sleep(0.05)")
					return err
				}
				applied := 0
				var mu sync.Mutex
				var wg sync.WaitGroup
				for range 4 {
					locker := stilegoose.New(newClient(t, st).Mutex(name))
					p := newProvider(t, db, option(locker),
						goose.NewGoMigration(1, &goose.GoFunc{RunTx: migrate}, nil), goose.NewGoMigration(2, &goose.GoFunc{RunTx: migrate}, nil))
					wg.Go(func() {
						results, err := p.Up(t.Context())
						if err != nil {
							t.Error(err)
						}
						mu.Lock()
						defer mu.Unlock()
						applied += len(results)
					})
				}
				wg.Wait()
				if applied != 2 || runs.Load() != 2 {
					t.Errorf("goose reports %d migrations, and %d ran; want 2", applied, runs.Load())
				}
				checkVersion(t, db, 2)
			})
		})
	}
}

// The lock is lost while a migration runs. Its next statement fails, and nothing of it stays.
// Promise: P6
func TestLocker_lossRollsBack(t *testing.T) {
	onStores(t, func(t *testing.T, st store.Store, name string) {
		db, c := newDatabase(t), newClient(t, st)
		p := newProvider(t, db, goose.WithSessionLocker(stilegoose.New(c.Mutex(name))),
			goose.NewGoMigration(1, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "CREATE TABLE first()")
				return err
			}}, nil),
			goose.NewGoMigration(2, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
				if _, err := tx.ExecContext(ctx, "CREATE TABLE second()"); err != nil {
					return err
				}
				if err := lose(ctx, c, name); err != nil {
					t.Error(err)
					return err
				}
				for end := time.Now().Add(testTimeout); time.Now().Before(end); {
					if _, err := tx.ExecContext(ctx, "SELECT 1"); err != nil {
						return nil //nolint:nilerr // a migration that ignores errors is not committed either
					}
				}
				t.Error("the loss of the lock does not stop the migration")
				return nil
			}}, nil))
		if _, err := p.Up(t.Context()); !errors.Is(err, stile.ErrLost) {
			t.Errorf("Up: got %v, want the loss", err)
		}
		checkTable(t, db, "first", true)
		checkTable(t, db, "second", false)
		checkVersion(t, db, 1)

		// The provider, its pool and the lock are as usable as before.
		if _, err := p.ApplyVersion(t.Context(), 1, false); err != nil {
			t.Errorf("the next use of the provider: %v", err)
		}
	})
}

// Without a connection nothing can be stopped, but Up reports the loss.
func TestLocker_lossIsReported(t *testing.T) {
	onStores(t, func(t *testing.T, st store.Store, name string) {
		db, c := newDatabase(t), newClient(t, st)
		p := newProvider(t, db, goose.WithLocker(stilegoose.New(c.Mutex(name))),
			goose.NewGoMigration(1, &goose.GoFunc{RunTx: func(ctx context.Context, _ *sql.Tx) error { return lose(ctx, c, name) }}, nil))
		if _, err := p.Up(t.Context()); !errors.Is(err, stile.ErrLost) {
			t.Errorf("Up: got %v, want the loss", err)
		}
		checkVersion(t, db, 1)
	})
}

// Only a loss closes the connection: not the release, nor what happens after it.
func TestLocker_releasedConnectionStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memstore.New())
		l := stilegoose.New(c.Mutex("migrations"))
		pool := &connections{}
		db := sql.OpenDB(pool)
		defer db.Close()
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for lost := range 2 {
			if err := l.SessionLock(t.Context(), conn); err != nil {
				t.Fatal(err)
			}
			if lost == 1 {
				if err := lose(t.Context(), c, "migrations"); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			if err := l.SessionUnlock(t.Context(), conn); errors.Is(err, stile.ErrLost) != (lost == 1) {
				t.Errorf("SessionUnlock: got %v", err)
			}
			synctest.Wait()
			if pool.closed != lost {
				t.Errorf("connections closed after %d losses: got %d", lost, pool.closed)
			}
		}
	})
}

// connections makes connections that do nothing, and counts those that were closed.
type connections struct{ closed int }

func (p *connections) Connect(context.Context) (driver.Conn, error) { return &connection{pool: p}, nil }
func (p *connections) Driver() driver.Driver                        { return nil }

type connection struct {
	pool   *connections
	closed bool
}

func (c *connection) Close() error {
	if !c.closed { // the pool closes it once more
		c.closed = true
		c.pool.closed++
	}
	return nil
}
func (c *connection) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (c *connection) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }

// ctx bounds the wait. Then the lock is not held, and no entry is left in its line.
// Promise: P5
func TestLocker_waitEndsWithContext(t *testing.T) {
	for how, option := range lockers {
		t.Run(how, func(t *testing.T) {
			db, st := newDatabase(t), memstore.New()
			held, err := newClient(t, st).Mutex("migrations").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c := newClient(t, st)
			p := newProvider(t, db, option(stilegoose.New(c.Mutex("migrations"))), goose.NewGoMigration(1, nil, nil))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			failed := make(chan error)
			go func() {
				_, err := p.Up(ctx)
				failed <- err
			}()
			for l, err := range c.WatchLine(t.Context(), "migrations") {
				if err != nil {
					t.Fatal(err)
				}
				if len(l.Waiters) == 1 {
					break
				}
			}
			cancel()
			if err := <-failed; !errors.Is(err, context.Canceled) {
				t.Errorf("Up: got %v, want the end of its context", err)
			}
			if err := held.Release(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := p.Up(t.Context()); err != nil {
				t.Errorf("Up when the lock is free: %v", err)
			}
		})
	}
}

func TestLocker_UnlockWithoutLock(t *testing.T) {
	l := stilegoose.New(newClient(t, memstore.New()).Mutex("a"))
	if err := l.Unlock(t.Context(), nil); err == nil || err.Error() != `stilegoose: lock "a": unlock of a lock that is not held` {
		t.Errorf("got %v", err)
	}
}
