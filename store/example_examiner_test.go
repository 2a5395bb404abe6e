package store_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// An examinedStore stands for a store on servers, which it can examine. The memory store has none.
type examinedStore struct{ *memstore.Store }

func (examinedStore) Examine(context.Context, time.Duration) ([]store.Finding, error) {
	return []store.Finding{
		{ID: "version", Severity: store.Fine, What: "all servers have version 7.2"},
		{ID: "eviction", Severity: store.Risk, Promise: "P1", What: "the server evicts keys", Advice: "set maxmemory-policy to noeviction"},
	}, nil
}

// A program refuses to start on servers that may break a promise.
func ExampleExaminer() {
	var st store.Store = examinedStore{memstore.New()}
	ctx := context.Background()

	examiner, ok := st.(store.Examiner)
	if !ok {
		return // nothing to examine
	}
	findings, err := examiner.Examine(ctx, stile.DefaultTTL)
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range findings {
		if f.Severity >= store.Risk {
			fmt.Printf("%s is at risk: %s: %s\n", f.Promise, f.What, f.Advice)
		}
	}
	// Output: P1 is at risk: the server evicts keys: set maxmemory-policy to noeviction
}
