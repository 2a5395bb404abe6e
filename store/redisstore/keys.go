package redisstore

import (
	"strconv"
	"strings"
	"sync"

	"github.com/stilelock/stile/line"
)

// keys maps names to keys and back. A lock's own key is the prefix and its name. All other keys
// contain "//", which no name does, so none of them is the key of a lock under the same prefix.
type keys struct {
	prefix string
}

// lineKeys are the keys of one line, all in one slot of a cluster.
type lineKeys struct {
	name string
	lock string // the key that other lockers use
	side string // prefix of the other keys
}

// The suffixes of the keys beside the lock's own.
const (
	queueSuffix   = "//q"
	holdersSuffix = "//h"
	leasesSuffix  = "//x"
	entriesSuffix = "//e"
	fenceSuffix   = "//f"
	voidsSuffix   = "//v"
	limitSuffix   = "//l"
	recordSuffix  = "//r"
)

func (k keys) forLine(name string) lineKeys {
	lock := k.prefix + name
	return lineKeys{name: name, lock: lock, side: sidePrefix(lock)}
}

// all returns the script's KEYS for the line.
func (l lineKeys) all() []string {
	return []string{
		l.lock, l.side + queueSuffix, l.side + holdersSuffix, l.side + leasesSuffix,
		l.side + entriesSuffix, l.side + fenceSuffix, l.side + voidsSuffix, l.side + limitSuffix, l.side + recordSuffix,
	}
}

// renewed returns those of the script's KEYS that a renewal needs.
func (l lineKeys) renewed() []string {
	return []string{l.lock, l.side + holdersSuffix, l.side + leasesSuffix, l.side + entriesSuffix}
}

func (k keys) session(id string) string { return k.prefix + "//session/" + id }

// changes returns the channel on which the names of changed lines are published.
func (k keys) changes() string { return k.prefix + "//changes" }

// name returns the name of the line whose hash of entries (the key that ends in "//e") is key. ok
// is false for other keys.
func (k keys) name(key string) (name string, ok bool) {
	side, ok := strings.CutSuffix(key, entriesSuffix)
	if !ok {
		return "", false
	}
	_, lock, found := strings.Cut(side, "}//") // inverts sidePrefix, last case first
	if !found {
		lock = strings.TrimSuffix(strings.TrimPrefix(side, "{"), "}")
	}
	if own, ok := strings.CutSuffix(side, "/"); ok {
		lock = own
	}
	name, ok = strings.CutPrefix(lock, k.prefix)
	return name, ok && name != "" && sidePrefix(lock) == side
}

// sidePrefix returns a prefix of keys in the same cluster slot as lock, different for each lock.
// The slot depends only on the hash tag: the text between the first brace and the next closing one,
// if there is such text and it is not empty.
func sidePrefix(lock string) string {
	switch {
	case hashTag(lock) != lock:
		return lock + "/" // no lock's name ends in "/"
	case !strings.Contains(lock, "}"):
		return "{" + lock + "}"
	}
	// A closing brace in the lock's key would end the hash tag early, so the tag is a number with
	// the same slot.
	return inSlot(slot(lock)) + lock
}

// inSlot returns a prefix that puts a key into a cluster slot, whatever follows.
func inSlot(slot uint16) string { return "{" + strconv.Itoa(slotTag(slot)) + "}//" }

// hashTag returns the part of a key that determines its slot.
func hashTag(key string) string {
	_, rest, opens := strings.Cut(key, "{")
	tag, _, closes := strings.Cut(rest, "}")
	if !opens || !closes || tag == "" {
		return key
	}
	return tag
}

const slots = 16384

func slot(key string) uint16 { return crc16(hashTag(key)) % slots }

// crc16 is the XMODEM variant that Redis Cluster uses.
func crc16(s string) (crc uint16) {
	for i := range len(s) {
		crc ^= uint16(s[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}

// slotTags are the smallest numbers whose decimal text is in each slot. They are computed on first
// use, which takes tens of milliseconds.
var slotTags = sync.OnceValue(func() (numbers [slots]int) {
	for i := range numbers {
		numbers[i] = -1
	}
	for n, left := 0, slots; left > 0; n++ {
		if s := slot(strconv.Itoa(n)); numbers[s] < 0 {
			numbers[s] = n
			left--
		}
	}
	return numbers
})

func slotTag(slot uint16) int {
	numbers := slotTags()
	return numbers[slot]
}

// modeCode returns the mode as it appears at the end of an entry's id.
func modeCode(m line.Mode) string {
	switch {
	case m == line.Exclusive:
		return "x"
	case m == line.Shared:
		return "s"
	default:
		return strconv.Itoa(m.Slots())
	}
}

// modeOf returns the mode in an entry's id. An id without a valid mode is exclusive.
func modeOf(id string) line.Mode {
	code := id[strings.LastIndexByte(id, '.')+1:]
	if code == "s" {
		return line.Shared
	}
	if n, err := strconv.Atoi(code); err == nil && n >= 1 && n <= line.MaxSlots {
		return line.Slot(n)
	}
	return line.Exclusive
}
