package redlockstore

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/stilelock/stile/store"
)

// keys says where things are. No name contains "//" or ends in a slash, so none of the keys that are Stile's own is the
// key of a lock.
type keys struct {
	prefix string
}

// lock is the key of a lock itself, as other clients know it.
func (k keys) lock(name string) string { return k.prefix + name }

func (k keys) beside(name, what string) string { return "{" + k.prefix + name + "}//" + what }

// fence is the key of the last order that was given out under a name, and to whom.
func (k keys) fence(name string) string { return k.beside(name, "fence") }

// void is the key that says, while it is there, that an attempt to put an entry in comes too late.
func (k keys) void(name, id string) string { return k.beside(name, "void/"+id) }

// index is the key of the set of names under which somebody may stand.
func (k keys) index() string { return k.beside("", "names") }

// channel is where a master publishes what happens to a lock.
func (k keys) channel(name string) string { return channelPrefix + k.lock(name) }

// channels is the pattern of the channels of all locks. A user may be allowed this one and no narrower one: to the ACL
// patterns are the same or not.
func (k keys) channels() string { return channelPrefix + literally.Replace(k.prefix) + "*" }

const channelPrefix = "stile:"

// literally escapes what has a meaning in patterns.
var literally = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// newID returns what the value of one attempt begins with, and no other.
func newID() string { return valuePrefix + rand.Text() + ":" }

const valuePrefix = "stile1:"

// value is what an entry says of itself, in JSON, behind its id.
type value struct {
	Session string      `json:"session"`
	Entry   string      `json:"entry"` // the same in all attempts of one entry, and in no others
	Owner   store.Owner `json:"owner"`
}

func (v value) encode(id string) (string, error) {
	b, err := json.Marshal(v)
	return id + string(b), err
}

// decode reads the value of a lock. If another client made it, ours is false and v.Session is a mark of the value, but
// not the value itself: whoever knows that could take the lock from its owner.
func decode(text string) (id string, v value, ours bool) {
	if rest, ok := strings.CutPrefix(text, valuePrefix); ok {
		if nonce, says, ok := strings.Cut(rest, ":"); ok && json.Unmarshal([]byte(says), &v) == nil {
			return valuePrefix + nonce + ":", v, true
		}
	}
	sum := sha256.Sum256([]byte(text))
	return text, value{Session: "foreign-" + hex.EncodeToString(sum[:4])}, false
}

// orderOf reads a fence: the order in it if that was given to the entry with the given id, otherwise zero.
func orderOf(fence, id string) uint64 {
	number, to, ok := strings.Cut(fence, " ")
	order, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || order > store.MaxOrder || to != id {
		return 0
	}
	return order
}
