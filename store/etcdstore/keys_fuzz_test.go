package etcdstore

import (
	"encoding/json"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// Whatever is in etcd under a lock's name, reading it does not panic, and what is not surely ours excludes everybody.
func FuzzDecode(f *testing.F) {
	whole, err := value{Stile: valueFormat, Nonce: "N", Mode: line.Slot(3), Owner: store.Owner{Host: "h", Since: time.Unix(1, 0)}}.encode()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		whole, whole[:len(whole)/2], "", "null", "0", "[]", "{}", `{"stile":1}`, `{"stile":-1}`, `{"stile":1,"mode":"slot/0"}`,
		`{"stile":1,"mode":"shared","mode":"?"}`, `{"stile":1e99}`, `{"stile":1,"owner":{"pid":"x"}}`, "\xff", whole + whole,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, ours := decode(b)
		if !ours {
			if v.Mode != line.Exclusive || !v.Owner.IsZero() || v.Nonce != "" {
				t.Errorf("%q is not ours, and was read as %+v", b, v)
			}
			return
		}
		if v.Stile < valueFormat || !json.Valid(b) {
			t.Errorf("%q was taken for ours", b)
		}
		text, err := v.encode()
		if err != nil {
			return // a date that JSON has no form for
		}
		again, ours := decode([]byte(text))
		if !ours || again.Nonce != v.Nonce || again.Mode != v.Mode {
			t.Errorf("%q was read as %+v, and that, written again, as %+v", b, v, again)
		}
	})
}

// A key belongs to at most one line, under at most one lease, and the keys we make are understood.
func FuzzParse(f *testing.F) {
	for _, seed := range []struct {
		prefix, key string
		lease       int64
	}{
		{"", "a/1f", 0x1f},
		{"", "a/b/1f", 0x1f},
		{"p/", "p/a/1f-NONCE", 0x1f},
		{"p/", "a/1f", 0x1f},
		{"", "a/-1f", -0x1f},
		{"", "a/-8000000000000000", -1 << 63},
		{"", "a/1f", 0},
		{"", "/1f", 0x1f},
		{"", "1f", 0x1f},
		{"", ".stile/1f", 0x1f},
		{"", "a/1fe", 0x1f},
		{"", "a//1f", 0x1f},
		{"a/", "a/", 1},
	} {
		f.Add(seed.prefix, seed.key, seed.lease)
	}
	f.Fuzz(func(t *testing.T, prefix, key string, lease int64) {
		k := keys{prefix: prefix}
		name, nonce, ok := k.parse([]byte(key), lease)
		if !ok {
			return
		}
		if lease == 0 || name == "" || name == reserved {
			t.Fatalf("key %q with lease %x is an entry of lock %q", key, lease, name)
		}
		id := clientv3.LeaseID(lease)
		if bare := k.entry(name, id, line.Exclusive, ""); key != bare && key != bare+"-"+nonce {
			t.Errorf("key %q was read as %q's entry with nonce %q, whose key begins with %q", key, name, nonce, bare)
		}
		for _, mode := range []line.Mode{line.Exclusive, line.Shared, line.Slot(2)} {
			again, nonce, ok := k.parse([]byte(k.entry(name, id, mode, "NONCE")), lease)
			if !ok || again != name || (nonce == "NONCE") != (mode != line.Exclusive) {
				t.Errorf("the key of a %v entry of lock %q was read as one of %q with nonce %q, %v", mode, name, again, nonce, ok)
			}
		}
		if _, _, ok := k.parse([]byte(key), lease+1); ok {
			t.Errorf("key %q is an entry with the leases %x and %x", key, lease, lease+1)
		}
	})
}
