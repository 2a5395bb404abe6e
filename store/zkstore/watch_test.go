package zkstore

import (
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A writer of Curator's may become a reader, and leave as a writer, while a reading is under way that was answered before
// that. It shows the writer only, of whom it is known that it has left.
func TestAReadingFromBeforeAWriterBecameAReaderAdmitsNobody(t *testing.T) {
	const writer, own = "_c_" + theirs + "-__WRIT__0000000001", "_c_" + ours + "-__WRIT__0000000002"
	s, err := New([]string{"nowhere"}, &Options{ReadWrite: true})
	if err != nil {
		t.Fatal(err)
	}
	se := newGroup(s, store.SessionOptions{TTL: time.Minute}).first
	var told store.Standing
	e := &entry{session: se, req: store.Request{Name: "a", Mode: line.Exclusive, Notify: func(st store.Standing) { told = st }}}
	if err := se.join(e); err != nil {
		t.Fatal(err)
	}
	cs := contenders([]string{writer, own})
	e.node, e.line.following = cs[1], true // by this test
	e.line.arrive(e, cs[:1])

	e.line.readings++
	e.line.busy++
	e.line.hasLeft(writer)
	e.line.apply(cs, e.line.readings)
	if told.State != store.Waiting || !e.line.stale {
		t.Errorf("the entry is told that it is %v, and another reading is wanted: %v", told.State, e.line.stale)
	}
}
