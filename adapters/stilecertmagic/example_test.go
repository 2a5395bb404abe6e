package stilecertmagic_test

import (
	"github.com/caddyserver/certmagic"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilecertmagic"
)

var (
	client  *stile.Client
	objects certmagic.Storage // an object store, whose own locks do nothing
)

// The members of a cluster share a bucket. One of them gets each certificate; the others wait for it.
func ExampleWrap() {
	certmagic.Default.Storage = stilecertmagic.Wrap(objects, stilecertmagic.New(client, "certmagic/"))
}

// For a storage of your own: embed a Locker, and it has locks.
func ExampleLocker() {
	type files struct {
		*stilecertmagic.Locker
		// and the methods Store, Load, Delete, Exists, List and Stat
	}
	_ = files{stilecertmagic.New(client, "certmagic/")}
}

// A Storage is a certmagic.Storage, also for a configuration of its own.
func ExampleStorage() {
	storage := stilecertmagic.Wrap(objects, stilecertmagic.New(client, "certmagic/"))
	_ = certmagic.Config{Storage: storage}
}
