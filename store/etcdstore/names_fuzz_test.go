package etcdstore

import (
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
)

// Every key of an entry or marker of a name is read as that name's, and not as another name's.
// Markers and epoch keys are not read as entries.
func FuzzKeysOfNames(f *testing.F) {
	for _, seed := range []struct {
		prefix, name, other string
		lease               int64
	}{
		{"", "a", "b", 0x1f},
		{"p/", "a", "a/b", 0x1f},
		{"p/", "a/b", "a", 0x1f},
		{"", "a", "a/1f", 0x1f},
		{"", "a/1f", "a", -0x1f},
		{"", "a-NONCE", "a", 1},
		{"", "a/-1f-NONCE", "a", -1 << 63},
		{"", ".stilex", ".stil", 1},
		{"", "a/.stile", "b/.stile/traces/a", 1},
		{"p", "ä/日", "日/ä", 7},
		{"", "traces/a", "a", 7},
	} {
		f.Add(seed.prefix, seed.name, seed.other, seed.lease)
	}
	f.Fuzz(func(t *testing.T, prefix, name, other string, lease int64) {
		k, id := keys{prefix: prefix}, clientv3.LeaseID(lease)
		usable := func(name string) bool { return store.CheckName(name) == nil && k.check(name) == nil }
		if store.CheckPrefix(prefix) != nil || !usable(name) || !usable(other) || lease == 0 {
			return
		}
		for _, nonce := range []string{"", "NONCE"} {
			key := k.entry(name, id, nonce)
			got, read, ok := k.parse(&mvccpb.KeyValue{Key: []byte(key), Lease: lease})
			if !ok || got != name || read != nonce {
				t.Errorf("key %q of lock %q is read as one of %q with nonce %q, %v", key, name, got, read, ok)
			}
			if !strings.HasPrefix(key, k.line(name)) {
				t.Errorf("key %q is not read with the line of %q", key, name)
			}
		}
		order := uint64(lease) & store.MaxOrder
		marker := &mvccpb.KeyValue{Key: []byte(k.marker(name, order)), Lease: lease}
		if found := k.unreleased(name, []*mvccpb.KeyValue{marker}, nil); len(found) != 1 || found[0].Order != order {
			t.Errorf("marker %q of the entry with order %d is read as %+v", marker.Key, order, found)
		}
		for _, own := range []*mvccpb.KeyValue{marker, {Key: []byte(k.epoch(id)), Lease: lease}} {
			if got, _, ok := k.parse(own); ok {
				t.Errorf("key %q, which is not an entry, is read as an entry of lock %q", own.Key, got)
			}
		}
		if name == other {
			return
		}
		if cs, _ := k.contenders(other, []*mvccpb.KeyValue{{Key: []byte(k.entry(name, id, "")), Lease: lease}}); len(cs) > 0 {
			t.Errorf("an entry of lock %q is read in the line of lock %q", name, other)
		}
		if strings.HasPrefix(string(marker.Key), k.markers(other)) {
			t.Errorf("marker %q of an entry of lock %q is read as one of lock %q", marker.Key, name, other)
		}
	})
}

// No key or value under a line's name makes contenders panic. Each key is an entry, a stray, or,
// below another slash, ignored.
func FuzzContenders(f *testing.F) {
	for _, seed := range []struct {
		name, key string
		lease     int64
		value     string
	}{
		{"a", "a/1f", 0x1f, ""},
		{"a", "a/1f-NONCE", 0x1f, `{"stile":1,"mode":"slot/3"}`},
		{"a", "a/1f", 0x2e, `{"stile":1,"session":"1f"}`},
		{"a", "a/b/1f", 0x1f, ""},
		{"a", "a/README", 0, "not an entry"},
		{"a", "a/", 0x1f, ""},
		{"a", "a/1f-NONCE", 0x1f, `{"stile":1,"mode":"exclusive"`},
	} {
		f.Add(seed.name, seed.key, seed.lease, []byte(seed.value))
	}
	f.Fuzz(func(t *testing.T, name, key string, lease int64, text []byte) {
		k := keys{}
		if store.CheckName(name) != nil || k.check(name) != nil || !strings.HasPrefix(key, k.line(name)) {
			return
		}
		kv := &mvccpb.KeyValue{Key: []byte(key), Lease: lease, Value: text, CreateRevision: 7}
		found, strays := k.contenders(name, []*mvccpb.KeyValue{kv})
		below := strings.Contains(strings.TrimPrefix(key, k.line(name)), "/")
		if n := len(found) + len(strays); below && n != 0 || !below && n != 1 {
			t.Errorf("key %q with lease %x is read for lock %q as entries %+v and strays %q", key, lease, name, found, strays)
		}
		for _, c := range found {
			if e := storeEntry(c); e.Order != 7 || e.Foreign && !e.Owner.IsZero() {
				t.Errorf("key %q with value %q is read as %+v", key, text, e)
			}
		}
	})
}
