package redlockstore

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stilelock/stile/store"
)

// Two locks share no key and no channel, and the key of a lock is never one of Stile's own keys.
func FuzzKeys(f *testing.F) {
	for _, seed := range []struct{ prefix, name, other, id string }{
		{"", "a", "b", "stile1:X:"},
		{"team:", "a", "a/b", "stile1:X:"},
		{"", "{a}", "a", "stile1:X:"},
		{"{", "a}", "{a}", "stile1:X:"},
		{"}//", "a", "names", "stile1:X:"},
		{"", "a/fence", "a", "fence"},
		{"", "a", "{a}/fence", "stile1:X:"},
		{"", "a", "{a}/void/stile1:X:", "stile1:X:"},
	} {
		f.Add(seed.prefix, seed.name, seed.other, seed.id)
	}
	f.Fuzz(func(t *testing.T, prefix, name, other, id string) {
		k := keys{prefix: prefix}
		if store.CheckPrefix(prefix) != nil || store.CheckName(name) != nil || store.CheckName(other) != nil || name == other {
			return
		}
		of := func(name string) []string { return []string{k.lock(name), k.fence(name), k.void(name, id), k.index()} }
		mine, others := of(name), of(other)
		for i, key := range mine {
			if j := slices.Index(others, key); j >= 0 && (i != 3 || j != 3) {
				t.Errorf("prefix %q: key %q belongs to both %q and %q", prefix, key, name, other)
			}
			if slices.Contains(mine[:i], key) {
				t.Errorf("prefix %q: key %q of lock %q occurs twice", prefix, key, name)
			}
		}
		if k.channel(name) == k.channel(other) {
			t.Errorf("prefix %q: locks %q and %q share channel %q", prefix, name, other, k.channel(name))
		}
	})
}

// decode never panics. Values of Stile survive encoding again; for others the result does not
// contain the value.
func FuzzDecode(f *testing.F) {
	whole, err := value{Session: "S", Owner: store.Owner{Host: "h", PID: 1}}.encode(valuePrefix + "NONCE:")
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		whole, whole[:len(whole)-1], whole + "x", "", valuePrefix, "stile1::", "stile1::null", "stile1:a:{}", "stile1:a:b:{}", "stile2:a:{}",
		"stile1:a:[]", `stile1:a:{"session":1}`, `stile1:a:{"owner":{"pid":"x"}}`, "8c7e1b0a-secret", "\xff",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, v, ours := decode(text)
		if !ours {
			if id != text || !v.Owner.IsZero() || !strings.HasPrefix(v.Session, "foreign-") || len(v.Session) != len("foreign-01234567") {
				t.Errorf("foreign value %q: got %q, %+v", text, id, v)
			}
			return
		}
		if !strings.HasPrefix(text, id) || !strings.HasPrefix(id, valuePrefix) {
			t.Errorf("%q: got id %q", text, id)
		}
		written, err := v.encode(id)
		if err != nil {
			t.Fatalf("%q: got %+v, which cannot be encoded: %v", text, v, err)
		}
		again, w, ours := decode(written)
		if !ours || again != id || w.Session != v.Session || w.Owner.String() != v.Owner.String() {
			t.Errorf("%q: got %q, %+v; encoded as %q and decoded again: %q, %+v", text, id, v, written, again, w)
		}
	})
}

// A fence gives an order only to the entry that it names, and never one that is too large for a
// token.
func FuzzOrderOf(f *testing.F) {
	for _, seed := range []struct{ fence, id string }{
		{"1758000000000000 stile1:X:", "stile1:X:"},
		{"1758000000000000 stile1:Y:", "stile1:X:"},
		{"1758000000000000", ""},
		{"", ""},
		{"18446744073709551615 stile1:X:", "stile1:X:"},
		{"-1 stile1:X:", "stile1:X:"},
		{"1.5 stile1:X:", "stile1:X:"},
		{"7  stile1:X:", "stile1:X:"},
	} {
		f.Add(seed.fence, seed.id)
	}
	f.Fuzz(func(t *testing.T, fence, id string) {
		order := orderOf(fence, id)
		if order > store.MaxOrder {
			t.Errorf("fence %q, id %q: got order %d, too large for a token", fence, id, order)
		}
		if order == 0 {
			return
		}
		if !strings.HasSuffix(fence, " "+id) {
			t.Errorf("fence %q, id %q: got order %d", fence, id, order)
		}
		if again := orderOf(strconv.FormatUint(order, 10)+" "+id, id); again != order {
			t.Errorf("fence %q, id %q: got order %d, encoded and parsed again %d", fence, id, order, again)
		}
	})
}
