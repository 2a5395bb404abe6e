package guards

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"

	_ "github.com/go-sql-driver/mysql" // the drivers
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/sqlguard"
)

// sqlJournal is a row of a table.
type sqlJournal struct {
	db           *sql.DB
	guard        *sqlguard.Guard
	name         string
	append, read string
}

func openPostgres(ctx context.Context, s Servers, name string) (Journal, error) {
	j := &sqlJournal{
		name:   name,
		append: "UPDATE journal SET tokens = tokens || $1::bigint || ' ' WHERE name = $2",
		read:   "SELECT tokens FROM journal WHERE name = $1",
	}
	return j, j.open(ctx, "pgx", s.Postgres, sqlguard.Postgres, "INSERT INTO journal VALUES ($1, '') ON CONFLICT DO NOTHING")
}

func openMariaDB(ctx context.Context, s Servers, name string) (Journal, error) {
	j := &sqlJournal{
		name:   name,
		append: "UPDATE journal SET tokens = concat(tokens, ?, ' ') WHERE name = ?",
		read:   "SELECT tokens FROM journal WHERE name = ?",
	}
	return j, j.open(ctx, "mysql", s.MariaDB, sqlguard.MySQL, "INSERT IGNORE INTO journal VALUES (?, '')")
}

// openSQLite opens a database file for each journal, because a transaction locks the whole file.
func openSQLite(ctx context.Context, s Servers, name string) (Journal, error) {
	j := &sqlJournal{
		name:   name,
		append: "UPDATE journal SET tokens = tokens || ? || ' ' WHERE name = ?",
		read:   "SELECT tokens FROM journal WHERE name = ?",
	}
	dsn := "file:" + filepath.Join(s.Dir, name+".sqlite") + "?_txlock=immediate&_pragma=busy_timeout(120000)"
	return j, j.open(ctx, "sqlite", dsn, sqlguard.SQLite, "INSERT OR IGNORE INTO journal VALUES (?, '')")
}

func (j *sqlJournal) open(ctx context.Context, driver, dsn string, d sqlguard.Dialect, insert string) (err error) {
	if j.guard, err = sqlguard.New(d, ""); err != nil {
		return err
	}
	if j.db, err = sql.Open(driver, dsn); err != nil {
		return err
	}
	for _, statement := range []string{
		j.guard.Schema(),
		"CREATE TABLE IF NOT EXISTS journal (name varchar(200) NOT NULL PRIMARY KEY, tokens text NOT NULL)",
	} {
		if _, err := j.db.ExecContext(ctx, statement); err != nil {
			return errors.Join(err, j.db.Close())
		}
	}
	if _, err := j.db.ExecContext(ctx, insert, j.name); err != nil {
		return errors.Join(err, j.db.Close())
	}
	return nil
}

func (j *sqlJournal) Append(ctx context.Context, hold guard.Hold) error {
	return j.inTx(ctx, hold.Token(), func(tx *sql.Tx) error { return j.guard.Check(ctx, tx, j.name, hold.Token()) })
}

func (j *sqlJournal) AppendPlain(ctx context.Context, token uint64) error {
	return j.inTx(ctx, token, func(*sql.Tx) error { return nil })
}

func (j *sqlJournal) inTx(ctx context.Context, token uint64, check func(*sql.Tx) error) error {
	tx, err := j.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	err = check(tx)
	if err == nil {
		_, err = tx.ExecContext(ctx, j.append, int64(token), j.name)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (j *sqlJournal) Tokens(ctx context.Context) ([]uint64, error) {
	var text string
	if err := j.db.QueryRowContext(ctx, j.read, j.name).Scan(&text); err != nil {
		return nil, err
	}
	return parseTokens(text)
}

func (j *sqlJournal) Close() error { return j.db.Close() }
