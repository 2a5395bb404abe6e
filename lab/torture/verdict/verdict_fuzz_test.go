package verdict

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/stilelock/stile/lab/torture/history"
)

// Judge can judge every history that can be read, with the same result each time, and the verdict
// can be written as JSON.
func FuzzJudge(f *testing.F) {
	for _, s := range []*scenario{newScenario(nil), mixedScenario()} {
		var file bytes.Buffer
		w := history.NewWriter(&file, s.Run)
		for _, e := range s.Events {
			w.Write(e)
		}
		f.Add(file.Bytes())
	}
	for _, events := range []string{
		"", "{}\n", `{"at":-9223372036854775808,"acquire":{"outcome":"ok","call":9223372036854775807}}` + "\n",
		`{"at":1,"end":{"grant":"none"}}` + "\n" + `{"at":2,"extend":{"grant":"none","until":1}}` + "\n",
		`{"at":1,"heal":{"id":3}}` + "\n" + `{"at":2,"census":{"phase":"end"}}` + "\n",
		`{"at":1,"worker":"w1","exited":{}}` + "\n" + `{"at":2,"worker":"w1","asked":{}}` + "\n",
	} {
		f.Add([]byte(`{"target":"x","ttl_ns":9223372036854775807,"offers":{"tokens":true,"fair":true}}` + "\n" + events))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		h, err := history.Parse(bytes.NewReader(file))
		if err != nil {
			return
		}
		first := Judge(h)
		if _, err := json.Marshal(first); err != nil {
			t.Errorf("the verdict on %q cannot be encoded: %v", file, err)
		}
		if second := Judge(h); !reflect.DeepEqual(first, second) {
			t.Errorf("%q: got verdict %+v the first time, and %+v the second time", file, first, second)
		}
	})
}

// mixedScenario has events of every kind.
func mixedScenario() *scenario {
	s := newScenario(nil)
	s.fault(1, "holder-kill", "w1", "holder", 300, 310)
	s.acquires("w1", 100, 290, 295)
	s.add(301, "w1", history.Event{Exited: &history.Exited{How: "killed"}})
	s.hold("w2", 99, 296, 297, 320)
	s.writes("w2", 99, 298, "unfenced", 1, 2, false)
	s.writes("w1", 100, 299, "fenced", 0, 0, false)
	s.add(325, "", history.Event{Fault: &history.Fault{ID: 2, Name: history.Evict, Lock: "demo", Took: []uint64{100, 99}}})
	s.add(326, "", history.Event{Heal: &history.Heal{ID: 2}})
	s.add(330, "", history.Event{Entry: &history.Entry{Lock: "demo", Key: "k", Token: 99, Gone: true}})
	s.add(340, "", history.Event{Leftovers: &history.Leftovers{Lock: "demo", Keys: []string{"k"}}})
	s.add(350, "", history.Event{Final: &history.Final{Lock: "demo", Outcome: history.Unknown, Err: "no answer"}})
	return s
}
