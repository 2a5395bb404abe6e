package redisstore

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A key that is taken for one of a line's entries is the one that this line has.
func FuzzNamesOfKeys(f *testing.F) {
	for _, seed := range []struct{ prefix, key string }{
		{"", "{a}//e"},
		{"team:", "{team:a}//e"},
		{"", "b{a}///e"},
		{"", "{7}//a}//e"},
		{"", "{7}//{}a//e"},
		{"", "{a}"},
		{"", "//e"},
		{"", "{}//e"},
		{"", "{a//e"},
		{"", "a/b//e"},
		{"team:", "{a}//e"},
	} {
		f.Add(seed.prefix, seed.key)
	}
	f.Fuzz(func(t *testing.T, prefix, key string) {
		k := keys{prefix: prefix}
		name, ok := k.name(key)
		if !ok {
			return
		}
		if all := k.forLine(name).all(); !slices.Contains(all, key) {
			t.Errorf("with the prefix %q the key %q is taken for one of %q, whose keys are %q", prefix, key, name, all)
		}
	})
}

// What the server says of an entry may be anybody's. What of it cannot be known is left out, and no order is beyond what a
// token can be made of.
func FuzzDescribed(f *testing.F) {
	for _, seed := range []struct{ id, order, known string }{
		{"ABC.x", "1758000000000000", `client|l|{"session":"S","owner":{"host":"h","pid":1}}`},
		{"ABC.s", "1", "client|t|{}"},
		{"ABC.3", "1", "client||null"},
		{"ABC.1048577", "1", "client||"},
		{"ABC.-1", "-1", "client"},
		{"ABC", "1e+20", "||[]"},
		{"", "", ""},
		{"ABC.+3", "99999999999999999", `||{"session":1}`},
		{"ABC.x", "18446744073709551615", `||{"session":"S","owner":{"pid":"x"}}`},
	} {
		f.Add(seed.id, seed.order, seed.known)
	}
	f.Fuzz(func(t *testing.T, id, order, known string) {
		e := parseEntry(id, order, known)
		if e.Order > store.MaxOrder {
			t.Errorf("the order %q is read as %d, which no token can be made of", order, e.Order)
		}
		if again := modeOf("ABC." + modeCode(e.Mode)); again != e.Mode {
			t.Errorf("the id %q is read as one of the mode %v, and that again as %v", id, e.Mode, again)
		}
		text, err := json.Marshal(payload{Session: e.Session, Owner: e.Owner})
		if err != nil {
			t.Fatalf("%q is read as %+v, which cannot be written: %v", known, e, err)
		}
		again := parseEntry(id, order, "client|l|"+string(text))
		if again.Session != e.Session || again.Owner.String() != e.Owner.String() {
			t.Errorf("%q is read as %+v, and what is written of that as %+v", known, e, again)
		}
	})
}

// After an unexpected answer the entry counts as gone: nobody is let in by mistake, or without a token.
func FuzzStandingOf(f *testing.F) {
	for _, seed := range []struct{ word, number string }{
		{"in", "1758000000000000"},
		{"in", "0"},
		{"in", "18446744073709551615"},
		{"wait", "3"},
		{"wait", "0"},
		{"wait", "18446744073709551615"},
		{"in", "-1"},
		{"gone", "0"},
		{"", ""},
	} {
		f.Add(seed.word, seed.number)
	}
	f.Fuzz(func(t *testing.T, word, number string) {
		e := &entry{req: store.Request{Name: "a", Mode: line.Exclusive}}
		switch st := parseStanding(word, number, e); {
		case st.State == store.Admitted && (word != "in" || st.Order == 0 || st.Order > store.MaxOrder):
			t.Errorf("%q %q admits with the order %d", word, number, st.Order)
		case st.State == store.Waiting && (word != "wait" || st.Ahead < 1):
			t.Errorf("%q %q is a wait behind %d", word, number, st.Ahead)
		case st.State == store.Gone && st.Cause == nil:
			t.Errorf("%q %q is the end of an entry, and nothing says why", word, number)
		}
	})
}
