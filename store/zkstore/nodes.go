package zkstore

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// node is a parsed name of an entry's node.
type node struct {
	guid     string // of Curator's form, 36 characters; empty if there is none
	suffix   string // how the part before the digits ends
	mode     line.Mode
	sequence int64
	digits   int // how many characters at the end of the name are the sequence number
}

// The marks by which clients recognize each other's entries.
const (
	markLock        = "lock-"     // Curator's InterProcessMutex, go-zookeeper's Lock
	markRead        = "__READ__"  // Curator's InterProcessReadWriteLock
	markWrite       = "__WRIT__"  // the same
	markKazoo       = "__lock__"  // kazoo's Lock and WriteLock
	markKazooReader = "__rlock__" // kazoo's ReadLock
)

const (
	guidPrefix = "_c_" // Curator's, for nodes that it can find again after a lost reply
	guidLength = 36

	sharedForm = "shared-" // before markLock, in Stile's names
	slotForm   = "slot-"   // before n, a dash, and markLock or markWrite
)

// sequenceEnd is ZooKeeper's largest number. It does not count further: all later nodes would get
// the same one.
const sequenceEnd = 1<<31 - 1

// newGUID returns a random UUID of version 8, which is for private formats. Curator's are of
// version 4, so the name shows whose entry it is.
func newGUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// nodePrefix returns the name of an entry's node up to the number that ZooKeeper appends.
func nodePrefix(guid string, mode line.Mode, readWrite bool) string {
	form, mark := "", markLock
	switch {
	case mode.Slots() > 0:
		form = slotForm + strconv.Itoa(mode.Slots()) + "-"
	case mode == line.Shared && readWrite:
		return guidPrefix + guid + "-" + markRead
	case mode == line.Shared:
		form = sharedForm
	}
	if readWrite {
		mark = markWrite
	}
	return guidPrefix + guid + "-" + form + mark
}

// parseNode parses the name of a child of a lock's directory. It returns false if the child is not
// an entry of any known client.
func parseNode(name string) (node, bool) {
	rest := strings.TrimRight(name, "0123456789")
	digits := name[len(rest):]
	if len(digits) < 10 {
		return node{}, false
	}
	n := node{digits: len(digits)}
	for _, mark := range []string{markLock, markRead, markWrite, markKazoo, markKazooReader} {
		form, ok := strings.CutSuffix(rest, mark)
		if !ok {
			if form, ok = strings.CutSuffix(rest, mark+"-"); !ok {
				continue
			}
			digits, n.digits = "-"+digits, n.digits+1
		}
		sequence, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return node{}, false
		}
		n.suffix, n.sequence = mark, sequence
		n.setForm(form)
		return n, true
	}
	return node{}, false
}

// setForm parses the part before the mark.
func (n *node) setForm(form string) {
	if rest, ok := strings.CutPrefix(form, guidPrefix); ok && len(rest) > guidLength && rest[guidLength] == '-' {
		n.guid, form = rest[:guidLength], rest[guidLength+1:]
	}
	slots, isSlot := strings.CutPrefix(form, slotForm)
	switch {
	case n.suffix == markRead, n.suffix == markKazooReader, n.ours() && form == sharedForm:
		n.mode = line.Shared
	case n.ours() && isSlot:
		var mode line.Mode
		if mode.UnmarshalText([]byte("slot/"+strings.TrimSuffix(slots, "-"))) == nil {
			n.mode = mode
		}
	}
}

// ours reports whether the name has a form that only Stile uses.
func (n node) ours() bool { return len(n.guid) == guidLength && n.guid[14] == '8' }

// byCurator reports whether Curator created the node.
func (n node) byCurator() bool { return n.guid != "" && !n.ours() }

// mayBeReplaced reports whether another entry may replace this one when it is deleted: a Curator writer
// (5.5 and later) that becomes a reader creates a node with its own number.
func (n node) mayBeReplaced() bool { return n.suffix == markWrite && n.byCurator() }

// mayBeReplacement reports whether this entry may have replaced one for which mayBeReplaced is true.
func (n node) mayBeReplacement() bool { return n.suffix == markRead && n.byCurator() }

// unseen reports whether the client that created the entry does not see ours: Curator's two kinds
// of locks see only entries of their own kind.
func (n node) unseen(readWrite bool) bool {
	if readWrite {
		return n.byCurator() && n.suffix == markLock
	}
	return n.byCurator() && (n.suffix == markRead || n.suffix == markWrite)
}

// listedEntry is an entry in a listing of the directory.
type listedEntry struct {
	node
	name string // of the node
}

func (c listedEntry) compare(other listedEntry) int {
	return cmp.Or(cmp.Compare(c.sequence, other.sequence), cmp.Compare(c.name, other.name))
}

// contenders returns the entries among the children of a directory, in the order of the line.
func contenders(children []string) []listedEntry {
	found := make([]listedEntry, 0, len(children))
	for _, name := range children {
		if n, ok := parseNode(name); ok {
			found = append(found, listedEntry{n, name})
		}
	}
	slices.SortFunc(found, listedEntry.compare)
	return found
}

func modes(cs []listedEntry) []line.Mode {
	ms := make([]line.Mode, 0, len(cs))
	for _, c := range cs {
		ms = append(ms, c.mode)
	}
	return ms
}

// value is the data of an entry's node.
type value struct {
	// Stile is the version of this format. Zero, or unreadable data, means another client's entry.
	Stile int         `json:"stile"`
	Mode  line.Mode   `json:"mode"`
	Owner store.Owner `json:"owner"`
}

const valueFormat = 1

// decode parses the data of any client's entry.
func decode(b []byte) (v value, ours bool) {
	if err := json.Unmarshal(b, &v); err != nil || v.Stile < valueFormat {
		return value{}, false
	}
	return v, true
}
