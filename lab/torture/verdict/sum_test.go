package verdict

import (
	"testing"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
)

func TestSum(t *testing.T) {
	of := func(seed uint64, faults ...FaultFigures) *Verdict {
		return &Verdict{
			Run: history.Run{Target: "stile@etcd", Seed: seed}, Violations: []Violation{{Rule: RuleLeak, At: int64(seed)}}, Faults: faults,
			Figures: Figures{Acquisitions: 10, HandOvers: 5, LongestGap: time.Duration(seed), Damage: Damage{Overlaps: 1, Refused: 2}},
		}
	}
	sum := Sum(
		of(3, FaultFigures{Name: "reset", Strikes: 1, OnHolder: 1, LongestGap: 4, Damage: Damage{Stale: 1}}),
		of(7, FaultFigures{Name: "evict", Strikes: 2}, FaultFigures{Name: "reset", Strikes: 5, OnLeader: 2, LongestGap: 2, Damage: Damage{Stale: 1}}),
	)
	if f := sum.Figures; f.Acquisitions != 20 || f.HandOvers != 10 || f.LongestGap != 7 || f.Overlaps != 2 || f.Refused != 4 {
		t.Errorf("got the sum of figures %+v", f)
	}
	if len(sum.Faults) != 2 || sum.Faults[0].Name != "evict" || sum.Faults[0].Strikes != 2 {
		t.Fatalf("got faults %+v, want evict with 2 strikes, and reset", sum.Faults)
	}
	if r := sum.Faults[1]; r.Strikes != 6 || r.OnHolder != 1 || r.OnLeader != 2 || r.LongestGap != 4 || r.Stale != 2 {
		t.Errorf("got the sum of reset %+v", r)
	}
	if n := sum.Broken()[RuleLeak]; n != 2 || sum.Run.Target != "stile@etcd" {
		t.Errorf("got %d leaks on %s, want 2 on stile@etcd", n, sum.Run.Target)
	}
}
