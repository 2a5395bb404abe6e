package storetest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Open: func(*testing.T) store.Store { return memstore.New() },
		Run:  synctest.Test, TTL: time.Hour, Grace: time.Minute,
	})
}
