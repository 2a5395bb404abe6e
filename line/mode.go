package line

import (
	"fmt"
	"strconv"
	"strings"
)

// Mode is how an entry wants to hold the lock: alone, or together with which others. The zero Mode
// is [Exclusive], so that an entry of unknown mode excludes all others.
type Mode struct {
	kind  kind
	slots int
}

type kind uint8

const (
	exclusive kind = iota
	shared
	slot
)

// Exclusive is the mode of an entry that is admitted alone.
var Exclusive = Mode{kind: exclusive}

// Shared is the mode of an entry that is admitted together with other shared entries.
var Shared = Mode{kind: shared}

// MaxSlots is the maximum number of slots of a line.
const MaxSlots = 1 << 20

// Slot returns the mode of an entry that takes one of n slots. The entries of a line should agree
// on n; see [SameKind]. If they do not, what counts for an entry is the smallest n among itself and the
// entries ahead of it. Slot panics unless 1 ≤ n ≤ [MaxSlots].
func Slot(n int) Mode {
	if n < 1 || n > MaxSlots {
		panic(fmt.Sprintf("line: a line of %d slots: there must be between 1 and %d", n, MaxSlots))
	}
	return Mode{kind: slot, slots: n}
}

// Slots returns the n of a slot mode, and zero for the other modes.
func (m Mode) Slots() int { return m.slots }

// Within returns the mode that decides when an entry of mode m is admitted under an operator's limit:
// with no more than limit slots. Zero or less means that there is no limit. Modes without slots have no
// limit.
//
// The limit decides about admission only. Whether entries are of the same kind depends on the number of
// slots that they ask for.
func (m Mode) Within(limit int) Mode {
	if m.kind == slot && limit > 0 && limit < m.slots {
		return Slot(limit)
	}
	return m
}

func (m Mode) compatibleWith(other Mode) bool {
	return m.kind != exclusive && m.kind == other.kind
}

// String returns "exclusive", "shared" or "slot/n".
func (m Mode) String() string {
	switch m.kind {
	case shared:
		return "shared"
	case slot:
		return "slot/" + strconv.Itoa(m.slots)
	default:
		return "exclusive"
	}
}

// MarshalText returns what [Mode.String] returns. It never fails.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText parses the output of [Mode.String]. The empty text means [Exclusive].
func (m *Mode) UnmarshalText(text []byte) error {
	switch s := string(text); {
	case s == "" || s == "exclusive":
		*m = Exclusive
	case s == "shared":
		*m = Shared
	case strings.HasPrefix(s, "slot/"):
		digits := strings.TrimPrefix(s, "slot/")
		n, err := strconv.Atoi(digits)
		if err != nil || n < 1 || n > MaxSlots || strconv.Itoa(n) != digits {
			return fmt.Errorf("line: mode %q: the number of slots must be between 1 and %d", s, MaxSlots)
		}
		*m = Slot(n)
	default:
		return fmt.Errorf("line: unknown mode %q: the modes are exclusive, shared and slot/n", s)
	}
	return nil
}
