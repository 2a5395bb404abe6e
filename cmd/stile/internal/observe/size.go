package observe

import (
	"fmt"
	"slices"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
)

// What the parts of an entry take in memory beside the bytes of their texts: more than on any platform.
const (
	entryBytes = 400 // with the event that has it
	labelBytes = 80
	heldBytes  = 48

	chargeBytes = 600
)

// SizeOf returns about how many bytes of memory an entry takes. Each text counts, also if other entries share it.
func SizeOf(e *stile.Entry) int { return entryBytes + len(e.Session) + sizeOfOwner(&e.Owner) }

// sizeOfOwner returns about how many bytes of memory the texts of an owner take.
func sizeOfOwner(o *stile.Owner) int {
	n := len(o.Host) + len(o.User) + len(o.Command) + len(o.Reason) + len(o.Value)
	for key, value := range o.Labels {
		n += labelBytes + len(key) + len(value)
	}
	for i := range o.Waits {
		n += heldBytes + len(o.Waits[i].Name)
	}
	for i := range o.Under {
		n += heldBytes + len(o.Under[i].Name)
	}
	return n
}

// sizeOfCharge returns about how many bytes of memory a sum takes beside the texts of its holder, with what is known
// of the entries that count in it.
func sizeOfCharge(key chargeKey) int {
	return chargeBytes + len(key.name) + len(key.host) + len(key.user) + len(key.command) + len(key.reason)
}

// SizeOfEvents returns about how many bytes of memory events take.
func SizeOfEvents(events []Event) (n int) {
	for i := range events {
		n += SizeOf(&events[i].Entry)
	}
	return n
}

// maxRemarks is how many remarks of a line are kept, and maxRemarkBytes how long they are. They quote keys, which other
// clients have chosen. The names of keys that honest clients write fit.
const (
	maxRemarks     = 16
	maxRemarkBytes = 4 << 10
)

// bounded returns a line of which other clients cannot have chosen the size, except for the number of its entries. ok
// is false if the name is longer than any that a client of Stile can lock.
func bounded(l stile.Line) (_ stile.Line, ok bool) {
	if len(l.Name) > store.MaxNameBytes {
		return l, false
	}
	tooLong := func(remark string) bool { return len(remark) > maxRemarkBytes }
	if len(l.Remarks) <= maxRemarks && !slices.ContainsFunc(l.Remarks, tooLong) {
		return l, true
	}
	all := len(l.Remarks)
	l.Remarks = slices.DeleteFunc(slices.Clone(l.Remarks), tooLong)
	l.Remarks = slices.Clone(l.Remarks[:min(len(l.Remarks), maxRemarks)])
	l.Remarks = append(l.Remarks, fmt.Sprintf("%d more remarks; stile show has all of them", all-len(l.Remarks)))
	return l, true
}
