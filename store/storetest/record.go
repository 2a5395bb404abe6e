package storetest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func records(s suite) {
	s.test("a record is read as it was written", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		w.wantRecord(name, "")
		p := w.openKept().hold(name, line.Exclusive)
		for _, value := range []string{
			"one", " two ", "", "\x00\xff\n\r\"'\\ {}", "1.1 one", strings.Repeat("x ", store.MaxRecordBytes/2), "last",
		} {
			p.setRecord(value)
			w.wantRecord(name, value)
		}
	})

	s.test("a record does not change with the caller's bytes", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		value := []byte("value")
		p.writeRecord(value)
		clear(value)
		read := w.record(name)
		w.wantRecord(name, "value")
		clear(read)
		w.wantRecord(name, "value")
	})

	s.test("an empty value removes a record", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		p := c.hold(name, line.Exclusive)
		p.setRecord("") // there is none
		p.setRecord("value")
		p.setRecord("")
		p.withdraw()
		c.close()
		w.wantRecord(name, "")
		w.openKept().hold(name, line.Exclusive).setRecord("value")
		w.wantRecord(name, "value")
	})

	s.test("a record outlasts its entry", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		p.setRecord("value")
		p.withdraw()
		w.wantRecord(name, "value")
		c := w.openKept()
		c.hold(name, line.Exclusive).setRecord("second")
		c.close()
		w.wantRecord(name, "second")
		w.openKept().hold(name, line.Exclusive)
		w.wantRecord(name, "second")
	})

	s.test("a record outlasts an expired session", func(_ *testing.T, w *testEnv) {
		c, p, next := w.expiringHold(func(_ *client, held, _ *entry) error { return held.trySetRecord("value") })
		next.admittedWithin(c.Terms().TTL + 2*w.h.Grace)
		w.wantRecord(p.name, "value")
		p.cannotSetRecord()
		w.wantRecord(p.name, "value")
		next.setRecord("next")
		p.cannotSetRecord()
		w.wantRecord(p.name, "next")
	})

	s.test("each name has a record of its own", func(_ *testing.T, w *testEnv) {
		names := []string{w.name("lock"), w.name("lock/below"), w.name("other"), w.prefix}
		var holders []*entry
		for _, name := range names[:3] {
			p := w.openKept().hold(name, line.Exclusive)
			p.setRecord(name)
			holders = append(holders, p)
		}
		for _, name := range names[:3] {
			w.wantRecord(name, name)
		}
		w.wantRecord(names[3], "")
		holders[0].setRecord("")
		w.wantRecord(names[1], names[1])
	})

	s.test("a name with a record has no line", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		p.setRecord("value")
		w.wantLine(name, p)
		p.withdraw()
		w.wantLine(name)
		if lines := w.lines(w.prefix); len(lines) > 0 {
			t.Errorf("Lines returned %+v, want no line", lines)
		}
	})

	s.test("an entry that was withdrawn cannot write the record", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		p := c.hold(name, line.Exclusive)
		p.setRecord("value")
		p.withdraw()
		p.cannotSetRecord()
		w.wantRecord(name, "value")
		next := c.hold(name, line.Exclusive) // on some stores with the same key
		p.cannotSetRecord()
		w.wantRecord(name, "value")
		next.setRecord("next")
		w.wantRecord(name, "next")
	})

	s.test("an entry of a closed session cannot write the record", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.open()
		p := c.hold(name, line.Exclusive)
		c.close()
		p.cannotSetRecord()
		w.wantRecord(name, "")
	})

	s.needs(Fencing).test("a broken entry cannot write the record", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		p := c.hold(name, line.Exclusive)
		p.setRecord("value")
		if _, err := w.breakEntry(name, p.admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		p.cannotSetRecord() // before or after its client has been notified
		w.wantRecord(name, "value")
		p.gone()
		next := c.hold(name, line.Exclusive)
		p.cannotSetRecord()
		next.setRecord("next")
		w.wantRecord(name, "next")
	})

	s.needs(ReleaseAfter).test("an entry released with a delay cannot write the record", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		p.withdrawAfter(w.longDelay())
		p.cannotSetRecord()
		w.wantRecord(name, "")
	})

	s.needs(SharedModes).test("entries of all modes write the record", func(_ *testing.T, w *testEnv) {
		for _, mode := range []line.Mode{line.Shared, line.Slot(2)} {
			name := w.newName()
			a, b := w.openKept().hold(name, mode), w.openKept().hold(name, mode)
			a.setRecord("a")
			b.setRecord("b")
			w.wantRecord(name, "b")
			a.setRecord("again")
			w.wantRecord(name, "again")
		}
	})

	s.test("an abandoned write has no effect after a later one", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		w.stagger(20, func(ctx context.Context) {
			_ = p.ticket.Extensions().SetRecord(ctx, []byte("abandoned")) // may succeed or fail
			p.setRecord("later")
			w.wantRecord(name, "later")
		})
		time.Sleep(settleTime)
		w.wantRecord(name, "later")
	})

	s.needs(SharedModes).test("an abandoned write has no effect after later ones by it and another holder", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		p, other := w.openKept().hold(name, line.Slot(2)), w.openKept().hold(name, line.Slot(2))
		w.stagger(20, func(ctx context.Context) {
			_ = p.ticket.Extensions().SetRecord(ctx, []byte("abandoned")) // may succeed or fail
			p.setRecord("later")
			other.setRecord("other")
			w.wantRecord(name, "other")
		})
		time.Sleep(settleTime)
		w.wantRecord(name, "other")
	})

	s.test("an abandoned write has no effect after a later removal", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		w.stagger(20, func(ctx context.Context) {
			_ = p.ticket.Extensions().SetRecord(ctx, []byte("abandoned")) // may succeed or fail
			p.setRecord("")
			w.wantRecord(name, "")
		})
		time.Sleep(settleTime)
		w.wantRecord(name, "")
	})

	s.test("an abandoned write has no effect after the entry has left", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		c, other := w.openKept(), w.openKept()
		w.stagger(20, func(ctx context.Context) {
			p := c.hold(name, line.Exclusive)
			_ = p.ticket.Extensions().SetRecord(ctx, []byte("abandoned")) // may succeed or fail
			p.withdraw()
			next := other.hold(name, line.Exclusive)
			next.setRecord("next")
			w.wantRecord(name, "next")
			next.withdraw()
		})
		time.Sleep(settleTime)
		w.wantRecord(name, "next")
	})

	s.needs(Cut).test("a write during an outage is not confirmed", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		p := c.hold(name, line.Exclusive)
		heal := w.cut(c)
		defer heal()
		ctx, cancel := context.WithTimeout(t.Context(), w.h.Brief/8)
		defer cancel()
		if err := p.ticket.Extensions().SetRecord(ctx, []byte("unknown")); err == nil || errors.Is(err, store.ErrGone) {
			t.Errorf("SetRecord during an outage returned %v, want another error than ErrGone", err)
		}
		heal()
		p.setRecord("later")
		time.Sleep(settleTime)
		w.wantRecord(name, "later")
	})
}

// record reads the record of a name.
func (w *testEnv) record(name string) []byte {
	w.t.Helper()
	ctx, cancel := w.call()
	defer cancel()
	value, err := w.stores[len(w.stores)-1].Capabilities().Record(ctx, name)
	if err != nil {
		w.t.Fatalf("Record(%q): %v", name, err)
	}
	return value
}

// wantRecord checks the record of a name.
func (w *testEnv) wantRecord(name, want string) {
	w.t.Helper()
	if got := w.record(name); !bytes.Equal(got, []byte(want)) {
		w.t.Fatalf("the record of %q is %.40q (%d bytes), want %.40q (%d bytes)", name, got, len(got), want, len(want))
	}
}

// setRecord writes the record of the entry's name.
func (p *entry) setRecord(value string) {
	p.client.w.t.Helper()
	p.writeRecord([]byte(value))
}

func (p *entry) writeRecord(value []byte) {
	p.client.w.t.Helper()
	ctx, cancel := p.client.w.call()
	defer cancel()
	if err := p.ticket.Extensions().SetRecord(ctx, value); err != nil {
		p.client.w.t.Fatalf("session %s, lock %q: SetRecord: %v", p.client.ID(), p.name, err)
	}
}

// trySetRecord is setRecord for an entry whose session may have expired.
func (p *entry) trySetRecord(value string) error {
	ctx, cancel := p.client.w.call()
	defer cancel()
	return p.ticket.Extensions().SetRecord(ctx, []byte(value))
}

// cannotSetRecord checks that an entry that has gone cannot write the record.
func (p *entry) cannotSetRecord() {
	p.client.w.t.Helper()
	if err := p.trySetRecord("late"); !saysGone(err) && !errors.Is(err, store.ErrSessionLost) {
		p.client.w.t.Fatalf("session %s, lock %q: SetRecord of an entry that is gone returned %v, want ErrGone, ErrNotKnown or ErrSessionLost",
			p.client.ID(), p.name, err)
	}
}
