package stile_test

import (
	"encoding/json"
	"testing"

	"github.com/stilelock/stile"
)

// An entry that was decoded from JSON survives encoding and decoding unchanged. Its token is
// encoded as a string, because many JSON readers round large numbers.
func FuzzEntryJSON(f *testing.F) {
	for _, seed := range []string{
		`{"token":"34816","mode":"exclusive","owner":{"host":"h","pid":1,"since":"2026-11-21T20:00:00.5Z"},"session":"1f","remaining_ns":1}`,
		`{"token":"9223372036854775807","mode":"slot/3","foreign":true}`,
		`{"token":"18446744073709551616"}`, `{"token":34816}`, `{"token":"-1"}`, `{"token":"0x10"}`, `{"token":""}`, `{"token":null}`, `{"token":"007"}`,
		`{"mode":"slot/0"}`, `{"mode":null}`, `{"remaining_ns":1e3}`, `{"owner":null}`, `{"owner":{"labels":{"a":"\u0000"}}}`, `null`, `{}`, `[]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var e stile.Entry
		if json.Unmarshal(text, &e) != nil {
			return
		}
		written, err := json.Marshal(e)
		if err != nil {
			t.Fatalf("%q decodes to %+v, which cannot be encoded: %v", text, e, err)
		}
		var again stile.Entry
		if err := json.Unmarshal(written, &again); err != nil {
			t.Fatalf("%q encodes to %s, which cannot be decoded: %v", text, written, err)
		}
		if twice, err := json.Marshal(again); err != nil || string(twice) != string(written) || again.Token != e.Token || again.Mode != e.Mode {
			t.Errorf("%q encodes to %s, and after decoding to %s, %v", text, written, twice, err)
		}
		var loose struct {
			Token string `json:"token"`
		}
		if err := json.Unmarshal(written, &loose); err != nil || loose.Token == "" {
			t.Errorf("%q encodes to %s, want a token that is a string: %v", text, written, err)
		}
	})
}
