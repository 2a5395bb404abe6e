package main

import (
	"errors"
	"testing"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store/memstore"
)

func price(t *testing.T, s *shop, article string) (cents int) {
	t.Helper()
	if err := s.db.QueryRowContext(t.Context(), "SELECT cents FROM prices WHERE article = $1", article).Scan(&cents); err != nil {
		t.Fatal(err)
	}
	return cents
}

func connect(t *testing.T, databaseURL string) *shop {
	t.Helper()
	s, err := openShop(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.db.Close() })
	return s
}

// Each run of the program sets the price.
func TestFencedWrites_setsThePrice(t *testing.T) {
	database, redis := testservers.StartPostgres(t).DSN(), testservers.StartRedis(t)
	for _, cents := range []int{250, 300} {
		if err := run(t.Context(), "redis://"+redis.Addr(), database, "bread", cents); err != nil {
			t.Fatal(err)
		}
		if got := price(t, connect(t, database), "bread"); got != cents {
			t.Errorf("got price %d, want %d", got, cents)
		}
	}
}

// A holder that does not notice the loss of its lock cannot overwrite what the next holder has written.
//
// Promise: P2
func TestFencedWrites_refusesTheEarlierHolder(t *testing.T) {
	s := connect(t, testservers.StartPostgres(t).DSN())
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	lock := client.Mutex("prices/bread")

	earlier, err := lock.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.setPrice(t.Context(), earlier.Token(), "bread", 100); err != nil {
		t.Fatalf("the holder's write: %v", err)
	}
	if _, err := client.Break(t.Context(), "prices/bread", earlier.Token()); err != nil {
		t.Fatal(err)
	}
	later, err := lock.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer later.Release(t.Context())
	if err := s.setPrice(t.Context(), later.Token(), "bread", 300); err != nil {
		t.Fatalf("the later holder's write: %v", err)
	}

	// The context is that of the test, so it has not ended with the hold.
	err = s.setPrice(t.Context(), earlier.Token(), "bread", 250)
	stale, ok := errors.AsType[*guard.StaleError](err)
	if !ok || stale.Token != earlier.Token() || stale.Newest != later.Token() {
		t.Errorf("the earlier holder's write: got %v, want a refusal of token %d after %d", err, earlier.Token(), later.Token())
	}
	if got := price(t, s, "bread"); got != 300 {
		t.Errorf("got price %d, want that of the later holder, 300", got)
	}
	if err := s.setPrice(t.Context(), later.Token(), "bread", 310); err != nil {
		t.Errorf("the later holder's next write: %v", err)
	}
}
