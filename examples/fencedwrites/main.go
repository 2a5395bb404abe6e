// Fencedwrites sets the price of an article in PostgreSQL, under a lock. The database compares the token of
// the lock in the transaction that writes: if a later holder has written, it refuses the write of an
// earlier one.
//
//	cd examples
//	export STILE_URL=etcd://localhost:2379 DATABASE_URL=postgres://localhost/shop
//	go run ./fencedwrites bread 250
//
// Usually the context of a lost lock ends before the write, and nothing is sent. But a process may be stopped,
// or a request delayed, between the last look at the context and the write. The test shows that
// case: a holder writes after its lock was broken and another one has written.
//
// What it does not protect from: writes that do not check the token, of other programs or by hand; a lock
// store that was restored or replaced, so that its tokens begin again; and a database that loses its last
// commits, and with them the largest token, as in a failover to an asynchronous replica.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/guard/sqlguard"
	"github.com/stilelock/stile/storeurl"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: fencedwrites ARTICLE CENTS")
	}
	cents, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("STILE_URL"), os.Getenv("DATABASE_URL"), os.Args[1], cents); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, storeURL, databaseURL, article string, cents int) error {
	shop, err := openShop(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer shop.db.Close()
	conn, err := storeurl.Open(ctx, storeURL, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	client, err := stile.New(conn.Store, nil)
	if err != nil {
		return err
	}
	defer client.Close(ctx)

	return client.Mutex("prices/"+article).Do(ctx, func(ctx context.Context, h *stile.Hold) error {
		fmt.Printf("setting the price of %s to %d, with token %d\n", article, cents, h.Token())
		return shop.setPrice(ctx, h.Token(), article, cents)
	})
}

// A shop has a table of prices, and a table with the largest token for each lock.
type shop struct {
	db    *sql.DB
	fence *sqlguard.Guard
}

func openShop(ctx context.Context, databaseURL string) (*shop, error) {
	fence, err := sqlguard.New(sqlguard.Postgres, "")
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("pgx", databaseURL)
	if err != nil {
		return nil, err
	}
	for _, schema := range []string{fence.Schema(), "CREATE TABLE IF NOT EXISTS prices (article text PRIMARY KEY, cents bigint NOT NULL)"} {
		if _, err := db.ExecContext(ctx, schema); err != nil {
			db.Close()
			return nil, err
		}
	}
	return &shop{db, fence}, nil
}

// setPrice sets the price of an article. Its error is a [*guard.StaleError] if a later holder of the article's
// lock has written already.
func (s *shop) setPrice(ctx context.Context, token uint64, article string, cents int) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	// This comes first, so that whatever the transaction reads later is not outdated.
	if err := s.fence.Check(ctx, tx, "prices/"+article, token); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO prices VALUES ($1, $2) ON CONFLICT (article) DO UPDATE SET cents = $2`, article, cents)
	if err != nil {
		return err
	}
	return tx.Commit()
}
