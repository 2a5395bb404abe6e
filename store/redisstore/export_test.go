package redisstore

import (
	"context"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/redisinfo"
)

// DropMessages makes the store ignore all published messages, as if they were lost.
func (s *Store) DropMessages() { s.dropMessages = true }

// Entries returns how many entries of all its sessions the store has registered.
func (s *Store) Entries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

// Slot returns the cluster slot of a key.
func Slot(key string) uint16 { return slot(key) }

// Keys returns all keys of a line.
func Keys(prefix, name string) []string { return keys{prefix: prefix}.forLine(name).all() }

// Channel returns the channel on which a client of a cluster is notified of its entries in a line.
func Channel(prefix, name, client string) string {
	s := &server{cluster: true, keys: keys{prefix: prefix}}
	return s.wakePrefix(s.section(s.keys.forLine(name))) + client
}

// NameOf returns the name of the line whose hash of entries is key.
func NameOf(prefix, key string) (string, bool) { return keys{prefix: prefix}.name(key) }

// MaxSet is the largest number of entries that can be put in together.
const MaxSet = maxSet

// ScriptSum is the digest by which servers know the script.
var ScriptSum = theScript().sum

// WaitFor sets how long the store waits for replicas.
func (s *Store) WaitFor(d time.Duration) { s.server.replicationTimeout = d }

// SetChunkSize sets how many requests are sent in one round trip. Call it before the first request.
func (s *Store) SetChunkSize(n int) { s.server.chunkSize = n }

// DisablePolling stops the regular polling, so that waiters learn only from published messages;
// they still poll when a lease ends or the store has subscribed again. Call it before the first
// entry waits.
func (s *Store) DisablePolling() { s.interval = pollInterval{time.Hour, time.Hour} }

// ExaminePause makes Examine call f where it would wait between two readings of a clock.
func (s *Store) ExaminePause(f func()) {
	s.examinePause = func(context.Context, time.Duration) error { f(); return nil }
}

// Script is the text of the script.
var Script = theScript().text

// Ended returns a channel that is closed when the session has ended.
func Ended(se store.Session) <-chan struct{} { return se.(*session).life.Context().Done() }

// Calls returns the number of running calls of the Redis client, subscriptions and abandoned calls
// included.
func (s *Store) Calls() int { return int(s.server.calls.running.Load()) }

// CheckSupported and Denied export checkSupported and denied.
var (
	CheckSupported = checkSupported
	Denied         = denied
)

// NotExecuted reports whether an error implies that the request was not carried out.
var NotExecuted = notExecuted

// ReconnectError returns the error of a request that failed with err because the store left a
// server after reply.
func ReconnectError(reply, err error) error { return &reconnectError{reply, err} }

// BrokeOff is brokeOff.
var BrokeOff = brokeOff

// Harmless returns the commands by which Examine looks for missing rights.
func Harmless() map[string][]string { return redisinfo.Probes("key", "channel") }
