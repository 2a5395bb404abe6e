package redisstore

import (
	"time"

	"github.com/stilelock/stile/store"
)

// Deafen makes the store hear nothing that is said on its channels, as if all messages were lost.
func (s *Store) Deafen() { s.deaf = true }

// Entries returns how many entries the store follows, in all its sessions.
func (s *Store) Entries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

// Slot returns the slot of a cluster that a key is in.
func Slot(key string) uint16 { return slot(key) }

// Keys returns all keys of the line behind name.
func Keys(prefix, name string) []string { return keys{prefix: prefix}.of(name).all() }

// Channel returns the channel on which a client of a cluster is woken that has entries in the line behind name.
func Channel(prefix, name, client string) string {
	s := &server{cluster: true, keys: keys{prefix: prefix}}
	return s.wake(s.section(s.keys.of(name))) + client
}

// NameOf returns the name of the line that a key is of the entries of.
func NameOf(prefix, key string) (string, bool) { return keys{prefix: prefix}.name(key) }

// ScriptSum is the name by which servers know the script.
var ScriptSum = scriptSum

// WaitFor sets how long the store waits for replicas from here on.
func (s *Store) WaitFor(d time.Duration) { s.server.replication = d }

// Round sets how many requests go out together. It is to be called before there are any.
func (s *Store) Round(n int) { s.server.round = n }

// Mute makes those who wait never ask how they stand, but when a lease ends or the store has subscribed anew: what they hear
// is all they know. It is to be called before anybody waits.
func (s *Store) Mute() { s.interval = pollInterval{time.Hour, time.Hour} }

// Script is the script.
var Script = script

// Ended is closed when a session has ended.
func Ended(se store.Session) <-chan struct{} { return se.(*session).life.Context().Done() }

// Calls returns how many calls the Redis client has not returned from: subscriptions, and those that were given up, among them.
func (s *Store) Calls() int { return int(s.server.calls.underWay.Load()) }

// CheckAge says whether a version is too old, Denied whether a right is lacking.
var (
	CheckAge = checkAge
	Denied   = denied
)
