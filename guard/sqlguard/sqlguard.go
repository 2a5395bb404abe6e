// Package sqlguard is a guard for the tables of a SQL database: PostgreSQL, SQLite and MariaDB; MySQL is
// not tested.
//
// A table of its own has a row for each resource, with the largest token seen. [Guard.Check] raises it
// in the transaction that changes the resource. So the comparison and the change are one step: if the
// transaction is committed, no larger token was seen before, and no smaller one is accepted after. The
// row stays locked until the transaction ends, so guarded transactions of one resource run one after the
// other. A client that is stopped with an open transaction blocks them: limit that with the database's
// own timeouts, such as idle_in_transaction_session_timeout of PostgreSQL.
//
// It is an order guard for exclusive holds, with the limits that package guard names.
//
// If the row has a column for the token, this package is not needed. One statement compares the token
// and changes the row:
//
//	UPDATE accounts SET balance = $1, token = $2 WHERE id = $3 AND token <= $2 AND $2 > 0
//
// If no row changes, the token is stale or zero, or there is no such row. MariaDB and MySQL do not count
// a row that has the same values already, unless the client sets CLIENT_FOUND_ROWS: with
// github.com/go-sql-driver/mysql, that is clientFoundRows=true in the data source name.
package sqlguard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/stilelock/stile/guard"
)

// A Dialect is the SQL of a kind of database.
type Dialect int

// The dialects.
const (
	// Postgres is for PostgreSQL.
	Postgres Dialect = iota + 1
	// SQLite is for SQLite 3.35 or newer.
	SQLite
	// MySQL is for MariaDB and, not tested, MySQL, with tables of a transactional engine.
	MySQL
)

// DefaultTable is the name of the table if [New] is given none.
const DefaultTable = "stile_fence"

// A Guard compares tokens in one table. It is safe for concurrent use.
type Guard struct {
	dialect     Dialect
	table       string
	raise, read string
}

// New returns a guard with a table; "" means [DefaultTable]. The table's name may have a schema before
// it, with a dot. It consists of ASCII letters, digits and underscores; New returns an error for any
// other name. New does not use a database: see [Guard.Schema].
func New(d Dialect, table string) (*Guard, error) {
	if table == "" {
		table = DefaultTable
	}
	for part := range strings.SplitSeq(table, ".") {
		if part == "" || strings.Trim(part, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
			return nil, fmt.Errorf("guard: table %q: use ASCII letters, digits and underscores, and dots between them", table)
		}
	}
	g := &Guard{dialect: d, table: table}
	bare := table[strings.LastIndexByte(table, '.')+1:]
	const insert = "INSERT INTO %s (resource, token) VALUES "
	switch d {
	case Postgres:
		g.raise = fmt.Sprintf(insert+"($1, $2) ON CONFLICT (resource) DO UPDATE SET token = greatest(%s.token, excluded.token) RETURNING token",
			table, bare)
	case SQLite:
		g.raise = fmt.Sprintf(insert+"(?, ?) ON CONFLICT (resource) DO UPDATE SET token = max(token, excluded.token) RETURNING token", table)
	case MySQL:
		g.raise = fmt.Sprintf(insert+"(?, ?) ON DUPLICATE KEY UPDATE token = greatest(token, VALUES(token))", table)
		g.read = fmt.Sprintf("SELECT token FROM %s WHERE resource = ? FOR UPDATE", table)
	default:
		return nil, fmt.Errorf("guard: there is no dialect %d", d)
	}
	return g, nil
}

// Schema returns the statement that creates the table, if it does not exist. Run it once, with the other
// migrations.
func (g *Guard) Schema() string {
	resource := "text"
	if g.dialect == MySQL {
		resource = "varbinary(512)" // an index needs a limit; names are compared byte by byte
	}
	return fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (resource %s NOT NULL PRIMARY KEY, token bigint NOT NULL)", g.table, resource)
}

// A Tx is a [*sql.Tx] or a [*sql.Conn] with an open transaction. A [*sql.DB] has these methods too, but
// does not work: each of its statements may be a transaction of its own.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Check compares a token with the largest one that the resource has seen, and remembers it when tx is
// committed. If it is smaller the error is a [*guard.StaleError], and the caller must roll tx back. After
// any other error the outcome is unknown, and tx must be rolled back too; if the database reports that it could
// not serialize transactions, or found a deadlock, the caller may try again with a new one.
//
// Check must come before the changes that it guards, in the outermost transaction: a rollback to a
// savepoint that was made before Check undoes the comparison. If no hold can have the token, the error
// matches [guard.ErrBadToken]. At every isolation level Check refuses stale transactions.
//
// Make it the first statement: then nothing that the transaction reads is older than the comparison. What
// was read before may miss the last write of an earlier holder, although Check accepts the token. SQLite
// does not let that happen, nor does PostgreSQL under REPEATABLE READ and SERIALIZABLE, nor MariaDB under
// SERIALIZABLE: one of the two transactions waits or fails. Under REPEATABLE READ, MariaDB lets it happen,
// in some cases even with innodb_snapshot_isolation.
func (g *Guard) Check(ctx context.Context, tx Tx, resource string, token uint64) error {
	if err := guard.CheckToken(resource, token); err != nil {
		return err
	}
	newest, err := g.largest(ctx, tx, resource, int64(token))
	switch {
	case err != nil:
		return fmt.Errorf("guard: %q: compare token %d in table %s: %w", resource, token, g.table, err)
	case newest != token:
		return &guard.StaleError{Resource: resource, Token: token, Newest: newest}
	}
	return nil
}

// largest raises the token of the resource, and returns the largest one.
func (g *Guard) largest(ctx context.Context, tx Tx, resource string, token int64) (newest uint64, err error) {
	if g.dialect != MySQL {
		err := tx.QueryRowContext(ctx, g.raise, resource, token).Scan(&newest)
		return newest, err
	}
	if _, err := tx.ExecContext(ctx, g.raise, resource, token); err != nil {
		return 0, err
	}
	err = tx.QueryRowContext(ctx, g.read, resource).Scan(&newest)
	return newest, err
}

// Tokens returns a [guard.Tokens] that keeps its tokens in the table, each in a transaction of its own.
// It is for resources outside the database. For those inside, use [Guard.Check]. It is as durable as the
// database's commits: if the database loses the last ones in a crash or a failover, because they are
// asynchronous, it accepts stale tokens, although the resource has what was written with later ones.
func (g *Guard) Tokens(db *sql.DB) guard.Tokens { return tokens{g, db} }

type tokens struct {
	guard *Guard
	db    *sql.DB
}

func (t tokens) Raise(ctx context.Context, resource string, token uint64) error {
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("guard: %q: %w", resource, err)
	}
	if err := t.guard.Check(ctx, tx, resource, token); err != nil {
		if undone := tx.Rollback(); undone != nil && !errors.Is(err, guard.ErrStale) {
			err = errors.Join(err, undone)
		}
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("guard: %q: commit token %d: %w", resource, token, err)
	}
	return nil
}
