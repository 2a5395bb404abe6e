package zkstore

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/delivery"
)

const (
	ours   = "01234567-89ab-8def-8123-456789abcdef" // of version 8
	theirs = "01234567-89ab-4def-8123-456789abcdef" // of version 4
)

func TestParseNode(t *testing.T) {
	tests := []struct {
		name     string
		mode     line.Mode
		sequence int64
		foreign  string // "curator" or ""
	}{
		{"_c_" + ours + "-lock-0000000007", line.Exclusive, 7, ""},
		{"_c_" + ours + "-shared-lock-0000000007", line.Shared, 7, ""},
		{"_c_" + ours + "-slot-3-lock-0000000007", line.Slot(3), 7, ""},
		{"_c_" + ours + "-__WRIT__0000000007", line.Exclusive, 7, ""},
		{"_c_" + ours + "-__READ__0000000007", line.Shared, 7, ""},
		{"_c_" + ours + "-slot-3-__WRIT__0000000007", line.Slot(3), 7, ""},
		{"_c_" + theirs + "-lock-0000000007", line.Exclusive, 7, "curator"},
		{"_c_" + theirs + "-__WRIT__0000000007", line.Exclusive, 7, "curator"},
		{"_c_" + theirs + "-__READ__0000000007", line.Shared, 7, "curator"},
		{"_c_0123456789abcdef0123456789abcdef-lock-0000000007", line.Exclusive, 7, ""},
		{"0123456789abcdef0123456789abcdef__lock__0000000007", line.Exclusive, 7, ""},
		{"0123456789abcdef0123456789abcdef__rlock__0000000007", line.Shared, 7, ""},
		{"lock-0000000007", line.Exclusive, 7, ""},
		{"lock-2147483647", line.Exclusive, sequenceEnd, ""},
		{"lock--2147483648", line.Exclusive, -1 << 31, ""},
		{"x__lock__-2147483648", line.Exclusive, -1 << 31, ""},
		// Other clients may use Stile's forms with another meaning.
		{"_c_" + theirs + "-shared-lock-0000000007", line.Exclusive, 7, "curator"},
		{"_c_" + theirs + "-slot-3-lock-0000000007", line.Exclusive, 7, "curator"},
		{"_c_" + ours + "-slot-0-lock-0000000007", line.Exclusive, 7, ""},
	}
	for _, tt := range tests {
		n, ok := parseNode(tt.name)
		if !ok || n.mode != tt.mode || n.sequence != tt.sequence || n.byCurator() != (tt.foreign == "curator") {
			t.Errorf("%s is parsed as %+v, %v", tt.name, n, ok)
		}
	}
	for _, name := range []string{
		"", "lock-", "lock-1", "lock-000000001", "config", "lease_holder", "_c_x", "read-0000000001", "0000000001",
		"_c_" + theirs + "-latch-0000000001", "lease-0000000001", "lock-00000000001x", "lock-99999999999999999999",
	} {
		if n, ok := parseNode(name); ok {
			t.Errorf("%q is parsed as the entry %+v", name, n)
		}
	}
}

func TestNodePrefix_roundTrip(t *testing.T) {
	for _, mode := range []line.Mode{line.Exclusive, line.Shared, line.Slot(1), line.Slot(line.MaxSlots)} {
		for _, readWrite := range []bool{false, true} {
			guid := newGUID()
			n, ok := parseNode(nodePrefix(guid, mode, readWrite) + "0000000042")
			if !ok || n.guid != guid || n.mode != mode || n.sequence != 42 || !n.ours() || n.byCurator() {
				t.Errorf("mode %v, ReadWrite %v: parsed as %+v, %v", mode, readWrite, n, ok)
			}
			if n.unseen(true) || n.unseen(false) || n.mayBeReplaced() {
				t.Errorf("mode %v, ReadWrite %v: treated like an entry of Curator", mode, readWrite)
			}
		}
	}
}

// A Curator reader (5.5 or later) that was a writer has the writer's number, and is ahead of all
// later entries.
func TestContenders_equalNumbers(t *testing.T) {
	cs := contenders([]string{
		"_c_" + ours + "-__WRIT__0000000008", "_c_" + theirs + "-__WRIT__0000000007", "_c_" + theirs + "-__READ__0000000007",
		"foreign",
	})
	if len(cs) != 3 || cs[2].sequence != 8 {
		t.Fatalf("contenders: got %+v, want 3 with the number 8 last", cs)
	}
	if !cs[0].mayBeReplaced() && !cs[1].mayBeReplaced() {
		t.Errorf("mayReturn is false for both of %+v", cs)
	}
}

// Promise: P2
func TestEntry_check(t *testing.T) {
	se := &session{id: 7}
	for _, tt := range []struct {
		what     string
		st       stat
		sequence int64
		want     string // empty if there is no error
	}{
		{"valid", stat{czxid: 12, owner: 7}, 3, ""},
		{"the largest values", stat{czxid: store.MaxOrder, owner: 7}, sequenceEnd - 1, ""},
		{"of another session", stat{czxid: 12, owner: 8}, 3, "belongs to session 0x8"},
		{"the last sequence number", stat{czxid: 12, owner: 7}, sequenceEnd, "used up"},
		{"a negative sequence number", stat{czxid: 12, owner: 7}, -1 << 31, "used up"},
		{"a transaction beyond MaxOrder", stat{czxid: store.MaxOrder + 1, owner: 7}, 3, "a fencing token can be made"},
		{"a negative transaction", stat{czxid: -1, owner: 7}, 3, "a fencing token can be made"},
	} {
		e := &entry{session: se, line: &lineWatch{dir: "/a"}, node: listedEntry{node: node{sequence: tt.sequence}}}
		err := e.check(tt.st)
		switch {
		case tt.want == "" && (err != nil || e.order != uint64(tt.st.czxid)):
			t.Errorf("%s: got order %d, error %v", tt.what, e.order, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: got error %v, want one with %q", tt.what, err, tt.want)
		}
	}
}

// After a reconnection a server may answer that lags behind the one whose events were received.
func TestEntry_updateAhead(t *testing.T) {
	line := func(names ...string) []listedEntry {
		cs := contenders(names)
		if len(cs) != len(names) {
			t.Fatalf("%q are not all entries", names)
		}
		return cs
	}
	const (
		first, second = "_c_" + ours + "-__WRIT__0000000001", "_c_" + theirs + "-__WRIT__0000000002"
		reader        = "_c_" + theirs + "-__READ__0000000002" // was the second
	)
	for _, tt := range []struct {
		what                 string
		known, reading, want []string
	}{
		{"an entry has left", []string{first, second}, []string{second}, []string{second}},
		{"an entry that has left is in the read", []string{second}, []string{first, second}, []string{second}},
		{"a writer has become a reader", []string{second}, []string{reader}, []string{reader}},
		{"all have left", []string{first}, nil, nil},
	} {
		e := &entry{ahead: line(tt.known...)}
		e.updateAhead(line(tt.reading...))
		var got []string
		for _, c := range e.ahead {
			got = append(got, c.name)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q ahead, want %q", tt.what, got, tt.want)
		}
	}
	e := &entry{delivery: delivery.New(nil)}
	e.delivery.Deliver(store.Standing{State: store.Admitted})
	if e.updateAhead(line(first)); len(e.ahead) > 0 {
		t.Error("an old read has changed the entries ahead of an admitted entry")
	}
}

// A session is lost while one of its entries is being created. The race detector sees whether both use the entry's order
// at the same time.
func TestEntry_checkWhileSessionIsLost(t *testing.T) {
	se := &session{id: 7}
	w := &lineWatch{session: se, dir: "/a", mine: make(map[*entry]struct{}), stop: func() {}}
	e := &entry{
		session: se, line: w, node: listedEntry{node: node{sequence: 3}},
		delivery: delivery.New(func(store.Standing) {}), number: newClaimState(),
	}
	w.mine[e] = struct{}{}
	var closing sync.WaitGroup
	closing.Go(func() { w.close(store.ErrSessionLost, true) })
	if err := e.check(stat{czxid: 12, owner: 7}); err != nil {
		t.Error(err)
	}
	closing.Wait()
}
