package redisstore

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A key from which a name is derived is the key of that line.
func FuzzKeys_name(f *testing.F) {
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
			t.Errorf("prefix %q, key %q: got name %q, whose keys are %q", prefix, key, name, all)
		}
	})
}

// Another program may have written the stored information about an entry. Invalid parts are left
// out, and no order is too large for a token.
func FuzzParseEntry(f *testing.F) {
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
		e := parseEntry(id, order, known, "")
		if e.Order > store.MaxOrder {
			t.Errorf("order %q: got %d, too large for a token", order, e.Order)
		}
		if again := modeOf("ABC." + modeCode(e.Mode)); again != e.Mode {
			t.Errorf("id %q: got mode %v, encoded and parsed again %v", id, e.Mode, again)
		}
		text, err := json.Marshal(payload{Session: e.Session, Owner: e.Owner})
		if err != nil {
			t.Fatalf("%q: got %+v, which cannot be encoded: %v", known, e, err)
		}
		again := parseEntry(id, order, "client|l|"+string(text), "")
		if again.Session != e.Session || again.Owner.String() != e.Owner.String() {
			t.Errorf("%q: got %+v, encoded and parsed again %+v", known, e, again)
		}
	})
}

// An unexpected reply counts as gone: nothing is admitted by mistake or without a token.
func FuzzParseStanding(f *testing.F) {
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
			t.Errorf("%q %q: got admission with order %d", word, number, st.Order)
		case st.State == store.Waiting && (word != "wait" || st.Ahead < 1):
			t.Errorf("%q %q: got waiting with %d ahead", word, number, st.Ahead)
		case st.State == store.Gone && st.Cause == nil:
			t.Errorf("%q %q: got gone without a cause", word, number)
		}
	})
}
