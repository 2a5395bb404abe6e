package zkstore

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// clients are node names of the entries of Curator, go-zookeeper, kazoo and Stile, and names that
// resemble them.
var clients = []string{
	"_c_" + ours + "-lock-0000000007", "_c_" + ours + "-shared-lock-0000000007", "_c_" + ours + "-slot-3-__WRIT__0000000007",
	"_c_" + ours + "-slot-1048577-lock-0000000007", "_c_" + ours + "-slot-0003-lock-0000000007", "_c_" + ours + "-__READ__2147483647",
	"_c_" + theirs + "-lock-0000000007", "_c_" + theirs + "-__WRIT__0000000007", "_c_" + theirs + "-shared-lock-0000000007", "_c_" + theirs + "-slot-3-lock-0000000007", "slot-3-lock-0000000007",
	"_c_0123456789abcdef0123456789abcdef-lock-0000000007", "lock-0000000007", "lock--2147483648", "lock-2147483647",
	"0123456789abcdef0123456789abcdef__lock__0000000007", "0123456789abcdef0123456789abcdef__rlock__0000000007",
	"lock-000000000", "lock-99999999999999999999", "__READ__-", "lease-0000000001", "_c_-lock-0000000001", "config", "",
}

// Every parsed name ends in its number, and its mode is valid. A mode other than exclusive comes
// only from a reader's mark or from a name that Stile created. Such a name survives formatting and
// parsing.
func FuzzParseNode(f *testing.F) {
	for _, name := range clients {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		n, ok := parseNode(name)
		if !ok {
			return
		}
		before := name[:len(name)-n.digits]
		if !strings.HasSuffix(before, n.suffix) || n.suffix == "" {
			t.Fatalf("%q is parsed as %+v: its mark does not precede the number", name, n)
		}
		want := n
		want.sequence, want.digits = 42, 10
		if next, ok := parseNode(before + "0000000042"); !ok || next != want {
			t.Errorf("%q is parsed as %+v, and with another number as %+v", name, n, next)
		}
		reads := n.suffix == markRead || n.suffix == markKazooReader
		if n.ours() && n.byCurator() || reads && n.mode != line.Shared || !reads && !n.ours() && n.mode != line.Exclusive {
			t.Errorf("%q is parsed as %+v", name, n)
		}
		if n.sequence < 0 || n.sequence > sequenceEnd {
			return // Stile refuses to join with such a number
		}
		if cs := contenders([]string{name, "config"}); len(cs) != 1 || cs[0].node != n || cs[0].name != name {
			t.Errorf("%q is parsed as %+v, and in a listing as %+v", name, n, cs)
		}
		if !n.ours() {
			return
		}
		for _, readWrite := range []bool{false, true} {
			made, ok := parseNode(nodePrefix(n.guid, n.mode, readWrite) + "0000000042")
			if !ok || made.guid != n.guid || made.mode != n.mode || made.sequence != 42 || made.unseen(readWrite) {
				t.Errorf("%q is parsed as %+v, and as %+v after formatting", name, n, made)
			}
		}
	})
}

// A child of a directory is either an entry, or part of the path of at most one name, which is the
// name with that path.
func FuzzPaths_nameBelow(f *testing.F) {
	for _, child := range append(clients, "a", "a~7Eb", "~", "~4", "~41", "~7e", "~FF", "~zz", "~7Aookeeper", "zookeeper", "lock-~30000000001", "..") {
		f.Add("", "", child)
		f.Add("/team", "orders", child)
	}
	f.Fuzz(func(t *testing.T, root, above, child string) {
		p := paths{root: root}
		if above != "" && store.CheckName(above) != nil || strings.Contains(child, "/") || child == "" {
			return
		}
		name, ok := p.nameBelow(above, child)
		if !ok || store.CheckName(name) != nil {
			return
		}
		if _, entry := parseNode(child); entry {
			t.Errorf("%q below %q is an entry, and the directory of %q", child, above, name)
		}
		dir := root
		if above != "" {
			dir = p.dir(above)
		}
		if got := p.dir(name); got != dir+"/"+child {
			t.Errorf("root %q: node %q below %q is the directory of %q, whose path is %q", root, child, above, name, got)
		}
	})
}

// Decoding arbitrary data does not panic, and data of other clients yields no owner.
func FuzzDecode(f *testing.F) {
	whole, err := json.Marshal(value{Stile: valueFormat, Mode: line.Slot(3), Owner: store.Owner{Host: "h", PID: 1}})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		string(whole), string(whole[1:]), "", "10.0.0.7", "null", "{}", "[]", `{"stile":1}`, `{"stile":-1}`, `{"stile":1,"mode":"slot/0"}`,
		`{"stile":2,"mode":"shared","new":1}`, `{"stile":1,"owner":{"since":"yesterday"}}`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, ours := decode(b)
		if !ours {
			if v.Stile != 0 || v.Mode != line.Exclusive || !v.Owner.IsZero() {
				t.Errorf("foreign data %q: got %+v, want the zero value", b, v)
			}
			return
		}
		if v.Stile < valueFormat {
			t.Errorf("%q is decoded as Stile's", b)
		}
		written, err := json.Marshal(v)
		if err != nil {
			t.Fatalf("%q is decoded as %+v, which cannot be encoded: %v", b, v, err)
		}
		if again, ours := decode(written); !ours || again.Mode != v.Mode || again.Owner.String() != v.Owner.String() {
			t.Errorf("%q is decoded as %+v, and after encoding as %+v", b, v, again)
		}
	})
}
