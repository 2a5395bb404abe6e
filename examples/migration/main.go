// Migration migrates a database when a service starts. Start as many replicas as you like: one migrates,
// the others wait in line for it, and then find nothing to do.
//
//	cd examples/migration && go run . localhost:6379 postgres://localhost/shop
//
// If the lock is lost, the open transaction is rolled back and the program fails. A statement that the
// database is carrying out is not interrupted.
package main

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/signal"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilegoose"
	"github.com/stilelock/stile/store/redisstore"
)

//go:embed sql
var embedded embed.FS

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: migration REDIS_ADDRESS POSTGRES_DSN")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, redis, dsn string) error {
	conn, err := rueidis.NewClient(redisstore.ClientOptions(redis))
	if err != nil {
		return err
	}
	defer conn.Close()
	st, err := redisstore.New(conn, nil)
	if err != nil {
		return err
	}
	client, err := stile.New(st, nil)
	if err != nil {
		return err
	}
	defer client.Close(ctx)

	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	migrations, err := fs.Sub(embedded, "sql")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations,
		goose.WithSessionLocker(stilegoose.New(client.Mutex("migrations/shop"))))
	if err != nil {
		return err
	}
	applied, err := provider.Up(ctx) // waits in line
	if err != nil {
		return err
	}
	fmt.Printf("applied %d migrations\n", len(applied))
	return nil
}
