package stilemigrate_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/database/stub"
	databasetest "github.com/golang-migrate/migrate/v4/database/testing"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilemigrate"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/store/redisstore"
)

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

func newClient(t *testing.T, st store.Store, change ...func(*stile.Options)) *stile.Client {
	t.Helper()
	opts := stile.Options{TTL: stile.MaxTTL}
	for _, f := range change {
		f(&opts)
	}
	c, err := stile.New(st, &opts)
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

// newDatabase creates an empty database, and returns how to connect to it.
func newDatabase(t *testing.T) (dsn string) {
	t.Helper()
	name := "test_" + strings.ToLower(rand.Text())
	admin, err := sql.Open("pgx/v5", postgres.Get(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if _, err := admin.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return postgres.Get(t).DSN() + " dbname=" + name
}

// openDriver returns a driver of golang-migrate.
func openDriver(t *testing.T, dsn string) database.Driver {
	t.Helper()
	db, err := sql.Open("pgx/v5", dsn)
	if err != nil {
		t.Fatal(err)
	}
	driver, err := pgx.WithInstance(db, &pgx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return driver
}

// newMigrate returns what golang-migrate's users use, and closes it at the end. There are two migrations,
// which fail if they are run a second time.
func newMigrate(t *testing.T, d database.Driver) *migrate.Migrate {
	t.Helper()
	files, err := iofs.New(fstest.MapFS{
		"1_first.up.sql":  {Data: []byte("CREATE TABLE first()")},
		"2_second.up.sql": {Data: []byte("CREATE TABLE second()")},
	}, ".")
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrate.NewWithInstance("iofs", files, "database", d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if source, database := m.Close(); source != nil || database != nil {
			t.Errorf("Close: %v, %v", source, database)
		}
	})
	return m
}

// An observed driver calls a function before each step of golang-migrate. It must never be locked.
type observed struct {
	database.Driver
	t      *testing.T
	before func(step string)
}

func (o *observed) Lock() error {
	o.t.Error("the driver's own lock is taken")
	return database.ErrLocked
}

func (o *observed) Version() (int, bool, error) {
	o.before("version")
	return o.Driver.Version()
}

func (o *observed) Run(r io.Reader) error {
	o.before("run")
	return o.Driver.Run(r)
}

func (o *observed) SetVersion(version int, dirty bool) error {
	o.before(fmt.Sprintf("version %d, dirty %t", version, dirty))
	return o.Driver.SetVersion(version, dirty)
}

func (o *observed) Drop() error {
	o.before("drop")
	return o.Driver.Drop()
}

// A closing driver calls a function before it is closed.
type closing struct {
	database.Driver
	before func()
}

func (c closing) Close() error {
	c.before()
	return c.Driver.Close()
}

// golang-migrate's own tests of drivers.
func TestDriver_conformance(t *testing.T) {
	onStores(t, func(t *testing.T, st store.Store, name string) {
		d := stilemigrate.New(openDriver(t, newDatabase(t)), newClient(t, st).Mutex(name))
		d.LockTimeout = 5 * time.Second // of a second Lock, which has to fail within 15 s
		databasetest.Test(t, d, []byte("CREATE TABLE first()"))
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}

// newPatient returns a Migrate that waits for the lock longer than a busy machine takes.
func newPatient(t *testing.T, driver database.Driver, mutex *stile.Mutex) *migrate.Migrate {
	t.Helper()
	d := stilemigrate.New(driver, mutex)
	d.LockTimeout = 4 * time.Minute
	m := newMigrate(t, d)
	m.LockTimeout = 5 * time.Minute
	return m
}

// All replicas migrate the database when they start. Each migration runs once.
func TestDriver_replicas(t *testing.T) {
	onStores(t, func(t *testing.T, st store.Store, name string) {
		dsn := newDatabase(t)
		const replicas = 4
		var mu sync.Mutex
		migrated, unchanged := 0, 0
		var wg sync.WaitGroup
		for range replicas {
			m := newPatient(t, &observed{openDriver(t, dsn), t, func(string) {}}, newClient(t, st).Mutex(name))
			wg.Go(func() {
				err := m.Up()
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					migrated++
				case errors.Is(err, migrate.ErrNoChange):
					unchanged++
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if migrated != 1 || unchanged != replicas-1 {
			t.Errorf("%d replicas have migrated, and %d found nothing to do; want 1 and %d", migrated, unchanged, replicas-1)
		}
		if version, dirty, err := openDriver(t, dsn).Version(); version != 2 || dirty || err != nil {
			t.Errorf("version of the database: got %d, dirty %v, %v, want 2", version, dirty, err)
		}
	})
}

// The lock is lost during a step: there is no further one. What has begun stays dirty, so that the next
// replica stops too.
// Promise: P6
func TestDriver_loss(t *testing.T) {
	for _, c := range []struct {
		during  string
		version int // afterwards
		dirty   bool
		next    error // of the next replica
	}{
		{"version", database.NilVersion, false, nil},
		{"version 1, dirty true", 1, true, migrate.ErrDirty{Version: 1}},
		{"run", 1, true, migrate.ErrDirty{Version: 1}},
		{"version 1, dirty false", 1, false, nil},
	} {
		t.Run(c.during, func(t *testing.T) {
			onStores(t, func(t *testing.T, st store.Store, name string) {
				dsn := newDatabase(t)
				lost := make(chan struct{})
				client := newClient(t, st, func(o *stile.Options) {
					o.Hooks.HoldEnd = func(context.Context, stile.HoldEndEvent) { close(lost) }
				})
				driver := &observed{Driver: openDriver(t, dsn), t: t}
				driver.before = func(step string) {
					select {
					case <-lost:
						t.Errorf("after the loss golang-migrate got to the step %q", step)
					default:
					}
					if step == c.during {
						breakHold(t, client, name)
						<-lost
					}
				}
				if err := newPatient(t, driver, client.Mutex(name)).Up(); !errors.Is(err, stile.ErrLost) {
					t.Errorf("Up: got %v, want the loss", err)
				}
				next := openDriver(t, dsn)
				if version, dirty, err := next.Version(); version != c.version || dirty != c.dirty || err != nil {
					t.Errorf("version of the database: got %d, dirty %t, %v, want %d, dirty %t", version, dirty, err, c.version, c.dirty)
				}
				if err := newPatient(t, next, newClient(t, st).Mutex(name)).Up(); !errors.Is(err, c.next) {
					t.Errorf("Up of the next replica: got %v, want %v", err, c.next)
				}
			})
		})
	}
}

// breakHold breaks the hold of the lock, as an operator does.
func breakHold(t *testing.T, c *stile.Client, name string) {
	t.Helper()
	l, err := c.Line(t.Context(), name)
	if err != nil || len(l.Holders) != 1 {
		t.Fatalf("holders of %q: got %+v, %v, want one", name, l.Holders, err)
	}
	if _, err := c.Break(t.Context(), name, l.Holders[0].Token); err != nil {
		t.Fatal(err)
	}
}

// newStub returns golang-migrate's driver that has no database.
func newStub(t *testing.T) database.Driver {
	t.Helper()
	d, err := (&stub.Stub{}).Open("stub://")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Drop is refused after a loss too. The deadline passes while the store is unreachable.
// Promise: P6
func TestDriver_dropAfterDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		c := newClient(t, st, func(o *stile.Options) { o.TTL = stile.DefaultTTL })
		d := stilemigrate.New(&observed{newStub(t), t, func(step string) { t.Errorf("the step %q is carried out", step) }}, c.Mutex("a"))
		if err := d.Lock(); err != nil {
			t.Fatal(err)
		}
		st.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{Drop: true} })
		time.Sleep(stile.DefaultTTL)
		if lost, ok := errors.AsType[*stile.LostError](d.Drop()); !ok || lost.Reason != stile.LostDeadline {
			t.Errorf("Drop: got %v, want the loss by deadline", lost)
		}
		st.SetFaults(nil)
		if err := d.Unlock(); !errors.Is(err, stile.ErrLost) {
			t.Errorf("Unlock: got %v, want the loss", err)
		}
	})
}

// A lock that is held for too long fails with golang-migrate's error, before golang-migrate itself gives
// up. Nothing is left in the line.
// Promise: P5
func TestDriver_lockTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		held, err := newClient(t, st).Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c := newClient(t, st)
		m := newMigrate(t, stilemigrate.New(newStub(t), c.Mutex("a")))
		start := time.Now()
		if err := m.Up(); !errors.Is(err, database.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Up: got %v, want ErrLocked", err)
		}
		if got, want := time.Since(start), 13500*time.Millisecond; got != want {
			t.Errorf("Up waited %v, want %v", got, want)
		}
		synctest.Wait()
		if l, err := c.Line(t.Context(), "a"); err != nil || len(l.Waiters) != 0 {
			t.Errorf("the line after that: got %+v, %v, want no waiter", l, err)
		}
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := m.Up(); err != nil {
			t.Errorf("Up when the lock is free: %v", err)
		}
	})
}

// If LockTimeout is too large, golang-migrate gives up first, and the driver acquires the lock later. Close
// releases it. See golang-migrate/migrate #269.
func TestDriver_closeReleasesAbandonedLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		other := newClient(t, st).Mutex("a")
		held, err := other.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d := stilemigrate.New(newStub(t), newClient(t, st).Mutex("a"))
		d.LockTimeout = time.Hour
		m, err := migrate.NewWithInstance("stub", nil, "stub", d)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Up(); !errors.Is(err, migrate.ErrLockTimeout) {
			t.Errorf("Up: got %v, want ErrLockTimeout", err)
		}
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := other.TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryLock beside the abandoned Lock: got %v, want it held", err)
		}
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		again, err := other.TryLock(t.Context())
		if err != nil {
			t.Fatalf("TryLock after Close: %v", err)
		}
		if err := again.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A migration may still run when Close is called. The lock is released only after the driver can run nothing more.
// Promise: P1
func TestDriver_closesBeforeRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		other := newClient(t, st).Mutex("a")
		closed := 0
		d := stilemigrate.New(closing{newStub(t), func() {
			closed++
			if _, err := other.TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
				t.Errorf("TryLock before the driver is closed: got %v, want ErrHeld", err)
			}
		}}, newClient(t, st).Mutex("a"))
		if err := d.Lock(); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil || closed != 1 {
			t.Errorf("Close: %v; the driver was closed %d times", err, closed)
		}
		h, err := other.TryLock(t.Context())
		if err != nil {
			t.Fatalf("TryLock after Close: %v", err)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestDriver_UnlockWithoutLock(t *testing.T) {
	d := stilemigrate.New(newStub(t), newClient(t, memstore.New()).Mutex("a"))
	if err := d.Unlock(); !errors.Is(err, database.ErrNotLocked) {
		t.Errorf("got %v, want ErrNotLocked", err)
	}
}

// Open keeps the lock and its timeout.
func TestDriver_Open(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		held, err := newClient(t, st).Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d := stilemigrate.New(&stub.Stub{}, newClient(t, st).Mutex("a"))
		d.LockTimeout = time.Minute
		opened, err := d.Open("stub://")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := opened.Lock(); !errors.Is(err, database.ErrLocked) || time.Since(start) != time.Minute {
			t.Errorf("Lock after Open: got %v after %v, want ErrLocked after a minute", err, time.Since(start))
		}
		if err := held.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
