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

// An owner in a store may come from any program. The text of an owner that was decoded is one line
// of printable characters, and the owner survives encoding and decoding.
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
			t.Errorf("String of %q: got %q, want printable characters", text, shown)
		}
		if owner.IsZero() && owner.String() != "" {
			t.Errorf("String of the zero owner %q: got %q, want nothing", text, owner)
		}
		written, err := json.Marshal(owner)
		if err != nil {
			t.Fatalf("%q decodes to %+v, which cannot be encoded: %v", text, owner, err)
		}
		var again store.Owner
		if err := json.Unmarshal(written, &again); err != nil {
			t.Fatalf("%q encodes to %s, which cannot be decoded: %v", text, written, err)
		}
		if !again.Since.Equal(owner.Since) {
			t.Errorf("%q decodes to the time %v, and encodes to %s", text, owner.Since, written)
		}
		owner.Since, again.Since = time.Time{}, time.Time{}
		if len(owner.Labels) == 0 {
			owner.Labels = nil // as empty labels are encoded
		}
		if !reflect.DeepEqual(owner, again) {
			t.Errorf("%q decodes to %+v, and after encoding to %+v", text, owner, again)
		}
	})
}
