package history

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

// Parse does not panic on any input. The error of an invalid history says where it is invalid. A
// valid history is the same after it is written and read again.
func FuzzParse(f *testing.F) {
	run := `{"target":"stile@etcd1","workload":"hot","faults":"none","seed":7,"ttl_ns":1,"for_ns":2,"began":"","command":"","versions":{"etcd":"3"},"offers":{"tokens":true}}`
	for _, seed := range []string{
		run + "\n",
		run + "\n" + `{"at":1,"worker":"w1","asked":{"lock":"demo","grant":"g"}}` + "\n" + `{"at":2,"worker":"w1","acquire":{"lock":"demo","grant":"g","outcome":"ok","token":7}}` + "\n",
		run + "\n" + `{"at":2,"exited":{"how":"killed"}}` + "\n" + `{"at":1,"fault":{"id":1,"name":"x"}}` + "\n" + `{"at":3,"heal":{"id`,
		run + "\n\n", run + "\n{}\n", run + "\n" + `{"at":"x"}` + "\n", run + "\n" + `{"at":9223372036854775808}` + "\n",
		run, "", "\n", "{}\n", "null\n", `{"target":""}` + "\n", `{"target":1}` + "\n", run + "\nnull\n", "\xff\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		h, err := Parse(bytes.NewReader(file))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "line ") && !strings.HasPrefix(err.Error(), "not a history") {
				t.Errorf("Parse(%q): got error %q, want one that says where", file, err)
			}
			return
		}
		var written bytes.Buffer
		w := NewWriter(&written, h.Run)
		for _, e := range h.Events {
			w.Write(e)
		}
		if err := w.Err(); err != nil {
			t.Fatalf("%q can be read, but not written: %v", file, err)
		}
		text := written.String()
		again, err := Parse(&written)
		if err != nil {
			t.Fatalf("%q is written as %q, which cannot be read: %v", file, text, err)
		}
		if len(h.Run.Versions) == 0 {
			h.Run.Versions, again.Run.Versions = nil, nil
		}
		if !reflect.DeepEqual(h, again) {
			t.Errorf("%q: got %+v after it was written and read again, want %+v", file, again, h)
		}
	})
}
