package cli

import (
	"strings"
	"testing"

	"github.com/stilelock/stile"
)

func TestHeld_enclosingHolds(t *testing.T) {
	t.Setenv(heldVar, "")
	a := held{Name: "a", Token: 512, Owner: `ann@web-3 pid 1 ("quoted" <&>)`}
	all, mark := heldEnv([]held{a})
	if !strings.HasPrefix(all, mark) || strings.TrimPrefix(all, mark) != "]" {
		t.Errorf("%s does not begin with %s", all, mark)
	}
	t.Setenv(heldVar, all)
	if around := enclosingLocks(); len(around) != 1 || around[0] != a {
		t.Errorf("%s is read as %v", all, around)
	}
	b := held{Name: "b", Token: 1 << 62, Owner: "bob"}
	both, inner := heldEnv([]held{b})
	if !strings.HasPrefix(both, mark) || !strings.HasPrefix(both, inner) {
		t.Errorf("%s does not begin with %s and %s: what runs under both is not known as a part of each", both, mark, inner)
	}
	t.Setenv(heldVar, both)
	if around := enclosingLocks(); len(around) != 2 || around[0] != a || around[1] != b {
		t.Errorf("%s is read as %v", both, around)
	}
	for _, nonsense := range []string{"[", "nonsense", "{}", "[]", `["a"]`} {
		t.Setenv(heldVar, nonsense)
		if all, _ := heldEnv([]held{a}); all != mark+"]" {
			t.Errorf("under %q it is %s", nonsense, all)
		}
	}
}

// A store that has lost data may give a token twice.
func TestHeld_otherHolder(t *testing.T) {
	t.Parallel()
	ann := stile.Owner{Host: "web-3", PID: 812, User: "ann", Command: "deploy"}
	line := stile.Line{Name: "a", Holders: []stile.Entry{{Token: 512, Owner: ann}}}
	if !(held{Name: "a", Token: 512, Owner: ann.String()}).holds(line) {
		t.Error("it is not known again")
	}
	for _, other := range []held{
		{Name: "a", Token: 512, Owner: "bob@web-3 pid 812 (deploy)"}, {Name: "a", Token: 768, Owner: ann.String()}, {Name: "b", Token: 512, Owner: ann.String()},
	} {
		if other.holds(line) {
			t.Errorf("%v is taken for it", other)
		}
	}
	line.Waiters, line.Holders = line.Holders, nil
	if (held{Name: "a", Token: 512, Owner: ann.String()}).holds(line) {
		t.Error("a waiter is taken for a holder")
	}
	line.Holders = []stile.Entry{{Token: 0, Owner: ann}}
	if (held{Name: "a", Token: 0, Owner: ann.String()}).holds(line) {
		t.Error("a hold without a token is taken for one of ours")
	}
}
