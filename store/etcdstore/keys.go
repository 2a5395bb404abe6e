package etcdstore

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// keys maps names to keys and back.
type keys struct {
	prefix string
}

// reservedName is the lock name under which Stile keeps epoch keys and markers.
const reservedName = ".stile"

// check returns an error for names that collide with reservedName.
func (k keys) check(name string) error {
	if name == reservedName || strings.HasPrefix(name, reservedName+"/") {
		return fmt.Errorf("%w %q: Stile keeps its own keys under %q", store.ErrBadName, name, reservedName)
	}
	return nil
}

// line returns the prefix of the keys of a line's entries. The keys of lines whose name continues
// after a slash begin with it too.
func (k keys) line(name string) string { return k.prefix + name + "/" }

// entries returns the range of keys, from the first to before the end, that has the keys of all
// entries of a line. The part of such a key after the name and the slash begins with a hexadecimal
// digit, or with the minus of a negative lease id. So the range leaves out most keys of other lines
// below the name, like those of "jobs/nightly" below "jobs": the servers need not look at them.
func (k keys) entries(name string) (from, end string) {
	return k.prefix + name + "/-", k.prefix + name + "/g"
}

// entry returns the key of an entry. The key without a nonce is the one that other clients use.
func (k keys) entry(name string, lease clientv3.LeaseID, nonce string) string {
	key := k.prefix + name + "/" + leaseText(lease)
	if nonce != "" {
		key += "-" + nonce
	}
	return key
}

// epochValue is the value of an epoch key. A store with another prefix recognizes the key by it,
// and does not take it for an entry of a lock "….stile".
const epochValue = "a guard of Stile's"

// epoch returns the key whose mod revision voids abandoned attempts of a session; see the package
// comment.
func (k keys) epoch(lease clientv3.LeaseID) string {
	return k.prefix + reservedName + "/" + leaseText(lease)
}

// parse returns the name of the line that a key is an entry of, and the nonce in the key, if any.
// The last part of an entry's key names a lease. A key with such a name is an entry if
//
//   - that lease is attached to it; or
//   - another lease is attached, and the value, in Stile's format, names the lease in the key: the
//     entry outlasts its session; or
//   - it was overwritten, which detached it from its lease. Its owner may not know yet, so nobody
//     else may be admitted. Such a key was written more than once and is named after a lease id
//     that etcd may have chosen.
func (k keys) parse(kv *mvccpb.KeyValue) (name, nonce string, ok bool) {
	name, lease, nonce, ok := k.split(kv.Key)
	switch {
	case !ok || string(kv.Value) == epochValue:
		return "", "", false
	case kv.Lease != 0 && lease == leaseText(clientv3.LeaseID(kv.Lease)):
		return name, nonce, true
	}
	v, ours := decode(kv.Value)
	outlasting := kv.Lease != 0 && ours && v.Session == lease
	overwritten := kv.Version > 1 && len(lease) >= minLeaseDigits
	return name, nonce, outlasting || overwritten
}

// minLeaseDigits is the least number of hexadecimal digits in a lease id that etcd has chosen. Its
// last 48 bits are the time in milliseconds and a count, which take twelve digits until 2039; the
// bits before them are from the member's id.
const minLeaseDigits = 12

// overwritten reports whether another client has overwritten an entry's key, which detached it from
// its lease.
func (k keys) overwritten(c listedEntry) bool {
	lease := keyLease(c.ID)
	if lease == leaseText(c.Lease) {
		return false
	}
	v, ours := decode(c.Value)
	return !ours || v.Session != lease || c.Lease == 0
}

// keyLease returns the lease that an entry's key is named after.
func keyLease(key string) string {
	lease, _ := splitLast(key[strings.LastIndexByte(key, '/')+1:])
	return lease
}

// name returns the name of the line that a key may be an entry of, depending on its lease and
// value.
func (k keys) name(key []byte) (name string, ok bool) {
	name, _, _, ok = k.split(key)
	return name, ok
}

// split splits a key into its parts. ok is false if the key cannot be an entry's, whatever its
// lease and value.
func (k keys) split(key []byte) (name, lease, nonce string, ok bool) {
	rest, ok := strings.CutPrefix(string(key), k.prefix)
	slash := strings.LastIndexByte(rest, '/')
	if !ok || slash < 1 || strings.HasPrefix(rest, reservedName+"/") {
		return "", "", "", false
	}
	name, last := rest[:slash], rest[slash+1:]
	lease, nonce = splitLast(last)
	id, err := strconv.ParseInt(lease, 16, 64)
	return name, lease, nonce, err == nil && lease == leaseText(clientv3.LeaseID(id))
}

// splitLast splits the last part of an entry's key into the lease and the nonce, if any.
func splitLast(last string) (lease, nonce string) {
	from := 0
	if strings.HasPrefix(last, "-") {
		from = 1 // an id that a client has chosen may be negative
	}
	minus := strings.IndexByte(last[from:], '-')
	if minus < 0 {
		return last, ""
	}
	return last[:from+minus], last[from+minus+1:]
}

func leaseText(id clientv3.LeaseID) string { return strconv.FormatInt(int64(id), 16) }

// value is the value of an entry's key. It begins with the fields that other code recognizes without
// decoding it; see [isShared].
type value struct {
	// Stile is the version of this format. Zero, or an unreadable value, means another client's entry.
	Stile int         `json:"stile"`
	Mode  line.Mode   `json:"mode"`
	Nonce string      `json:"nonce"`
	Owner store.Owner `json:"owner"`
	// Session is the lease that the key is named after, if another one is attached: in entries that
	// outlast their session.
	Session string `json:"session,omitempty"`
}

const valueFormat = 1

func (v value) encode() (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// decode decodes the value of any client's entry. ours is false if another client has written it:
// then it is an exclusive entry of an unknown owner.
func decode(b []byte) (v value, ours bool) {
	if err := json.Unmarshal(b, &v); err != nil || v.Stile < valueFormat {
		return value{}, false
	}
	return v, true
}

// listedEntry is an entry as it is read from etcd. Its ID is its key, its order the key's create revision.
type listedEntry struct {
	line.Entry
	Lease clientv3.LeaseID
	Value []byte // undecoded: few readers need it, and decoding costs more than the rest of a read
}

func (c listedEntry) compare(other listedEntry) int {
	return cmp.Or(cmp.Compare(c.Order, other.Order), cmp.Compare(c.ID, other.ID))
}

// contenders returns the entries of one line among the keys that begin with its name and a slash,
// and the keys that are not entries of any line.
func (k keys) contenders(name string, kvs []*mvccpb.KeyValue) (found []listedEntry, strays []string) {
	for _, kv := range kvs {
		c, of, ok := k.listed(kv)
		switch {
		case !ok && !strings.Contains(strings.TrimPrefix(string(kv.Key), k.line(name)), "/"):
			strays = append(strays, string(kv.Key))
		case ok && of == name:
			found = append(found, c)
		}
	}
	return found, strays
}

// listed returns the entry that a key is, and the name of its line.
func (k keys) listed(kv *mvccpb.KeyValue) (c listedEntry, name string, ok bool) {
	name, nonce, ok := k.parse(kv)
	if !ok {
		return listedEntry{}, "", false
	}
	var v value
	if nonce != "" {
		v, _ = decode(kv.Value)
	}
	return listedAs(kv, nonce, v), name, true
}

// listedAs returns the entry of a key with a nonce and a decoded value.
func listedAs(kv *mvccpb.KeyValue, nonce string, v value) listedEntry {
	e := line.Entry{ID: string(kv.Key), Order: uint64(kv.CreateRevision)}
	if nonce != "" {
		e.Mode = v.Mode
	} else if isShared(kv.Value) { // keys without a nonce are made for exclusive entries
		e.Mode = line.Shared
	}
	return listedEntry{e, clientv3.LeaseID(kv.Lease), kv.Value}
}

func entries(cs []listedEntry) []line.Entry {
	es := make([]line.Entry, 0, len(cs))
	for _, c := range cs {
		es = append(es, c.Entry)
	}
	return es
}
