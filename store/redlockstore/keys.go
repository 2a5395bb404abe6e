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

// keys builds the keys. No name contains "//" or ends in a slash, so none of Stile's own keys is
// the key of a lock.
type keys struct {
	prefix string
}

// lock returns the key of a lock, which other clients use too.
func (k keys) lock(name string) string { return k.prefix + name }

func (k keys) sideKey(name, what string) string { return "{" + k.prefix + name + "}//" + what }

// fence returns the key of the last order given out under a name, and the id that it was given to.
func (k keys) fence(name string) string { return k.sideKey(name, "fence") }

// void returns the key that voids an attempt to put an entry in while it exists.
func (k keys) void(name, id string) string { return k.sideKey(name, "void/"+id) }

// index returns the key of the set of names that may have locks.
func (k keys) index() string { return k.sideKey("", "names") }

// channel returns the channel on which a master publishes the changes of a lock.
func (k keys) channel(name string) string { return channelPrefix + k.lock(name) }

// nameOfChannel is the inverse of channel.
func (k keys) nameOfChannel(channel string) string { return strings.TrimPrefix(channel, k.channel("")) }

// channels returns the pattern of the channels of all locks. Narrower patterns are not used: a
// Redis ACL permits a pattern only if the user's rule is the same pattern.
func (k keys) channels() string { return channelPrefix + patternEscaper.Replace(k.prefix) + "*" }

const channelPrefix = "stile:"

// patternEscaper escapes the characters that have a meaning in glob patterns.
var patternEscaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// newID returns a unique id, the start of the value of one attempt.
func newID() string { return valuePrefix + rand.Text() + ":" }

const valuePrefix = "stile1:"

// value is the information about an entry, stored as JSON after its id.
type value struct {
	Session string      `json:"session"`
	Entry   string      `json:"entry"` // the same in all attempts of one entry, and only in these
	Owner   store.Owner `json:"owner"`
}

func (v value) encode(id string) (string, error) {
	b, err := json.Marshal(v)
	return id + string(b), err
}

// decode parses the value of a lock. For another client's value ours is false and v.Session is a
// hash of the value, which must not be shown: a client that knows it could release the lock.
func decode(text string) (id string, v value, ours bool) {
	if rest, ok := strings.CutPrefix(text, valuePrefix); ok {
		if nonce, text, ok := strings.Cut(rest, ":"); ok && json.Unmarshal([]byte(text), &v) == nil {
			return valuePrefix + nonce + ":", v, true
		}
	}
	sum := sha256.Sum256([]byte(text))
	return text, value{Session: "foreign-" + hex.EncodeToString(sum[:4])}, false
}

// orderOf parses a fence. It returns the order if that was given to the entry with the given id,
// otherwise zero.
func orderOf(fence, id string) uint64 {
	number, to, ok := strings.Cut(fence, " ")
	order, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || order > store.MaxOrder || to != id {
		return 0
	}
	return order
}
