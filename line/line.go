// Package line has the rules that decide which entries of a line are admitted.
//
// A line is the ordered queue of one lock name. It consists of entries, each with a [Mode]. Whether
// an entry is admitted depends only on its mode and on the entries ahead of it; no clock, network
// or store is involved. Mutexes, read-write locks and semaphores differ only in these rules:
//
//	exclusive    admitted if there is no entry ahead
//	shared       admitted if there are only shared entries ahead
//	slot of n    admitted if there are fewer than n entries ahead, all of them slots;
//	             if they disagree on n, the smallest n counts
//
// An operator may limit the number of slots of a line further: then the rules are applied to the mode
// that [Mode.Within] returns.
//
// The mode of an entry can change once: an admitted exclusive entry can become shared, which is called
// a downgrade. It keeps its order.
//
// Three properties follow, and are tested on random lines. The admitted entries of a line never
// conflict. The first entry is always admitted. An admitted entry stays admitted, whichever entries
// join behind it, leave, or are downgraded. There is one exception: after the limit was
// lowered, the rules may refuse entries that they admitted before. These stay admitted, and the
// store must remember that.
//
// A line should have entries of one kind; see [SameKind]. But it may also have an entry of another
// kind: one that is about to be refused, or that of a client that ignores kinds. So the rules decide
// about every line: a slot waits behind an exclusive entry, for example.
package line

// An Entry is one position in a line.
type Entry struct {
	// ID identifies the entry within its line.
	ID string
	// Order is the entry's position in the store's order: a smaller order is ahead. Entries with
	// the same order are sorted by ID; only a foreign client that enqueues two entries in one
	// transaction makes such entries.
	Order uint64
	// Mode is the requested mode, or [Shared] after a downgrade.
	Mode Mode
}

// Before reports whether e is ahead of other.
func (e Entry) Before(other Entry) bool {
	if e.Order != other.Order {
		return e.Order < other.Order
	}
	return e.ID < other.ID
}

// Admits reports whether an entry of mode m is admitted behind the entries ahead.
func Admits(m Mode, ahead []Mode) bool {
	return Blocking(m, ahead) == 0
}

// Blocking returns how many of the entries ahead must leave before an entry of mode m is admitted.
// Zero means that it is admitted already.
func Blocking(m Mode, ahead []Mode) int {
	var c counts
	for _, a := range ahead {
		c.add(a)
	}
	return c.blocking(m)
}

// counts is what matters about the entries ahead of another.
type counts struct {
	all    int
	shared int
	slots  int
	least  int // the smallest number of slots that one of the slots asks for
}

func (c *counts) add(m Mode) {
	c.all++
	if m.kind == shared {
		c.shared++
	}
	if m.kind == slot {
		if c.slots++; c.slots == 1 || m.slots < c.least {
			c.least = m.slots
		}
	}
}

func (c *counts) blocking(m Mode) int {
	switch m.kind {
	case shared:
		return c.all - c.shared
	case slot:
		n := m.slots
		if c.slots > 0 {
			n = min(n, c.least)
		}
		return c.all - c.slots + max(0, c.slots-n+1)
	case exclusive:
	}
	return c.all
}

// SameKind reports whether entries of the modes a and b may be in the same line. Exclusive and shared
// entries may, because they are those of a mutex or a read-write lock. Slots may if they agree on the
// number of slots.
func SameKind(a, b Mode) bool { return a.Slots() == b.Slots() }

// Conflict reports whether holds of the modes a and b exclude each other. Two slots do only if one of the
// modes has a single slot.
func Conflict(a, b Mode) bool {
	return !a.compatibleWith(b) || a.Slots() == 1 || b.Slots() == 1
}

// Admitted reports for each entry of a line with the given limit whether the rules admit it. The entries
// must be in order.
func Admitted(entries []Entry, limit int) []bool {
	admitted := make([]bool, len(entries))
	for i, n := range Blocked(entries, limit) {
		admitted[i] = n == 0
	}
	return admitted
}

// Blocked returns, for each entry of a line with the given limit, how many entries must leave before the rules
// admit it; zero if they do. The entries must be in order. It takes time in proportion to their number.
func Blocked(entries []Entry, limit int) []int {
	blocked := make([]int, len(entries))
	var ahead counts
	for i, e := range entries {
		blocked[i] = ahead.blocking(e.Mode.Within(limit))
		ahead.add(e.Mode)
	}
	return blocked
}
