package stilegoose_test

import (
	"context"
	"database/sql"
	"embed"
	"log"

	"github.com/pressly/goose/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilegoose"
)

var (
	client *stile.Client
	db     *sql.DB
	files  embed.FS // the migrations
)

// Each replica runs this when it starts. One of them migrates the database; the others wait for it.
func ExampleLocker() {
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithSessionLocker(stilegoose.New(client.Mutex("migrations/shop"))))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := provider.Up(context.Background()); err != nil {
		log.Fatal(err) // matches stile.ErrLost if another replica may have migrated meanwhile
	}
}
