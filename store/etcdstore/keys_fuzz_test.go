package etcdstore

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
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
		`{"stile":1,"session":"1f"}`, `{"stile":1,"session":31}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, ours := decode(b)
		if !ours {
			if v.Mode != line.Exclusive || !v.Owner.IsZero() || v.Nonce != "" || v.Session != "" {
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
		if !ours || again.Nonce != v.Nonce || again.Mode != v.Mode || again.Session != v.Session {
			t.Errorf("%q was read as %+v, and that, written again, as %+v", b, v, again)
		}
	})
}

// A key belongs to at most one line, under at most one lease unless it says so itself or was overwritten, and the keys we make
// are understood.
func FuzzParse(f *testing.F) {
	outlasting := `{"stile":1,"nonce":"N","mode":"exclusive","owner":{},"session":"1f"}`
	for _, seed := range []struct {
		prefix, key string
		lease       int64
		value       string
	}{
		{"", "a/1f", 0x1f, ""},
		{"", "a/b/1f", 0x1f, ""},
		{"p/", "p/a/1f-NONCE", 0x1f, ""},
		{"p/", "a/1f", 0x1f, ""},
		{"", "a/-1f", -0x1f, ""},
		{"", "a/-1f-NONCE", -0x1f, ""},
		{"", "a/-8000000000000000", -1 << 63, ""},
		{"", "a/1f", 0, ""},
		{"", "/1f", 0x1f, ""},
		{"", "1f", 0x1f, ""},
		{"", ".stile/1f", 0x1f, ""},
		{"", ".stile/traces/a//1f", 0x1f, ""},
		{"p/", "p/.stile/traces/a/b//1f", 0x1f, outlasting},
		{"", "a/1fe", 0x1f, ""},
		{"", "a//1f", 0x1f, ""},
		{"a/", "a/", 1, ""},
		{"", "a/01f", 0x1f, ""},
		{"", "a/+1f", 0x1f, ""},
		{"", "a/1F", 0x1f, ""},
		{"", "a/1f", 0x2e, outlasting},
		{"", "a/1f-NONCE", 0x2e, outlasting},
		{"", "a/1f", 0, outlasting},
		{"", "a/694d9d3b5a8c1f2e", 0, "who reads this?"},
		{"", "a/694d9d3b5a8c1f2e-NONCE", 0x1f, ""},
		{"", "p/.stile/694d9d3b5a8c1f2e", 0x694d9d3b5a8c1f2e, epochValue},
		{"", "a/2f", 0x2e, outlasting},
		{"", "a/", 0x2e, `{"stile":1,"session":""}`},
		{"", "a/x", 0x2e, `{"stile":1,"session":"x"}`},
		{"", "a/1f", 0x2e, `{"session":"1f"}`},
	} {
		f.Add(seed.prefix, seed.key, seed.lease, []byte(seed.value))
	}
	f.Fuzz(func(t *testing.T, prefix, key string, lease int64, text []byte) {
		k := keys{prefix: prefix}
		if name, _, ok := k.parse(&mvccpb.KeyValue{Key: []byte(key), Lease: lease, Value: text, Version: 2}); ok {
			if of, ok := k.name([]byte(key)); !ok || of != name || string(text) == epochValue {
				t.Errorf("key %q with value %q, overwritten, is an entry of lock %q", key, text, name)
			}
		}
		name, nonce, ok := k.parse(&mvccpb.KeyValue{Key: []byte(key), Lease: lease, Value: text})
		if !ok {
			return
		}
		if lease == 0 || name == "" || name == reservedName || strings.HasPrefix(name, reservedName+"/") {
			t.Fatalf("key %q with lease %x is an entry of lock %q", key, lease, name)
		}
		if of, ok := k.name([]byte(key)); !ok || of != name {
			t.Errorf("key %q is an entry of lock %q; without its lease it could be one of %q, %v", key, name, of, ok)
		}
		id := clientv3.LeaseID(lease)
		bare := k.entry(name, id, "")
		if v, ours := decode(text); key != bare && key != bare+"-"+nonce {
			bare = k.line(name) + v.Session
			if !ours || v.Session == "" || key != bare && key != bare+"-"+nonce {
				t.Errorf("key %q with value %q was read as %q's entry with nonce %q", key, text, name, nonce)
			}
			if _, _, ok := k.parse(&mvccpb.KeyValue{Key: []byte(key), Lease: lease}); ok {
				t.Errorf("key %q is an entry with lease %x, whatever its value", key, lease)
			}
			return
		}
		for _, nonce := range []string{"", "NONCE"} {
			again, read, ok := k.parse(&mvccpb.KeyValue{Key: []byte(k.entry(name, id, nonce)), Lease: lease})
			if !ok || again != name || read != nonce {
				t.Errorf("the key of lock %q with nonce %q was read as one of %q with nonce %q, %v", name, nonce, again, read, ok)
			}
		}
		if _, _, ok := k.parse(&mvccpb.KeyValue{Key: []byte(key), Lease: lease + 1}); ok {
			t.Errorf("key %q is an entry with the leases %x and %x", key, lease, lease+1)
		}
	})
}
