// Package line holds the rules of whose turn it is.
//
// A line is the ordered queue behind one lock name. Its members are entries, each with a [Mode]. An entry
// is admitted when the rule of its mode is met by the entries ahead of it, and by nothing else: no clock, no
// network and no store takes part. Mutex, read-write lock and semaphore are these rules and nothing more.
//
//	exclusive    nobody ahead
//	shared       nobody ahead but shared entries
//	slot of n    nobody ahead but slot entries, and fewer than n of them; if they disagree on n, the smallest
//
// Three things follow, and are tested over random lines: the admitted entries of a line never conflict; the
// first entry is always admitted; and an admitted entry stays admitted whatever joins behind it or leaves.
// Kinds that conflict may stand in one line: a slot waits behind an exclusive entry as anything else does.
package line

// Entry is one place in a line, as the rules see it.
type Entry struct {
	// ID names the entry within its line.
	ID string
	// Order is the store's position of the entry: of two entries the one with the smaller order is ahead. IDs
	// break ties, which only a foreign client that enqueues twice in one transaction can cause.
	Order uint64
	// Mode is what the entry asks for.
	Mode Mode
}

// Before reports whether e stands ahead of other.
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

// Blocking says how many of the entries ahead must leave before an entry of mode m is admitted: zero when it
// is admitted already.
func Blocking(m Mode, ahead []Mode) int {
	var beside, others int
	slots := m.Slots()
	for _, a := range ahead {
		if m.standsBeside(a) {
			beside++
			slots = min(slots, a.Slots())
		} else {
			others++
		}
	}
	if slots > 0 && beside >= slots {
		return others + beside - slots + 1
	}
	return others
}

// Conflict reports whether holds of the modes a and b may never be valid together, however many slots there
// are.
func Conflict(a, b Mode) bool {
	return !a.standsBeside(b) || a.Slots() == 1 || b.Slots() == 1
}

// Admitted reports for each entry of a line, given in order, whether it is admitted.
func Admitted(entries []Entry) []bool {
	admitted := make([]bool, len(entries))
	ahead := make([]Mode, 0, len(entries))
	for i, e := range entries {
		admitted[i] = Admits(e.Mode, ahead)
		ahead = append(ahead, e.Mode)
	}
	return admitted
}
