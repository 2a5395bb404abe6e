package redisstore

import (
	"strconv"
	"strings"
	"sync"

	"github.com/stilelock/stile/line"
)

// keys maps names to keys and back. A lock's own key is its name behind the prefix. All other keys contain "//", which no
// name does: so none of them is ever the key of a lock under the same prefix.
type keys struct {
	prefix string
}

// lineKeys are the keys of one line. All are in one slot of a cluster.
type lineKeys struct {
	name string
	lock string // the one that other clients know
	side string // what the others begin with
}

// The ends of the keys beside the lock's own.
const (
	waiting = "//q"
	holding = "//h"
	leases  = "//x"
	entries = "//e"
	fence   = "//f"
	voids   = "//v"
)

func (k keys) of(name string) lineKeys {
	lock := k.prefix + name
	return lineKeys{name: name, lock: lock, side: beside(lock)}
}

// all returns the keys as the script wants them.
func (l lineKeys) all() []string {
	return []string{
		l.lock, l.side + waiting, l.side + holding, l.side + leases, l.side + entries, l.side + fence, l.side + voids,
	}
}

func (k keys) session(id string) string { return k.prefix + "//session/" + id }

// changes is the channel on which the names of lines are told in which something has happened.
func (k keys) changes() string { return k.prefix + "//changes" }

// name returns the name of the line that a key is of the entries of.
func (k keys) name(key string) (name string, ok bool) {
	side, ok := strings.CutSuffix(key, entries)
	if !ok {
		return "", false
	}
	_, lock, found := strings.Cut(side, "}//") // see beside, from the last case to the first
	if !found {
		lock = strings.TrimSuffix(strings.TrimPrefix(side, "{"), "}")
	}
	if own, ok := strings.CutSuffix(side, "/"); ok {
		lock = own
	}
	name, ok = strings.CutPrefix(lock, k.prefix)
	return name, ok && name != "" && beside(lock) == side
}

// beside returns what keys begin with that are in the same slot of a cluster as lock, another for each lock. Only what stands
// between the first brace and the next closing one decides about the slot, if there is such a thing and it is not empty.
func beside(lock string) string {
	switch {
	case hashed(lock) != lock:
		return lock + "/" // which no lock's name ends in
	case !strings.Contains(lock, "}"):
		return "{" + lock + "}"
	}
	// In braces, the key would end at its own brace. So what stands in them is something else that has the same slot.
	return inSlot(slot(lock)) + lock
}

// inSlot returns what a key can begin with to be in a slot of a cluster, whatever follows.
func inSlot(slot uint16) string { return "{" + strconv.Itoa(stranger(slot)) + "}//" }

// hashed returns the part of a key that decides about its slot.
func hashed(key string) string {
	_, rest, opens := strings.Cut(key, "{")
	tag, _, closes := strings.Cut(rest, "}")
	if !opens || !closes || tag == "" {
		return key
	}
	return tag
}

const slots = 16384

func slot(key string) uint16 { return crc16(hashed(key)) % slots }

// crc16 is the one that Redis Cluster uses: XMODEM.
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

// strangers are the smallest numbers that have each slot. They are found when the first is needed, in some hundredths of a
// second.
var strangers = sync.OnceValue(func() (numbers [slots]int) {
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

func stranger(slot uint16) int {
	numbers := strangers()
	return numbers[slot]
}

// modeCode is the mode as the end of an entry's id tells it.
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

// modeOf returns the mode that an entry's id tells. An entry of which nothing can be known is exclusive.
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
