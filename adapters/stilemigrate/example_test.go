package stilemigrate_test

import (
	"errors"
	"log"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilemigrate"
)

var (
	client *stile.Client
	driver database.Driver // for example pgx.WithInstance(db, &pgx.Config{})
	files  source.Driver   // for example iofs.New(embedded, "migrations")
)

// Each replica runs this when it starts. One of them migrates the database; the others wait for it.
func ExampleDriver() {
	m, err := migrate.NewWithInstance("iofs", files, "shop",
		stilemigrate.New(driver, client.Mutex("migrations/shop")))
	if err != nil {
		log.Fatal(err)
	}
	if err := m.Up(); err != nil && !errors.Is(err, migrate.ErrNoChange) {
		log.Fatal(err) // matches stile.ErrLost if another replica may have migrated meanwhile
	}
}
