package store_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stilelock/stile/store"
)

// Whoever can write to a store can call himself anything. An owner that could be read is shown in one line of printable
// characters, and is the same when it is written and read again.
func FuzzOwner(f *testing.F) {
	whole, err := json.Marshal(store.Owner{
		Host: "web-3", PID: 812, User: "ann", Command: "deploy.sh", Reason: "ticket 812",
		Labels: map[string]string{"team": "web"}, Since: time.Unix(1, 2).UTC(),
	})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		string(whole), "{}", "null", `{"host":"\u001b[2J"}`, `{"user":"a\nb","host":"\ufffd"}`, `{"pid":-1}`, `{"labels":{"":""}}`,
		`{"since":"9999-12-31T23:59:59.999999999-23:59"}`, `{"since":"0000-01-01T00:00:00+23:59"}`, `{"since":"0001-01-01T00:00:00Z"}`,
		`{"command":"\u202e\u0000"}`, "[]", `{"pid":1.5}`, "{\"host\":\"\xff\"}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var owner store.Owner
		if json.Unmarshal(text, &owner) != nil {
			return
		}
		if shown := owner.String(); strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q is shown as %q", text, shown)
		}
		if owner.IsZero() && owner.String() != "" {
			t.Errorf("nothing is known of %q, and it is shown as %q", text, owner)
		}
		written, err := json.Marshal(owner)
		if err != nil {
			t.Fatalf("%q was read as %+v, which cannot be written: %v", text, owner, err)
		}
		var again store.Owner
		if err := json.Unmarshal(written, &again); err != nil {
			t.Fatalf("%q was written as %s, which cannot be read: %v", text, written, err)
		}
		if !again.Since.Equal(owner.Since) {
			t.Errorf("%q was read with the time %v, and written as %s", text, owner.Since, written)
		}
		owner.Since, again.Since = time.Time{}, time.Time{}
		if len(owner.Labels) == 0 {
			owner.Labels = nil // as it is written
		}
		if !reflect.DeepEqual(owner, again) {
			t.Errorf("%q was read as %+v, and what was written of that as %+v", text, owner, again)
		}
	})
}
