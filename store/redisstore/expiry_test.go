package redisstore_test

import (
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store/redisstore"
)

// Whatever happens in a line, all its keys end by themselves, and none before those who stand there.
func TestKeysOutliveTheirEntriesAndEnd(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Minute
	server := testservers.StartRedis(t)
	name := newName(t)
	begun := time.Now()
	check := func(when string) {
		t.Helper()
		for i, key := range redisstore.Keys("", name) {
			ms, err := server.Do("PTTL", key).AsInt64()
			if err != nil {
				t.Fatal(err)
			}
			left := time.Duration(ms) * time.Millisecond
			switch {
			case ms == -2: // not there
			case ms == -1:
				t.Errorf("%s: key %q never ends", when, key)
			case i == 0 && left > 2*time.Hour, i < 5 && left > 2*time.Hour+5*time.Minute:
				t.Errorf("%s: key %q ends in %v", when, key, left)
			case i < 5 && left < without(ttl, begun)-time.Second:
				t.Errorf("%s: key %q ends in %v, before those who stand there", when, key, left)
			}
		}
	}
	st := storeAt(t, server.Addr())
	a, b, c := open(t, st, ttl), open(t, st, ttl), open(t, st, ttl)
	first := hold(t, a, name)
	check("held")
	second := join(t, b, name, line.Shared)
	third := join(t, c, name, line.Shared)
	check("waited for")
	first.leave(t)
	check("handed over to two")
	fourth := join(t, a, name, line.Exclusive)
	check("waited for again")
	if err := second.WithdrawAfter(t.Context(), 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	check("one stays for long")
	// All keys end soon, as if much time had passed since they were last touched; a confirmation must set that right.
	for _, key := range redisstore.Keys("", name)[:5] {
		server.Do("PEXPIRE", key, "200000")
	}
	confirm(t, a)
	confirm(t, c)
	check("confirmed")
	third.leave(t)
	second.leave(t)
	check("handed over")
	fourth.leave(t)
	if left := keysOf(t, server, name); len(left) > 0 {
		t.Errorf("nobody stands there, and there are the keys %q", left)
	}
}
