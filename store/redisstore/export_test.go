package redisstore

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

// NameOf returns the name of the line that a key is of the entries of.
func NameOf(prefix, key string) (string, bool) { return keys{prefix: prefix}.name(key) }

// ScriptSum is the name by which servers know the script.
var ScriptSum = scriptSum
