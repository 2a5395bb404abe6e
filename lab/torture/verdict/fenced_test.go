package verdict

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/stilelock/stile/lab/torture/history"
)

// A model for Porcupine of a lock whose tokens increase, for up to twenty grants. Its operations are
// grants, downgrades and ends. An end or a downgrade that may happen at any time, or never, has no
// effect if its grant is not there.
type (
	lockInput struct {
		op    string // "grant", "downgrade" or "end"
		mode  history.Mode
		token uint64
		maybe bool
	}
	lockState struct {
		held      uint32 // the tokens that are held, as bits
		exclusive uint32 // those of them that exclude others
		last      uint64 // the largest token so far
		writer    uint64 // the largest token of an exclusive grant so far
	}
)

var lockModel = porcupine.Model{
	Init: func() any { return lockState{} },
	Step: func(state, input, _ any) (bool, any) {
		s, in := state.(lockState), input.(lockInput)
		bit := uint32(1) << in.token
		n := in.mode.Slots()
		switch {
		case in.op == "grant":
			legal := s.held == 0 && in.token > s.last
			switch {
			case in.mode == history.Shared:
				legal = s.exclusive == 0 && in.token > s.writer
			case n > 0:
				legal = bits.OnesCount32(s.held) < n && in.token > s.last
			default:
				s.exclusive |= bit
				s.writer = max(s.writer, in.token)
			}
			s.held |= bit
			s.last = max(s.last, in.token)
			return legal, s
		case s.held&bit == 0:
			return in.maybe, s
		case in.op == "end":
			s.held &^= bit
		}
		s.exclusive &^= bit
		return true, s
	},
	Equal: func(a, b any) bool { return a == b },
}

// operations returns the grants as operations for Porcupine. A grant ends with a release that got a
// reply, or by an end that is possible from its call on.
func operations(grants []*grant) []porcupine.Operation {
	var ops []porcupine.Operation
	add := func(in lockInput, call, back int64) {
		ops = append(ops, porcupine.Operation{ClientId: len(ops), Input: in, Call: call, Return: back})
	}
	for _, g := range grants {
		add(lockInput{op: "grant", mode: g.mode, token: g.token}, g.call, g.returned)
		if g.downMin != 0 {
			add(lockInput{op: "downgrade", token: g.token, maybe: g.downMax == never}, g.downMin, g.downMax)
		}
		add(lockInput{op: "end", token: g.token, maybe: g.endMax == never}, g.endMin, g.endMax)
	}
	return ops
}

// withModes makes the grants those of a read-write lock, or of a semaphore.
func withModes(r *rand.Rand, grants []*grant) {
	slots := r.IntN(2) == 0
	for _, g := range grants {
		switch {
		case slots:
			g.mode = history.Slot(2)
		case r.IntN(2) == 0:
			g.mode = history.Shared
		case g.endMax != never && g.endMin > g.returned+2 && r.IntN(2) == 0:
			// Between the grant and the end: one that succeeded.
			g.downMin, g.downMax = g.returned+1, g.endMin-1
		}
	}
}

// randomGrants returns a history of two to five grants, four fifths of them with a release that got
// a reply.
func randomGrants(r *rand.Rand) []*grant {
	n := 2 + r.IntN(4)
	moments := r.Perm(4 * n * 2)
	take := func() int64 { m := moments[0]; moments = moments[1:]; return int64(m) + 1 }
	tokens := make([]uint64, n)
	for i := range tokens {
		tokens[i] = uint64(i + 1)
	}
	if r.IntN(4) == 0 {
		r.Shuffle(n, func(i, j int) { tokens[i], tokens[j] = tokens[j], tokens[i] })
	}
	grants := make([]*grant, n)
	for i := range grants {
		times := []int64{take(), take(), take(), take()}
		// Mostly close to each other, so that a good part of the histories is legal.
		if r.IntN(3) > 0 {
			base := int64(i * 8)
			for k := range times {
				times[k] = base*int64(n)/4 + times[k]/4*4 + int64(k) + int64(i)*1000*int64(r.IntN(2))
			}
		}
		for a := range times {
			for b := a + 1; b < len(times); b++ {
				if times[b] < times[a] {
					times[a], times[b] = times[b], times[a]
				}
			}
		}
		g := &grant{token: tokens[i], call: times[0], returned: times[1], endMin: times[2], endMax: times[3]}
		if r.IntN(5) == 0 {
			g.endMin, g.endMax = g.call, never
		}
		grants[i] = g
	}
	return grants
}

// distinct reports whether no two times are equal: Porcupine decides ties in another way.
func distinct(grants []*grant) bool {
	seen := map[int64]bool{}
	for _, g := range grants {
		for i, m := range []int64{g.call, g.returned, g.endMin, g.endMax, g.downMin, g.downMax} {
			if m == never || (i == 2 && g.endMax == never) || i > 3 && g.downMin == 0 {
				continue
			}
			if seen[m] {
				return false
			}
			seen[m] = true
		}
	}
	return true
}

func TestFindConflicts_agreesWithPorcupine(t *testing.T) {
	t.Run("exclusive", func(t *testing.T) { testAgreement(t, func(*rand.Rand, []*grant) {}) })
	t.Run("other modes", func(t *testing.T) { testAgreement(t, withModes) })
}

func testAgreement(t *testing.T, prepare func(*rand.Rand, []*grant)) {
	r := rand.New(rand.NewPCG(1, 2))
	legal, illegal := 0, 0
	for legal+illegal < 20_000 {
		grants := randomGrants(r)
		prepare(r, grants)
		if !distinct(grants) {
			continue
		}
		want, got := porcupine.CheckOperations(lockModel, operations(grants)), findConflicts(grants)
		if want != (len(got) == 0) {
			for _, g := range grants {
				t.Logf("%+v", *g)
			}
			t.Fatalf("Porcupine says legal: %v; findConflicts returned %+v", want, got)
		}
		if want {
			legal++
		} else {
			illegal++
		}
	}
	t.Logf("%d legal, %d illegal", legal, illegal)
	if legal < 2000 || illegal < 2000 {
		t.Errorf("got %d legal and %d illegal histories, want at least 2000 of each", legal, illegal)
	}
}

func TestFindConflicts(t *testing.T) {
	for _, c := range []struct {
		name   string
		grants []*grant
		legal  bool
	}{
		{"nothing", nil, true},
		{"one after the other", []*grant{{token: 1, call: 1, returned: 2, endMin: 3, endMax: 4}, {token: 2, call: 2, returned: 5, endMin: 6, endMax: 7}}, true},
		{"granted before the release", []*grant{{token: 1, call: 1, returned: 2, endMin: 6, endMax: 7}, {token: 2, call: 3, returned: 4, endMin: 8, endMax: 9}}, false},
		{"granted after a possible expiry", []*grant{{token: 1, call: 1, returned: 2, endMin: 1, endMax: never}, {token: 2, call: 3, returned: 4, endMin: 8, endMax: 9}}, true},
		{"a token twice", []*grant{{token: 1, call: 1, returned: 2, endMin: 3, endMax: 4}, {token: 1, call: 5, returned: 6, endMin: 7, endMax: 8}}, false},
		{"a smaller token later", []*grant{{token: 2, call: 1, returned: 2, endMin: 3, endMax: 4}, {token: 1, call: 5, returned: 6, endMin: 7, endMax: 8}}, false},
	} {
		if got := findConflicts(c.grants); (len(got) == 0) != c.legal {
			t.Errorf("%s: got conflicts %+v, want legal: %v", c.name, got, c.legal)
		}
	}
}

func TestFindConflicts_several(t *testing.T) {
	conflicts := findConflicts([]*grant{
		{token: 1, call: 1, returned: 2, endMin: 30, endMax: 40},
		{token: 2, call: 3, returned: 4, endMin: 5, endMax: 6}, // during the first
		{token: 3, call: 7, returned: 8, endMin: 9, endMax: 10},
		{token: 3, call: 11, returned: 12, endMin: 13, endMax: 14}, // a token twice
		{token: 4, call: 15, returned: 16, endMin: 17, endMax: 18},
		{token: 5, call: 1, returned: 2, endMin: 3, endMax: 4}, // the tokens went back
		{token: 6, call: 19, returned: 20, endMin: 21, endMax: 22},
	})
	var later []uint64
	for _, c := range conflicts {
		later = append(later, c.later.token)
	}
	if want := []uint64{2, 3, 5}; !slices.Equal(later, want) {
		t.Errorf("got conflicts at the tokens %v, want %v", later, want)
	}
}
