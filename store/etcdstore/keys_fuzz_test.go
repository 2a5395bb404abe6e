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

// No value under a lock's name makes decode panic, and a value that is not certainly Stile's counts
// as an exclusive entry's.
func FuzzDecode(f *testing.F) {
	full, err := value{Stile: valueFormat, Nonce: "N", Mode: line.Slot(3), Owner: store.Owner{Host: "h", Since: time.Unix(1, 0)}}.encode()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		full, full[:len(full)/2], "", "null", "0", "[]", "{}", `{"stile":1}`, `{"stile":-1}`, `{"stile":1,"mode":"slot/0"}`,
		`{"stile":1,"mode":"shared","mode":"?"}`, `{"stile":1e99}`, `{"stile":1,"owner":{"pid":"x"}}`, "\xff", full + full,
		`{"stile":1,"session":"1f"}`, `{"stile":1,"session":31}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, ours := decode(b)
		if !ours {
			if v.Mode != line.Exclusive || !v.Owner.IsZero() || v.Nonce != "" || v.Session != "" {
				t.Errorf("value %q is not Stile's: got %+v, want the zero value of an exclusive entry", b, v)
			}
			return
		}
		if v.Stile < valueFormat || !json.Valid(b) {
			t.Errorf("value %q was accepted as Stile's", b)
		}
		text, err := v.encode()
		if err != nil {
			return // a date that JSON has no form for
		}
		again, ours := decode([]byte(text))
		if !ours || again.Nonce != v.Nonce || again.Mode != v.Mode || again.Session != v.Session {
			t.Errorf("value %q was read as %+v, and re-encoded as %+v", b, v, again)
		}
	})
}

// A key belongs to at most one line. It is an entry under at most one lease, unless its value names
// another session or it was overwritten. Keys that Stile writes are read correctly.
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
		{"", "a/694d9d3b5a8c1f2e", 0, "not an entry"},
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
				t.Errorf("overwritten key %q with value %q is read as an entry of lock %q", key, text, name)
			}
		}
		name, nonce, ok := k.parse(&mvccpb.KeyValue{Key: []byte(key), Lease: lease, Value: text})
		if !ok {
			return
		}
		if lease == 0 || name == "" || name == reservedName || strings.HasPrefix(name, reservedName+"/") {
			t.Fatalf("key %q with lease %x is read as an entry of lock %q", key, lease, name)
		}
		if of, ok := k.name([]byte(key)); !ok || of != name {
			t.Errorf("key %q is read as an entry of lock %q, and by its name alone as one of %q, %v", key, name, of, ok)
		}
		id := clientv3.LeaseID(lease)
		bare := k.entry(name, id, "")
		if v, ours := decode(text); key != bare && key != bare+"-"+nonce {
			bare = k.line(name) + v.Session
			if !ours || v.Session == "" || key != bare && key != bare+"-"+nonce {
				t.Errorf("key %q with value %q is read as an entry of lock %q with nonce %q", key, text, name, nonce)
			}
			if _, _, ok := k.parse(&mvccpb.KeyValue{Key: []byte(key), Lease: lease}); ok {
				t.Errorf("key %q with lease %x and no value is read as an entry", key, lease)
			}
			return
		}
		for _, nonce := range []string{"", "NONCE"} {
			again, read, ok := k.parse(&mvccpb.KeyValue{Key: []byte(k.entry(name, id, nonce)), Lease: lease})
			if !ok || again != name || read != nonce {
				t.Errorf("key of lock %q with nonce %q is read as one of %q with nonce %q, %v", name, nonce, again, read, ok)
			}
		}
		if _, _, ok := k.parse(&mvccpb.KeyValue{Key: []byte(key), Lease: lease + 1}); ok {
			t.Errorf("key %q is read as an entry with lease %x and with lease %x", key, lease, lease+1)
		}
	})
}
