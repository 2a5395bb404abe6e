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

// reserved is the name under which the keys are that are Stile's own: guards and markers.
const reserved = ".stile"

// check refuses the names that etcd needs for itself.
func (k keys) check(name string) error {
	if name == reserved || strings.HasPrefix(name, reserved+"/") {
		return fmt.Errorf("%w %q: Stile keeps its own keys under %q", store.ErrBadName, name, reserved)
	}
	return nil
}

// line is what all entries of a line begin with. Lines whose name goes on after a slash begin with it too.
func (k keys) line(name string) string { return k.prefix + name + "/" }

// entry returns the key of an entry. One without a nonce is the one that other clients would make.
func (k keys) entry(name string, lease clientv3.LeaseID, nonce string) string {
	key := k.line(name) + leaseText(lease)
	if nonce != "" {
		key += "-" + nonce
	}
	return key
}

// guardValue is what is in a guard key, so that a store with another prefix does not take it for an entry of a lock "….stile".
const guardValue = "a guard of Stile's"

func (k keys) guard(lease clientv3.LeaseID) string {
	return k.prefix + reserved + "/" + leaseText(lease)
}

// parse returns the name of the line that a key is an entry of, and the nonce in the key, if there is one. The last part of an
// entry's key is named after a lease. A key with such a name is an entry if
//
//   - that lease is attached to it; or
//   - another one is, and its value, one of ours, says that the key is named after the first: it outlasts its session; or
//   - it was overwritten, which took it off its lease. Its owner may not know yet, and must not be joined by somebody else. It
//     is told from other keys by being of a second version and named like a lease that etcd has chosen.
func (k keys) parse(kv *mvccpb.KeyValue) (name, nonce string, ok bool) {
	name, lease, nonce, ok := k.split(kv.Key)
	switch {
	case !ok || string(kv.Value) == guardValue:
		return "", "", false
	case kv.Lease != 0 && lease == leaseText(clientv3.LeaseID(kv.Lease)):
		return name, nonce, true
	}
	v, ours := decode(kv.Value)
	outlasting := kv.Lease != 0 && ours && v.Session == lease
	overwritten := kv.Version > 1 && len(lease) >= leaseDigits
	return name, nonce, outlasting || overwritten
}

// leaseDigits is the least number of hexadecimal digits in the id of a lease that etcd has chosen. The last 48 bits of one are
// the time in milliseconds and a count, which take twelve digits until 2039; those before are of the member's id.
const leaseDigits = 12

// overwritten reports whether an entry has lost its lease because somebody has overwritten its key.
func (k keys) overwritten(c contender) bool {
	lease := namedAfter(c.ID)
	if lease == leaseText(c.Lease) {
		return false
	}
	v, ours := decode(c.Value)
	return !ours || v.Session != lease || c.Lease == 0
}

// namedAfter returns the lease that an entry's key is named after.
func namedAfter(key string) string {
	lease, _ := named(key[strings.LastIndexByte(key, '/')+1:])
	return lease
}

// name returns the name of the line that a key would be an entry of if it had the right lease.
func (k keys) name(key []byte) (name string, ok bool) {
	name, _, _, ok = k.split(key)
	return name, ok
}

// split takes a key apart. It reports false if the key cannot be an entry's, whatever its lease and its value.
func (k keys) split(key []byte) (name, lease, nonce string, ok bool) {
	rest, ok := strings.CutPrefix(string(key), k.prefix)
	slash := strings.LastIndexByte(rest, '/')
	if !ok || slash < 1 || strings.HasPrefix(rest, reserved+"/") {
		return "", "", "", false
	}
	name, last := rest[:slash], rest[slash+1:]
	lease, nonce = named(last)
	id, err := strconv.ParseInt(lease, 16, 64)
	return name, lease, nonce, err == nil && lease == leaseText(clientv3.LeaseID(id))
}

// named takes the last part of an entry's key apart: the lease that it is named after, and the nonce, if there is one.
func named(last string) (lease, nonce string) {
	from := 0
	if strings.HasPrefix(last, "-") {
		from = 1 // an id may be negative: its owner chooses
	}
	minus := strings.IndexByte(last[from:], '-')
	if minus < 0 {
		return last, ""
	}
	return last[:from+minus], last[from+minus+1:]
}

func leaseText(id clientv3.LeaseID) string { return strconv.FormatInt(int64(id), 16) }

// value is what an entry says of itself.
type value struct {
	// Stile is the version of this format. Zero, or an unreadable value, means another client's entry.
	Stile int         `json:"stile"`
	Nonce string      `json:"nonce"`
	Mode  line.Mode   `json:"mode"`
	Owner store.Owner `json:"owner"`
	// Session is the lease that the key is named after. It is set if that is not the one attached to it: in entries
	// that outlast their session.
	Session string `json:"session,omitempty"`
}

const valueFormat = 1

func (v value) encode() (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// decode reads the value of any client's entry. One that is not ours is an exclusive entry of an unknown owner.
func decode(b []byte) (v value, ours bool) {
	if err := json.Unmarshal(b, &v); err != nil || v.Stile < valueFormat {
		return value{}, false
	}
	return v, true
}

// contender is an entry as it is read from etcd. Its ID is its key, its order the key's create revision.
type contender struct {
	line.Entry
	Lease clientv3.LeaseID
	Value []byte // undecoded: whose it is matters to few readers, and costs more than all the rest
}

func (c contender) compare(other contender) int {
	return cmp.Or(cmp.Compare(c.Order, other.Order), cmp.Compare(c.ID, other.ID))
}

// contenders picks the entries of one line out of the keys that begin with its name and a slash, and names the keys
// that are there without being entries of any line.
func (k keys) contenders(name string, kvs []*mvccpb.KeyValue) (found []contender, strays []string) {
	for _, kv := range kvs {
		of, nonce, ok := k.parse(kv)
		switch {
		case !ok && !strings.Contains(strings.TrimPrefix(string(kv.Key), k.line(name)), "/"):
			strays = append(strays, string(kv.Key))
		case ok && of == name:
			e := line.Entry{ID: string(kv.Key), Order: uint64(kv.CreateRevision)}
			if nonce != "" { // keys without one are those of exclusive entries
				v, _ := decode(kv.Value)
				e.Mode = v.Mode
			}
			found = append(found, contender{e, clientv3.LeaseID(kv.Lease), kv.Value})
		}
	}
	return found, strays
}

func entries(cs []contender) []line.Entry {
	es := make([]line.Entry, 0, len(cs))
	for _, c := range cs {
		es = append(es, c.Entry)
	}
	return es
}
