package sqlguard_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/guard/sqlguard"
)

// Made elsewhere: the database with its driver, a client of the locks, and a hold.
var (
	ctx    context.Context
	db     *sql.DB
	client *stile.Client
	hold   *stile.Hold
)

// The transaction that changes the account compares the token first.
func ExampleGuard() {
	fence, err := sqlguard.New(sqlguard.Postgres, "") // fence.Schema() is one of the program's migrations
	if err != nil {
		log.Fatal(err)
	}
	err = client.Mutex("accounts/7").Do(ctx, func(ctx context.Context, hold *stile.Hold) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := fence.Check(ctx, tx, "accounts/7", hold.Token()); err != nil {
			return err // matches guard.ErrStale if a later holder was there
		}
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 7"); err != nil {
			return err
		}
		return tx.Commit()
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A function that is part of a larger transaction takes a Tx. Its caller may have a *sql.Tx, or the Tx of a
// library that extends it.
func ExampleTx() {
	fence, err := sqlguard.New(sqlguard.Postgres, "")
	if err != nil {
		log.Fatal(err)
	}
	credit := func(tx sqlguard.Tx, hold *stile.Hold, amount int) error {
		if err := fence.Check(hold.Context(), tx, hold.Name(), hold.Token()); err != nil {
			return err // the caller rolls the transaction back
		}
		_, err := tx.ExecContext(hold.Context(), "UPDATE accounts SET balance = balance + $1 WHERE id = 7", amount)
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback()
	if err := credit(tx, hold, 10); err != nil {
		log.Print(err)
	} else if err := tx.Commit(); err != nil {
		log.Print(err)
	}
}

// The dialect is that of the database in which the guard has its table.
func ExampleDialect() {
	fence, err := sqlguard.New(sqlguard.SQLite, "billing_fence")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(fence.Schema())
	// Output: CREATE TABLE IF NOT EXISTS billing_fence (resource text NOT NULL PRIMARY KEY, token bigint NOT NULL)
}
