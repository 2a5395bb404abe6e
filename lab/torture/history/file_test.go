package history

import (
	"strings"
	"testing"
)

const firstLine = `{"target":"stile@etcd"}` + "\n"

func TestParse_linesWithoutExactlyOneEvent(t *testing.T) {
	for line, why := range map[string]string{
		`{}`:                               "got 0 events",
		`null`:                             "got 0 events",
		`{"at":1,"acquires":{"lock":"l"}}`: "got 0 events",
		`{"at":1,"exited":{},"heal":{}}`:   "got 2 events",
		`{"at":1,"exited":{"how":"kill`:    "in string literal",
	} {
		_, err := Parse(strings.NewReader(firstLine + `{"at":1,"exited":{}}` + "\n" + line + "\n"))
		if err == nil || !strings.Contains(err.Error(), "line 3 ") || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: got error %v, want one with line 3 and %q", line, err, why)
		}
	}
}

func TestParse_incompleteLastLine(t *testing.T) {
	h, err := Parse(strings.NewReader(firstLine + `{"at":1,"exited":{}}` + "\n" + `{"at":2,"exi`))
	if err != nil || len(h.Events) != 1 {
		t.Errorf("got %d events and error %v, want 1 and none", len(h.Events), err)
	}
}
