package etcdstore

import "time"

// Recheck is how often a line with waiters is read by a store as it is made.
const Recheck = recheck

// SetRecheck makes the store read lines with waiters that often. It must be called before the store is used.
func (s *Store) SetRecheck(d time.Duration) { s.recheck = d }
