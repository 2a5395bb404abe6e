package guards_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	"modernc.org/sqlite"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/guardtest"
	"github.com/stilelock/stile/guard/sqlguard"
	"github.com/stilelock/stile/internal/testservers"
)

// sqlTimeout ends a test that hangs. It is no verdict: a busy machine needs seconds.
const sqlTimeout = 5 * time.Minute

// An sqlKind is a kind of database, with its server.
type sqlKind struct {
	dialect sqlguard.Dialect
	driver  string
	// create returns the data source name of a new, empty database.
	create func(t *testing.T) string
	// protocols and options are appended to the data source name, each in turn. protocols change how
	// statements are sent, and options what transactions do.
	protocols, options []string
	// levels are the isolation levels.
	levels []sql.IsolationLevel
	// again reports whether the database asks for a new transaction: after a failure to serialize, a
	// deadlock, or because it was busy.
	again func(error) bool
	// noWait is a statement after which a connection does not wait for locks. An error for which locked
	// returns true says that it would have.
	noWait string
	locked func(error) bool
	// connection selects the identifier of the connection, and waiting whether the connection with an
	// identifier waits for a lock. They are empty if the database does not tell.
	connection, waiting string
	// lookAgain is how long the database shows the same waiters. Every look begins that time anew.
	lookAgain time.Duration

	mu   sync.Mutex
	last time.Time // of the last look
}

// levelsOfServers are the isolation levels of the databases with a server.
var levelsOfServers = []sql.IsolationLevel{
	sql.LevelDefault, sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable,
}

func TestSQL_Postgres(t *testing.T) {
	t.Parallel()
	server := testservers.StartPostgres(t)
	admin := openSQL(t, "pgx", server.DSN())
	var schemas atomic.Int32
	code := func(codes ...string) func(error) bool {
		return func(err error) bool {
			e, ok := errors.AsType[*pgconn.PgError](err)
			return ok && slices.Contains(codes, e.Code)
		}
	}
	testSQL(t, &sqlKind{
		dialect: sqlguard.Postgres,
		driver:  "pgx",
		create: func(t *testing.T) string {
			schema := fmt.Sprintf("s%d", schemas.Add(1))
			execSQL(t, admin, "CREATE SCHEMA "+schema)
			return server.DSN() + " search_path=" + schema
		},
		protocols:  []string{" default_query_exec_mode=exec", " default_query_exec_mode=simple_protocol"},
		options:    []string{""},
		levels:     levelsOfServers,
		again:      code("40001", "40P01"),
		noWait:     "SET lock_timeout = '1ms'",
		locked:     code("55P03"),
		connection: "SELECT pg_backend_pid()",
		waiting:    "SELECT count(*) FROM pg_stat_activity WHERE pid = ? AND wait_event_type = 'Lock'",
	})
}

func TestSQL_MariaDB(t *testing.T) {
	t.Parallel()
	server := testservers.StartMariaDB(t)
	admin := openSQL(t, "mysql", server.DSN())
	var databases atomic.Int32
	number := func(numbers ...uint16) func(error) bool {
		return func(err error) bool {
			e, ok := errors.AsType[*mysql.MySQLError](err)
			return ok && slices.Contains(numbers, e.Number)
		}
	}
	testSQL(t, &sqlKind{
		dialect: sqlguard.MySQL,
		driver:  "mysql",
		create: func(t *testing.T) string {
			config, err := mysql.ParseDSN(server.DSN())
			if err != nil {
				t.Fatal(err)
			}
			config.DBName = fmt.Sprintf("d%d", databases.Add(1))
			execSQL(t, admin, "CREATE DATABASE "+config.DBName)
			return config.FormatDSN()
		},
		protocols:  []string{"?interpolateParams=true", "?clientFoundRows=true"},
		options:    []string{"?innodb_snapshot_isolation=OFF", "?innodb_snapshot_isolation=ON"},
		lookAgain:  120 * time.Millisecond,
		levels:     levelsOfServers,
		again:      number(1213, 1020, 1205),
		noWait:     "SET SESSION innodb_lock_wait_timeout = 0",
		locked:     number(1205),
		connection: "SELECT connection_id()",
		waiting:    "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = ? AND trx_state = 'LOCK WAIT'",
	})
}

func TestSQL_SQLite(t *testing.T) {
	t.Parallel()
	busy := func(err error) bool {
		e, ok := errors.AsType[*sqlite.Error](err)
		return ok && e.Code()&0xff == 5 // SQLITE_BUSY, and SQLITE_BUSY_SNAPSHOT
	}
	testSQL(t, &sqlKind{
		dialect: sqlguard.SQLite,
		driver:  "sqlite",
		create: func(t *testing.T) string {
			return "file:" + filepath.Join(t.TempDir(), "db") + fmt.Sprintf("?_pragma=busy_timeout(%d)", sqlTimeout.Milliseconds())
		},
		options: []string{
			"", "&_txlock=immediate", "&_pragma=journal_mode(WAL)", "&_pragma=journal_mode(WAL)&_txlock=immediate",
		},
		levels: []sql.IsolationLevel{sql.LevelDefault},
		again:  busy,
		noWait: "PRAGMA busy_timeout = 0",
		locked: busy,
	})
}

// openSQL opens a database until the test ends.
func openSQL(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
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

func execSQL(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// testSQL tests the guard of a kind of database.
func testSQL(t *testing.T, k *sqlKind) {
	for _, test := range []struct {
		name      string
		protocols bool // also with each protocol
		run       func(t *testing.T, f *sqlFixture)
	}{
		{"Tokens", true, func(t *testing.T, f *sqlFixture) { guardtest.Tokens(t, f.guard.Tokens(f.db)) }},
		{"refused tokens change nothing", true, testSQLRefused},
		{"a table is missing", true, testSQLNoTable},
		{"qualified table", false, testSQLQualified},
		{"transaction of a connection", false, testSQLConn},
		{"writers", false, testSQLWriters},
		{"first writers", false, testSQLFirstWriters},
		{"one after the other", false, testSQLOneAfterOther},
		{"stale after reading", false, testSQLStaleAfterReading},
		{"older after reading", false, testSQLOlderAfterReading},
		{"one statement", true, testSQLOneStatement},
	} {
		all := k.options
		if test.protocols {
			all = slices.Concat(all, k.protocols)
		}
		for _, options := range all {
			t.Run(strings.TrimSuffix(test.name+" with "+options, " with "), func(t *testing.T) {
				t.Parallel()
				test.run(t, newSQLFixture(t, k, options))
			})
		}
	}
}

// An sqlFixture is a database with a guard's table, and a table of journals: texts with the tokens of the
// accepted writes in their order, each followed by a space.
type sqlFixture struct {
	*sqlKind
	dsn   string // with options
	db    *sql.DB
	guard *sqlguard.Guard
}

func newSQLFixture(t *testing.T, k *sqlKind, options string) *sqlFixture {
	t.Helper()
	f := &sqlFixture{sqlKind: k, dsn: k.create(t) + options}
	f.db = openSQL(t, k.driver, f.dsn)
	f.guard = f.newGuard(t, "")
	execSQL(t, f.db, "CREATE TABLE journals (name varchar(100) NOT NULL PRIMARY KEY, tokens text NOT NULL, token bigint NOT NULL DEFAULT 0)")
	return f
}

// newGuard returns a guard with a table that it creates.
func (f *sqlFixture) newGuard(t *testing.T, table string) *sqlguard.Guard {
	t.Helper()
	g, err := sqlguard.New(f.dialect, table)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the table may exist
		execSQL(t, f.db, g.Schema())
	}
	return g
}

// addJournal adds an empty journal.
func (f *sqlFixture) addJournal(t *testing.T, name string) {
	t.Helper()
	execSQL(t, f.db, fmt.Sprintf("INSERT INTO journals (name, tokens) VALUES ('%s', '')", name))
}

// journal returns the tokens of a journal.
func (f *sqlFixture) journal(t *testing.T, name string) []uint64 {
	t.Helper()
	var text string
	if err := f.db.QueryRowContext(t.Context(), f.query("SELECT tokens FROM journals WHERE name = ?"), name).Scan(&text); err != nil {
		t.Fatal(err)
	}
	var all []uint64
	for word := range strings.FieldsSeq(text) {
		token, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, token)
	}
	return all
}

// query returns a statement with the placeholders of the database instead of question marks.
func (f *sqlFixture) query(text string) string {
	if f.dialect != sqlguard.Postgres {
		return text
	}
	parts := strings.Split(text, "?")
	for i := range parts[1:] {
		parts[i] += fmt.Sprintf("$%d", i+1)
	}
	return strings.Join(parts, "")
}

// write appends a token to a journal, in a transaction that has been checked: it reads the text, and
// writes another one.
func (f *sqlFixture) write(ctx context.Context, tx sqlguard.Tx, name string, token uint64) error {
	var text string
	if err := tx.QueryRowContext(ctx, f.query("SELECT tokens FROM journals WHERE name = ?"), name).Scan(&text); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, f.query("UPDATE journals SET tokens = ? WHERE name = ?"), fmt.Sprintf("%s%d ", text, token), name)
	return err
}

// A beginner is a [*sql.DB] or a [*sql.Conn].
type beginner interface {
	BeginTx(ctx context.Context, options *sql.TxOptions) (*sql.Tx, error)
}

// inTx runs a function in a transaction, and commits it unless there is an error.
func inTx(ctx context.Context, db beginner, level sql.IsolationLevel, run func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	if err := run(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// guarded appends a token to the journal that has the name of the resource, in a guarded transaction.
// It calls checked after Check.
func (f *sqlFixture) guarded(ctx context.Context, db beginner, level sql.IsolationLevel, name string, token uint64, checked func()) error {
	return inTx(ctx, db, level, func(tx *sql.Tx) error {
		if err := f.guard.Check(ctx, tx, name, token); err != nil {
			return err
		}
		checked()
		return f.write(ctx, tx, name, token)
	})
}

// retried is guarded, with a new transaction while the database asks for one.
func (f *sqlFixture) retried(ctx context.Context, db beginner, level sql.IsolationLevel, name string, token uint64, checked func()) error {
	for {
		if err := f.guarded(ctx, db, level, name, token, checked); !f.again(err) || ctx.Err() != nil {
			return err
		}
	}
}

// A smaller token is refused, and the same one is not. What a transaction did that was rolled back is
// undone, its token included.
func testSQLRefused(t *testing.T, f *sqlFixture) {
	f.addJournal(t, "r")
	errUndo := errors.New("undo")
	for i, step := range []struct {
		token uint64
		end   error // of the function in the transaction
		want  error
	}{
		{token: 5},
		{token: 5},
		{token: 4, want: &guard.StaleError{Resource: "r", Token: 4, Newest: 5}},
		{token: 7, end: errUndo, want: errUndo},
		{token: 6},
		{token: 5, want: &guard.StaleError{Resource: "r", Token: 5, Newest: 6}},
		{token: 0, want: guard.ErrBadToken},
		{token: 1 << 63, want: guard.ErrBadToken},
		{token: 6},
		{token: 1<<63 - 1},
		{token: 7, want: &guard.StaleError{Resource: "r", Token: 7, Newest: 1<<63 - 1}},
	} {
		err := inTx(t.Context(), f.db, sql.LevelDefault, func(tx *sql.Tx) error {
			// The write comes first here, so that something has to be undone.
			if err := f.write(t.Context(), tx, "r", step.token); err != nil {
				return err
			}
			if err := f.guard.Check(t.Context(), tx, "r", step.token); err != nil {
				return err
			}
			return step.end
		})
		if want, ok := errors.AsType[*guard.StaleError](step.want); ok && !isStale(err, *want) || !ok && !errors.Is(err, step.want) {
			t.Errorf("step %d: token %d: got %v, want %v", i, step.token, err, step.want)
		}
	}
	if got, want := f.journal(t, "r"), []uint64{5, 5, 6, 6, 1<<63 - 1}; !slices.Equal(got, want) {
		t.Errorf("the journal: got %d, want %d", got, want)
	}
}

// Without its table a guard refuses, and says which table it needs.
func testSQLNoTable(t *testing.T, f *sqlFixture) {
	g, err := sqlguard.New(f.dialect, "no_such_table")
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"Check": inTx(t.Context(), f.db, sql.LevelDefault, func(tx *sql.Tx) error { return g.Check(t.Context(), tx, "orders", 5) }),
		"Raise": g.Tokens(f.db).Raise(t.Context(), "orders", 5),
	} {
		if err == nil || errors.Is(err, guard.ErrStale) || errors.Is(err, guard.ErrBadToken) {
			t.Errorf("%s: got %v, want another error", name, err)
			continue
		}
		for _, part := range []string{"guard: ", `"orders"`, "token 5", "in table no_such_table: "} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: got %q, want %q in it", name, err, part)
			}
		}
	}
}

// A table may be in another schema. A table of the same name does not matter.
func testSQLQualified(t *testing.T, f *sqlFixture) {
	schema := "main"
	if f.dialect != sqlguard.SQLite {
		// SCHEMA is another word for a database in MariaDB.
		schema = fmt.Sprintf("q%d", rand.Uint64())
		execSQL(t, f.db, "CREATE SCHEMA "+schema)
	}
	for _, table := range []string{schema + ".stile_fence", schema + ".Fence_2", "Fence_3"} {
		g := f.newGuard(t, table)
		for _, step := range []struct {
			token uint64
			stale bool
		}{{5, false}, {6, false}, {5, true}} {
			err := g.Tokens(f.db).Raise(t.Context(), table, step.token)
			if !step.stale && err != nil || step.stale && !errors.Is(err, guard.ErrStale) {
				t.Errorf("table %s: token %d: got %v, want it refused: %v", table, step.token, err, step.stale)
			}
		}
		var token uint64
		if err := f.db.QueryRowContext(t.Context(), f.query("SELECT token FROM "+table+" WHERE resource = ?"), table).Scan(&token); err != nil || token != 6 {
			t.Errorf("table %s: got %d, %v; want 6 in it", table, token, err)
		}
	}
}

// A transaction may be one that was begun with a statement.
func testSQLConn(t *testing.T, f *sqlFixture) {
	f.addJournal(t, "r")
	conn, err := f.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exec := func(statement string) {
		t.Helper()
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		token uint64
		stale bool
	}{{5, false}, {4, true}, {6, false}} {
		exec("BEGIN")
		err := f.guard.Check(t.Context(), conn, "r", step.token)
		if step.stale != errors.Is(err, guard.ErrStale) || !step.stale && err != nil {
			t.Errorf("token %d: got %v, want it refused: %v", step.token, err, step.stale)
		}
		if err := f.write(t.Context(), conn, "r", step.token); err != nil {
			t.Fatal(err)
		}
		exec(map[bool]string{true: "ROLLBACK", false: "COMMIT"}[step.stale])
	}
	if got, want := f.journal(t, "r"), []uint64{5, 6}; !slices.Equal(got, want) {
		t.Errorf("the journal: got %d, want %d", got, want)
	}
}

// Concurrent writers with old and new tokens never write an old one after a new one, and no accepted
// write is lost.
func testSQLWriters(t *testing.T, f *sqlFixture) {
	for _, level := range f.levels {
		t.Run(level.String(), func(t *testing.T) {
			f.addJournal(t, level.String())
			f.compete(t, level.String(), 4, 15, func(ctx context.Context, token uint64) error {
				return f.retried(ctx, f.db, level, level.String(), token, func() {})
			})
		})
	}
}

// The first writers of a resource have no row to lock yet.
func testSQLFirstWriters(t *testing.T, f *sqlFixture) {
	for _, level := range f.levels {
		t.Run(level.String(), func(t *testing.T) {
			for i := range 8 {
				name := fmt.Sprintf("%s %d", level, i)
				f.addJournal(t, name)
				f.compete(t, name, 2, 1, func(ctx context.Context, token uint64) error {
					return f.retried(ctx, f.db, level, name, token, func() {})
				})
			}
		})
	}
}

// compete lets writers write at the same time, each a number of times, and compares the journal with
// what was accepted.
func (f *sqlFixture) compete(t *testing.T, name string, writers, times int, write func(ctx context.Context, token uint64) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sqlTimeout)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var accepted []uint64
	var newest atomic.Uint64
	start := make(chan struct{})
	for range writers {
		wg.Go(func() {
			<-start
			for range times {
				token := newest.Add(1) // a new holder's
				if rand.N(2) == 0 {
					token -= min(token-1, rand.Uint64N(4)) // a hold's that may be over
				}
				switch err := write(ctx, token); {
				case err == nil:
					mu.Lock()
					accepted = append(accepted, token)
					mu.Unlock()
				case !errors.Is(err, guard.ErrStale):
					t.Errorf("token %d: %v", token, err)
				}
			}
		})
	}
	close(start)
	wg.Wait()
	got := f.journal(t, name)
	if !slices.IsSorted(got) {
		t.Errorf("a smaller token was accepted after a larger one: %d", got)
	}
	slices.Sort(accepted)
	if slices.Sort(got); !slices.Equal(got, accepted) {
		t.Errorf("the journal has the tokens %d, and accepted were %d", got, accepted)
	}
	if len(accepted) == 0 {
		t.Error("no token was accepted")
	}
}

// A transaction that has been checked keeps others waiting until it ends.
func testSQLOneAfterOther(t *testing.T, f *sqlFixture) {
	for _, level := range f.levels {
		for i, c := range []struct {
			before        uint64 // the newest token before; 0 if the resource is new
			first, second uint64
			undo          bool // rolls the first one back
			want          []uint64
		}{
			{0, 1, 2, false, []uint64{1, 2}},
			{0, 2, 1, false, []uint64{2}},
			{0, 2, 1, true, []uint64{1}},
			{1, 2, 3, false, []uint64{1, 2, 3}},
			{1, 3, 2, false, []uint64{1, 3}},
			{1, 3, 2, true, []uint64{1, 2}},
			{1, 1, 1, false, []uint64{1, 1, 1}},
		} {
			t.Run(fmt.Sprintf("%s/%d then %d then %d, undo %v", level, c.before, c.first, c.second, c.undo), func(t *testing.T) {
				name := fmt.Sprintf("%s %d", level, i)
				f.addJournal(t, name)
				ctx, cancel := context.WithTimeout(t.Context(), sqlTimeout)
				defer cancel()
				if c.before > 0 {
					if err := f.guarded(ctx, f.db, level, name, c.before, func() {}); err != nil {
						t.Fatal(err)
					}
				}
				first, err := f.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
				if err != nil {
					t.Fatal(err)
				}
				defer first.Rollback()
				if err := f.guard.Check(ctx, first, name, c.first); err != nil {
					t.Fatal(err)
				}

				// A transaction that may not wait is refused.
				if err := f.withoutWaiting(t, func(conn *sql.Conn) error {
					return f.guarded(ctx, conn, level, name, c.second, func() {})
				}); !f.locked(err) {
					t.Errorf("the second transaction, without waiting: got %v, want it locked", err)
				}

				// One that waits goes on when the first one has ended.
				conn, id := f.connect(t)
				var ending atomic.Bool
				done := make(chan error, 1)
				go func() {
					done <- f.retried(ctx, conn, level, name, c.second, func() {
						if !ending.Load() {
							t.Error("the second transaction was checked before the first one ended")
						}
					})
				}()
				if ended := f.awaitWaiting(t, id, done); ended != nil {
					t.Fatalf("the second transaction does not wait: it has ended, with %v", *ended)
				}
				if err := f.write(ctx, first, name, c.first); err != nil {
					t.Fatal(err)
				}
				ending.Store(true)
				end := first.Commit
				if c.undo {
					end = first.Rollback
				}
				if err := end(); err != nil {
					t.Fatal(err)
				}
				err = <-done
				stale := !slices.Contains(c.want[len(c.want)-1:], c.second)
				if stale != errors.Is(err, guard.ErrStale) || !stale && err != nil {
					t.Errorf("the second transaction: got %v, want it refused: %v", err, stale)
				}
				if got := f.journal(t, name); !slices.Equal(got, c.want) {
					t.Errorf("the journal: got %d, want %d", got, c.want)
				}
			})
		}
	}
}

// connect returns a connection and its identifier.
func (f *sqlFixture) connect(t *testing.T) (conn *sql.Conn, id int64) {
	t.Helper()
	conn, err := f.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if f.connection != "" {
		if err := conn.QueryRowContext(t.Context(), f.connection).Scan(&id); err != nil {
			t.Fatal(err)
		}
	}
	return conn, id
}

// withoutWaiting runs a function with a connection that does not wait for locks.
func (f *sqlFixture) withoutWaiting(t *testing.T, run func(conn *sql.Conn) error) error {
	t.Helper()
	conn, _ := f.connect(t)
	if _, err := conn.ExecContext(t.Context(), f.noWait); err != nil {
		t.Fatal(err)
	}
	err := run(conn)
	// No other test gets the connection.
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	return err
}

// awaitWaiting waits until a connection waits for a lock. If instead done receives an error, it returns
// that. It returns at once if the database does not show its waiters.
func (f *sqlFixture) awaitWaiting(t *testing.T, id int64, done <-chan error) *error {
	t.Helper()
	if f.waiting == "" {
		return nil
	}
	for end := time.Now().Add(sqlTimeout); time.Now().Before(end); {
		if f.isWaiting(t, id) {
			return nil
		}
		select {
		case err := <-done:
			return &err
		case <-time.After(5 * time.Millisecond):
		}
	}
	t.Fatalf("the connection does not wait for a lock after %v", sqlTimeout)
	return nil
}

// isWaiting reports whether a connection waits for a lock.
func (f *sqlFixture) isWaiting(t *testing.T, id int64) bool {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	time.Sleep(f.lookAgain - time.Since(f.last))
	defer func() { f.last = time.Now() }()
	var waiting int
	if err := f.db.QueryRowContext(t.Context(), f.query(f.waiting), id).Scan(&waiting); err != nil {
		t.Fatal(err)
	}
	return waiting > 0
}

// A holder that has read before Check, and became stale after that, is refused, also if it reads an old
// state of the database.
func testSQLStaleAfterReading(t *testing.T, f *sqlFixture) {
	for _, level := range f.levels {
		t.Run(level.String(), func(t *testing.T) {
			name := level.String()
			f.addJournal(t, name)
			if err := f.guarded(t.Context(), f.db, level, name, 6, func() {}); err != nil {
				t.Fatal(err)
			}
			committed, err := f.overtake(t, level, name, 6, 7)
			if stale := (guard.StaleError{Resource: name, Token: 6, Newest: 7}); committed && !f.again(err) && !isStale(err, stale) {
				t.Errorf("a token that became stale after reading: got %v, want it refused because of %d", err, stale.Newest)
			}
			if !committed && err != nil { // the reader kept the later holder waiting
				t.Errorf("a token that is not stale: got %v, want it accepted", err)
			}
		})
	}
}

// overtake begins a transaction that reads and then checks a token. Between the two another guarded
// transaction is to be committed, which does not wait for locks. overtake returns whether it was, and the
// error of Check.
func (f *sqlFixture) overtake(t *testing.T, level sql.IsolationLevel, name string, token, other uint64) (committed bool, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sqlTimeout)
	defer cancel()
	tx, err := f.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	var tokens string
	if err := tx.QueryRowContext(ctx, f.query("SELECT tokens FROM journals WHERE name = ?"), name).Scan(&tokens); err != nil {
		t.Fatal(err)
	}
	err = f.withoutWaiting(t, func(conn *sql.Conn) error {
		return f.guarded(ctx, conn, level, name, other, func() {})
	})
	if err != nil && !f.locked(err) {
		t.Fatalf("the other transaction: got %v, want it committed or locked", err)
	}
	return err == nil, f.guard.Check(ctx, tx, name, token)
}

// isStale reports whether an error is that for a stale token.
func isStale(err error, want guard.StaleError) bool {
	stale, ok := errors.AsType[*guard.StaleError](err)
	return ok && *stale == want
}

// What a transaction has read before Check may be older than an earlier holder's last write. Databases
// differ in whether they refuse the transaction then, or keep the earlier holder waiting.
func testSQLOlderAfterReading(t *testing.T, f *sqlFixture) {
	for _, level := range f.levels {
		for _, before := range []uint64{0, 4, 5} { // the newest token before; 0 if the resource is new
			t.Run(fmt.Sprintf("%s/%d then 5 then 6", level, before), func(t *testing.T) {
				name := fmt.Sprintf("%s %d", level, before)
				f.addJournal(t, name)
				if before > 0 {
					if err := f.retried(t.Context(), f.db, level, name, before, func() {}); err != nil {
						t.Fatal(err)
					}
				}
				committed, err := f.overtake(t, level, name, 6, 5)
				if err != nil && !f.again(err) {
					t.Errorf("Check: got %v, want the token accepted, or that the transaction is to be repeated", err)
				}
				if got, want := committed && err == nil, f.missesWrites(level, before == 5); got != want {
					t.Errorf("the other transaction committed: %v; Check: %v; so this one misses what the other wrote: %v, want %v", committed, err, got, want)
				}
			})
		}
	}
}

// missesWrites reports whether a transaction that reads before Check may miss what an earlier holder
// writes meanwhile, with the same token as before or with a new one.
func (f *sqlFixture) missesWrites(level sql.IsolationLevel, same bool) bool {
	weak := level == sql.LevelReadUncommitted || level == sql.LevelReadCommitted
	switch f.dialect {
	case sqlguard.Postgres:
		return weak || level == sql.LevelDefault
	case sqlguard.MySQL:
		// With the same token, MariaDB does not change the guard's row.
		snapshots := strings.Contains(f.dsn, "innodb_snapshot_isolation=ON")
		return weak || level != sql.LevelSerializable && (!snapshots || same)
	case sqlguard.SQLite:
	}
	return false
}

// Without a guard, one statement compares the token and changes the row.
func testSQLOneStatement(t *testing.T, f *sqlFixture) {
	execSQL(t, f.db, "CREATE TABLE accounts (id varchar(100) NOT NULL PRIMARY KEY, balance varchar(100) NOT NULL, token bigint NOT NULL)")
	execSQL(t, f.db, "INSERT INTO accounts (id, balance, token) VALUES ('a', '0', 0)")
	unchanged := int64(1) // rows that MariaDB counts if they have the same values before
	if f.dialect == sqlguard.MySQL && !strings.Contains(f.dsn, "clientFoundRows=true") {
		unchanged = 0
	}
	for _, step := range []struct {
		id, balance string
		token       uint64
		rows        int64
	}{
		{"a", "10", 5, 1},
		{"a", "11", 5, 1},
		{"a", "11", 5, unchanged},
		{"a", "12", 4, 0},
		{"a", "13", 6, 1},
		{"no account", "1", 7, 0},
	} {
		// As in the documentation, but for the numbers of the placeholders.
		rows, err := f.affected(t.Context(), f.db, "UPDATE accounts SET balance = ?, token = ? WHERE id = ? AND token <= ?", step.balance, step.token, step.id, step.token)
		if err != nil || rows != step.rows {
			t.Errorf("balance %s of %s with token %d: got %d rows, %v; want %d", step.balance, step.id, step.token, rows, err, step.rows)
		}
	}

	statement := "UPDATE journals SET tokens = tokens || ?, token = ? WHERE name = ? AND token <= ?"
	if f.dialect == sqlguard.MySQL {
		statement = strings.Replace(statement, "tokens || ?", "concat(tokens, ?)", 1)
	}
	for _, level := range f.levels {
		t.Run(level.String(), func(t *testing.T) {
			f.addJournal(t, level.String())
			f.compete(t, level.String(), 4, 15, func(ctx context.Context, token uint64) error {
				for {
					err := inTx(ctx, f.db, level, func(tx *sql.Tx) error {
						rows, err := f.affected(ctx, tx, statement, fmt.Sprintf("%d ", token), token, level.String(), token)
						if err == nil && rows == 0 {
							return guard.ErrStale
						}
						return err
					})
					if !f.again(err) || ctx.Err() != nil {
						return err
					}
				}
			})
		})
	}
}

// affected runs a statement and returns the number of rows that it has changed.
func (f *sqlFixture) affected(ctx context.Context, tx sqlguard.Tx, statement string, args ...any) (int64, error) {
	for i, arg := range args {
		if token, ok := arg.(uint64); ok {
			args[i] = int64(token)
		}
	}
	result, err := tx.ExecContext(ctx, f.query(statement), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// A noTx is a transaction without a database.
type noTx struct{ t *testing.T }

func (n noTx) ExecContext(_ context.Context, query string, _ ...any) (sql.Result, error) {
	n.t.Errorf("a statement was executed: %s", query)
	return nil, errors.ErrUnsupported
}

func (n noTx) QueryRowContext(_ context.Context, query string, _ ...any) *sql.Row {
	n.t.Fatalf("a statement was executed: %s", query)
	return nil
}

// A token that no hold has is refused without the database.
func TestSQL_badTokens(t *testing.T) {
	t.Parallel()
	for _, d := range []sqlguard.Dialect{sqlguard.Postgres, sqlguard.SQLite, sqlguard.MySQL} {
		g, err := sqlguard.New(d, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, token := range []uint64{0, 1 << 63} {
			if err := g.Check(t.Context(), noTx{t}, "orders", token); !errors.Is(err, guard.ErrBadToken) {
				t.Errorf("dialect %d: token %d: got %v, want ErrBadToken", d, token, err)
			}
		}
	}
}

// The name of a table is part of statements, so New accepts only plain ones.
func TestSQL_badNew(t *testing.T) {
	t.Parallel()
	for _, table := range []string{".", "a.", ".a", "a..b", "a b", "a;b", `"a"`, "`a`", "a-b", "tä", "a\x00", " ", "(a)"} {
		if g, err := sqlguard.New(sqlguard.Postgres, table); err == nil || g != nil || !strings.Contains(err.Error(), strconv.Quote(table)) {
			t.Errorf("table %q: got %v, %v; want an error with the name", table, g, err)
		}
	}
	for _, d := range []sqlguard.Dialect{0, 4, -1} {
		if g, err := sqlguard.New(d, ""); err == nil || g != nil {
			t.Errorf("dialect %d: got %v, %v; want an error", d, g, err)
		}
	}
}
