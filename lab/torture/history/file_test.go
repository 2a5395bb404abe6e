package history

import (
	"strings"
	"testing"
)

const firstLine = `{"target":"stile@etcd"}` + "\n"

func TestALineThatTellsOfNothingOrOfTwoThingsIsNone(t *testing.T) {
	for line, why := range map[string]string{
		`{}`:                               "of 0 things",
		`null`:                             "of 0 things",
		`{"at":1,"acquires":{"lock":"l"}}`: "of 0 things",
		`{"at":1,"exited":{},"heal":{}}`:   "of 2 things",
		`{"at":1,"exited":{"how":"kill`:    "in string literal",
	} {
		_, err := Parse(strings.NewReader(firstLine + `{"at":1,"exited":{}}` + "\n" + line + "\n"))
		if err == nil || !strings.Contains(err.Error(), "line 3 ") || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: the error is %v; it should name line 3 and say %q", line, err, why)
		}
	}
}

func TestALastLineThatIsCutShortIsIgnored(t *testing.T) {
	h, err := Parse(strings.NewReader(firstLine + `{"at":1,"exited":{}}` + "\n" + `{"at":2,"exi`))
	if err != nil || len(h.Events) != 1 {
		t.Errorf("%d events, and the error %v; want one, and none", len(h.Events), err)
	}
}
