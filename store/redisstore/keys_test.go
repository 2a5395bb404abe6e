package redisstore_test

import (
	"strings"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// awkward are names with braces that determine the slot, or look as if they did.
var awkward = []string{
	"a", "a/b", "{a}", "{a}b", "b{a}", "{a", "a}", "}a{", "{}", "foo{}bar", "{}a}", "a}b", "{{a}}", "{a}{b}", "a{b}c}", "日{本}", "{x}/y}",
}

func TestKeys_oneSlotPerLine(t *testing.T) {
	t.Parallel()
	node := testservers.StartRedisCluster(t, 3)[0]
	slot := func(key string) int64 {
		n, err := node.Do("CLUSTER", "KEYSLOT", key).AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, prefix := range []string{"", "team:"} {
		for _, name := range awkward {
			want := slot(prefix + name)
			for _, key := range append(redisstore.Keys(prefix, name), redisstore.Channel(prefix, name, "client")) {
				if got := slot(key); got != want || int64(redisstore.Slot(key)) != want {
					t.Errorf("name %q: key %q: server's slot %d, our slot %d, want %d", name, key, got, redisstore.Slot(key), want)
				}
			}
		}
	}
}

func FuzzKeys(f *testing.F) {
	for _, name := range awkward {
		f.Add("", name, "a")
		f.Add("team:", name, "{a}")
	}
	f.Fuzz(func(t *testing.T, prefix, name, other string) {
		if strings.ContainsAny(prefix, "{}") || store.CheckPrefix(prefix) != nil || store.CheckName(name) != nil ||
			store.CheckName(other) != nil {
			return
		}
		all := redisstore.Keys(prefix, name)
		if all[0] != prefix+name {
			t.Errorf("got lock's key %q", all[0])
		}
		seen := make(map[string]bool)
		for _, key := range all {
			if seen[key] {
				t.Errorf("key %q occurs twice", key)
			}
			seen[key] = true
			if redisstore.Slot(key) != redisstore.Slot(all[0]) {
				t.Errorf("key %q is in another slot than %q", key, all[0])
			}
		}
		if got, ok := redisstore.NameOf(prefix, all[4]); !ok || got != name {
			t.Errorf("key %q: got name %q, %v; want %q", all[4], got, ok, name)
		}
		if name == other {
			return
		}
		for _, key := range redisstore.Keys(prefix, other) {
			if seen[key] {
				t.Errorf("key %q belongs to both %q and %q", key, name, other)
			}
		}
	})
}
