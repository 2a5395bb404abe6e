package line

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestMode_text(t *testing.T) {
	tests := []struct {
		mode Mode
		text string
	}{
		{Exclusive, "exclusive"},
		{Mode{}, "exclusive"},
		{Shared, "shared"},
		{Slot(1), "slot/1"},
		{Slot(12), "slot/12"},
		{Slot(MaxSlots), "slot/1048576"},
	}
	for _, tt := range tests {
		if got := tt.mode.String(); got != tt.text {
			t.Errorf("String: got %q, want %q", got, tt.text)
		}
		text, err := tt.mode.MarshalText()
		if err != nil || string(text) != tt.text {
			t.Errorf("MarshalText: got %q, %v, want %q", text, err, tt.text)
		}
		back := Slot(7)
		if err := back.UnmarshalText(text); err != nil || back != tt.mode {
			t.Errorf("UnmarshalText(%q): got %v, %v, want %v", text, back, err, tt.mode)
		}
	}
}

func TestMode_emptyTextIsExclusive(t *testing.T) {
	m := Shared
	if err := m.UnmarshalText(nil); err != nil || m != Exclusive {
		t.Errorf("UnmarshalText of no text: got %v, %v, want exclusive", m, err)
	}
}

func TestMode_badText(t *testing.T) {
	tests := []struct{ text, want string }{
		{"slot/0", "between 1 and 1048576"},
		{"slot/-1", "between 1 and 1048576"},
		{"slot/1048577", "between 1 and 1048576"},
		{"slot/99999999999999999999", "between 1 and 1048576"},
		{"slot/", "between 1 and 1048576"},
		{"slot/x", "between 1 and 1048576"},
		{"slot/3 ", "between 1 and 1048576"},
		{"slot", "unknown mode"},
		{"Shared", "unknown mode"},
		{" shared", "unknown mode"},
		{"read", "unknown mode"},
	}
	for _, tt := range tests {
		m := Shared
		err := m.UnmarshalText([]byte(tt.text))
		if err == nil {
			t.Errorf("UnmarshalText(%q): got %v, want an error", tt.text, m)
			continue
		}
		if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("UnmarshalText(%q): got error %q, want the text and %q in it", tt.text, err, tt.want)
		}
		if m != Shared {
			t.Errorf("UnmarshalText(%q) failed and changed the mode to %v", tt.text, m)
		}
	}
}

func TestMode_json(t *testing.T) {
	type entry struct {
		Mode Mode `json:"mode"`
	}
	for _, m := range []Mode{Exclusive, Shared, Slot(3)} {
		text, err := json.Marshal(entry{m})
		if err != nil {
			t.Fatal(err)
		}
		if want := `{"mode":"` + m.String() + `"}`; string(text) != want {
			t.Errorf("JSON of %v: got %s, want %s", m, text, want)
		}
		var back entry
		if err := json.Unmarshal(text, &back); err != nil || back.Mode != m {
			t.Errorf("decoding %s: got %v, %v, want %v", text, back.Mode, err, m)
		}
	}
}

func TestSlot_panicsOutsideLimits(t *testing.T) {
	for _, n := range []int{-1, 0, MaxSlots + 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Slot(%d) did not panic", n)
				}
			}()
			Slot(n)
		}()
	}
}

// Text in a store may come from any program. A text that is accepted gives a valid mode, and that
// mode survives encoding and decoding.
func FuzzModeText(f *testing.F) {
	for _, text := range []string{"", "exclusive", "shared", "slot/1", "slot/1048576", "slot/0", "slot/+5", "slot/05"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var m Mode
		if m.UnmarshalText(text) != nil {
			return
		}
		if m != Exclusive && m != Shared && (m.Slots() < 1 || m.Slots() > MaxSlots) {
			t.Fatalf("%q decodes to the invalid mode %v", text, m)
		}
		var back Mode
		if err := back.UnmarshalText([]byte(m.String())); err != nil || back != m {
			t.Fatalf("%q decodes to %v, and its text to %v, %v", text, m, back, err)
		}
	})
}

func TestMode_Within(t *testing.T) {
	for _, c := range []struct {
		m     Mode
		limit int
		want  Mode
	}{
		{Slot(3), 0, Slot(3)},
		{Slot(3), -1, Slot(3)},
		{Slot(3), 2, Slot(2)},
		{Slot(3), 3, Slot(3)},
		{Slot(3), 9, Slot(3)},
		{Exclusive, 1, Exclusive},
		{Shared, 1, Shared},
	} {
		if got := c.m.Within(c.limit); got != c.want {
			t.Errorf("%v within %d: got %v, want %v", c.m, c.limit, got, c.want)
		}
	}
}

// A limit is a number of slots on which all entries agree, if it is the smallest.
func TestAdmitted_withinLimit(t *testing.T) {
	overRandomLines(t, func(r *rand.Rand, entries []Entry) error {
		limit := 1 + r.IntN(4)
		limited := slices.Clone(entries)
		for i := range limited {
			limited[i].Mode = limited[i].Mode.Within(limit)
		}
		if got, want := Admitted(entries, limit), Admitted(limited, 0); !slices.Equal(got, want) {
			return fmt.Errorf("within the limit %d: got %v, want %v", limit, got, want)
		}
		return nil
	})
}
