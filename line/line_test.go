package line

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

func modes(m ...Mode) []Mode { return m }

// Examples of the three rules.
func TestSameKind(t *testing.T) {
	kinds := [][]Mode{{Exclusive, Shared}, {Slot(1)}, {Slot(2)}, {Slot(MaxSlots)}}
	for i, these := range kinds {
		for j, others := range kinds {
			for _, a := range these {
				for _, b := range others {
					if got := SameKind(a, b); got != (i == j) {
						t.Errorf("SameKind(%v, %v): got %v, want %v", a, b, got, i == j)
					}
				}
			}
		}
	}
}

func TestRules(t *testing.T) {
	var (
		ex = Exclusive
		sh = Shared
		s1 = Slot(1)
		s2 = Slot(2)
		s3 = Slot(3)
	)
	tests := []struct {
		name     string
		mode     Mode
		ahead    []Mode
		blocking int // 0 means admitted
	}{
		{"exclusive, first", ex, nil, 0},
		{"exclusive behind exclusive", ex, modes(ex), 1},
		{"exclusive behind shared", ex, modes(sh), 1},
		{"exclusive behind a slot", ex, modes(s3), 1},
		{"exclusive waits for all entries ahead", ex, modes(sh, sh, ex, s2), 4},

		{"shared, first", sh, nil, 0},
		{"shared beside shared", sh, modes(sh, sh, sh), 0},
		{"shared behind exclusive", sh, modes(ex), 1},
		{"shared does not overtake a waiting exclusive entry", sh, modes(sh, ex), 1},
		{"shared waits only for entries that are not shared", sh, modes(sh, ex, sh, ex, sh), 2},
		{"shared behind a slot", sh, modes(s3), 1},

		{"slot, first", s3, nil, 0},
		{"slot beside fewer than n", s3, modes(s3, s3), 0},
		{"slot behind n", s3, modes(s3, s3, s3), 1},
		{"slot behind more than n", s3, modes(s3, s3, s3, s3), 2},
		{"slot behind exclusive", s3, modes(ex), 1},
		{"slot behind shared", s3, modes(sh, sh), 2},
		{"slot waits for others and for a free slot", s3, modes(s3, ex, s3, s3), 2},
		{"slot of one is exclusive", s1, modes(s1), 1},

		{"if n differs the smallest counts, its own", s2, modes(s3, s3), 1},
		{"if n differs the smallest counts, that of an entry ahead", s3, modes(s2, s2), 1},
		{"slot of three behind a slot of one", s3, modes(s1), 1},

		{"the zero mode is exclusive", Mode{}, modes(sh), 1},
		{"no entry is admitted beside the zero mode", sh, modes(Mode{}), 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Blocking(tt.mode, tt.ahead); got != tt.blocking {
				t.Errorf("Blocking: got %d, want %d", got, tt.blocking)
			}
			if got, want := Admits(tt.mode, tt.ahead), tt.blocking == 0; got != want {
				t.Errorf("Admits: got %v, want %v", got, want)
			}
		})
	}
}

func TestConflict(t *testing.T) {
	tests := []struct {
		a, b Mode
		want bool
	}{
		{Exclusive, Exclusive, true},
		{Exclusive, Shared, true},
		{Exclusive, Slot(3), true},
		{Shared, Shared, false},
		{Shared, Slot(3), true},
		{Slot(3), Slot(3), false}, // three may be valid together, and so may two
		{Slot(1), Slot(1), true},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.a, "-", tt.b), func(t *testing.T) {
			if got := Conflict(tt.a, tt.b); got != tt.want {
				t.Errorf("Conflict(%v, %v) = %v, want %v", tt.a, tt.b, got, tt.want)
			}
			if got := Conflict(tt.b, tt.a); got != tt.want {
				t.Errorf("Conflict(%v, %v) = %v, want %v", tt.b, tt.a, got, tt.want)
			}
		})
	}
}

func TestBefore_byOrderThenID(t *testing.T) {
	sorted := []Entry{{ID: "b", Order: 1}, {ID: "a", Order: 2}, {ID: "c", Order: 2}, {ID: "a", Order: 3}}
	for i, e := range sorted {
		for j, other := range sorted {
			if got := e.Before(other); got != (i < j) {
				t.Errorf("%v before %v: got %v, want %v", e, other, got, i < j)
			}
		}
	}
}

// randomLine returns a line of up to eight entries. All its slots have the same n, as the package
// requires.
func randomLine(r *rand.Rand) []Entry {
	n := 1 + r.IntN(4)
	entries := make([]Entry, r.IntN(9))
	order := uint64(0)
	for i := range entries {
		if i == 0 || r.IntN(10) > 0 { // otherwise a tie, broken by the ID
			order += 1 + r.Uint64N(3)
		}
		entries[i] = Entry{ID: string(rune('a' + i)), Order: order, Mode: randomMode(r, n)}
	}
	return entries
}

func randomMode(r *rand.Rand, n int) Mode {
	switch r.IntN(3) {
	case 0:
		return Exclusive
	case 1:
		return Shared
	default:
		return Slot(n)
	}
}

// overRandomLines runs check on many random lines, each with its own seed, and reports the seed on
// which it fails.
func overRandomLines(t *testing.T, check func(r *rand.Rand, entries []Entry) error) {
	t.Helper()
	const cases = 10_000
	base := rand.Uint64()
	for i := range uint64(cases) {
		r := rand.New(rand.NewPCG(base, i))
		entries := randomLine(r)
		if err := check(r, entries); err != nil {
			t.Fatalf("seed %d, %d: line %v: %v", base, i, entries, err)
		}
	}
}

func TestAdmitted_entriesNeverConflict(t *testing.T) {
	together := 0
	overRandomLines(t, func(_ *rand.Rand, entries []Entry) error {
		var slots, n int
		for i, isAdmitted := range Admitted(entries, 0) {
			if !isAdmitted {
				continue
			}
			if m := entries[i].Mode; m.Slots() > 0 {
				slots, n = slots+1, m.Slots()
			}
			for j, other := range Admitted(entries[:i], 0) {
				if !other {
					continue
				}
				together++
				if Conflict(entries[i].Mode, entries[j].Mode) {
					return fmt.Errorf("%v and %v are both admitted", entries[j], entries[i])
				}
			}
		}
		if slots > n {
			return fmt.Errorf("%d slots of %d are taken", slots, n)
		}
		return nil
	})
	if together == 0 {
		t.Error("no two entries were admitted together in any line")
	}
}

// Blocked decides about all entries what Blocking decides about each, also if the slots disagree on their number.
func TestBlocked_likeBlocking(t *testing.T) {
	blocked := 0
	overRandomLines(t, func(r *rand.Rand, entries []Entry) error {
		limit, ahead := r.IntN(4), []Mode(nil)
		for i := range entries {
			if entries[i].Mode.Slots() > 0 && r.IntN(4) == 0 {
				entries[i].Mode = Slot(1 + r.IntN(4))
			}
		}
		all := Blocked(entries, limit)
		for i, e := range entries {
			if want := Blocking(e.Mode.Within(limit), ahead); all[i] != want {
				return fmt.Errorf("limit %d: entry %d is blocked by %d, want %d", limit, i, all[i], want)
			}
			blocked += all[i]
			ahead = append(ahead, e.Mode)
		}
		return nil
	})
	if blocked == 0 {
		t.Error("no entry was blocked")
	}
}

func TestAdmitted_firstAlways(t *testing.T) {
	overRandomLines(t, func(_ *rand.Rand, entries []Entry) error {
		if len(entries) > 0 && !Admitted(entries, 0)[0] {
			return fmt.Errorf("the first entry is not admitted")
		}
		return nil
	})
}

func TestAdmitted_staysAdmitted(t *testing.T) {
	overRandomLines(t, func(r *rand.Rand, entries []Entry) error {
		before := Admitted(entries, 0)

		joined := append(slices.Clone(entries), Entry{ID: "z", Order: 1 << 40, Mode: randomMode(r, 1+r.IntN(4))})
		for i, isAdmitted := range Admitted(joined, 0)[:len(entries)] {
			if isAdmitted != before[i] {
				return fmt.Errorf("after %v joined, the admission of %v changed", joined[len(entries)], entries[i])
			}
		}

		for gone := range entries {
			left := slices.Delete(slices.Clone(entries), gone, gone+1)
			after := Admitted(left, 0)
			for i, e := range left {
				was := slices.Index(entries, e)
				if before[was] && !after[i] {
					return fmt.Errorf("after %v left, %v is no longer admitted", entries[gone], e)
				}
			}
		}
		return nil
	})
}

// In whatever order admitted entries leave, every entry is admitted eventually, and none before an
// entry ahead of it.
func TestAdmitted_inOrder(t *testing.T) {
	overRandomLines(t, func(r *rand.Rand, entries []Entry) error {
		entries = slices.Clone(entries)
		for len(entries) > 0 {
			var admitted []int
			for i, isAdmitted := range Admitted(entries, 0) {
				if isAdmitted {
					admitted = append(admitted, i)
				}
			}
			for i, at := range admitted {
				if at != i {
					return fmt.Errorf("%v is admitted before %v, which is ahead of it", entries[at], entries[i])
				}
			}
			if len(admitted) == 0 {
				return fmt.Errorf("none of %v is admitted", entries)
			}
			leaving := admitted[r.IntN(len(admitted))]
			entries = slices.Delete(entries, leaving, leaving+1)
		}
		return nil
	})
}

func TestAdmitted_fillsAllSlots(t *testing.T) {
	for n := 1; n <= 6; n++ {
		for length := range 2*n + 2 {
			entries := make([]Entry, length)
			for i := range entries {
				entries[i] = Entry{Order: uint64(i), Mode: Slot(n)}
			}
			admitted := 0
			for _, isAdmitted := range Admitted(entries, 0) {
				if isAdmitted {
					admitted++
				}
			}
			if want := min(n, length); admitted != want {
				t.Errorf("%d entries for %d slots: got %d admitted, want %d", length, n, admitted, want)
			}
		}
	}
}

// Blocking is exact: it is the smallest number of entries after whose removal the mode is admitted.
func TestBlocking_isMinimal(t *testing.T) {
	overRandomLines(t, func(r *rand.Rand, entries []Entry) error {
		me := randomMode(r, 1+r.IntN(4))
		ahead := make([]Mode, 0, 6)
		for _, e := range entries[:min(len(entries), 6)] {
			ahead = append(ahead, e.Mode)
		}
		minimum := len(ahead)
		left := make([]Mode, 0, 6)
		for gone := range uint(1) << len(ahead) {
			left = left[:0]
			for i, m := range ahead {
				if gone>>i&1 == 0 {
					left = append(left, m)
				}
			}
			if Admits(me, left) {
				minimum = min(minimum, bits.OnesCount(gone))
			}
		}
		if got := Blocking(me, ahead); got != minimum {
			return fmt.Errorf("Blocking of %v behind them: got %d, want %d", me, got, minimum)
		}
		return nil
	})
}

// A downgrade of the first entry admits the shared entries directly behind it and no other entry, and
// all that were admitted stay so.
// Bug: CURATOR-276
func TestAdmitted_downgrade(t *testing.T) {
	admissions, kept := 0, 0
	overRandomLines(t, func(_ *rand.Rand, entries []Entry) error {
		if len(entries) == 0 || entries[0].Mode != Exclusive {
			return nil
		}
		after := slices.Clone(entries)
		after[0].Mode = Shared
		directly := true
		for i, isAdmitted := range Admitted(after, 0) {
			directly = directly && after[i].Mode == Shared
			switch {
			case isAdmitted != directly:
				return fmt.Errorf("%v behind a downgraded entry: admitted %v", after[i], isAdmitted)
			case isAdmitted && i > 0:
				admissions++
			case !isAdmitted:
				kept++
			}
		}
		return nil
	})
	if admissions == 0 || kept == 0 {
		t.Errorf("got %d admissions and %d that wait, want at least one each", admissions, kept)
	}
}
