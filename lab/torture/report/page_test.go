package report

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/verdict"
)

// testPage returns a page with two holds that overlap, a wait without the lock, and a fault.
func testPage(t *testing.T) string {
	t.Helper()
	v := verdict.Judge(&history.History{
		Run: history.Run{Target: "stile@etcd", Workload: "hot", Faults: "evict", TTL: 1000, Versions: map[string]string{"etcd": "1"}},
		Events: []history.Event{
			{At: 1, Worker: "w1", Acquire: &history.Acquire{
				Lock: "l", Grant: "w1.1", Call: 1, Return: 10, Outcome: history.OK, Token: 1<<53 + 1,
			}},
			{At: 2, Worker: "w3", Asked: &history.Asked{Lock: "l", Grant: "w3.1"}},
			{At: 20, Fault: &history.Fault{ID: 1, Name: "evict", On: "w1", What: "</script><script>alert(1)</script>"}},
			{At: 30, Worker: "w2", Acquire: &history.Acquire{Lock: "l", Grant: "w2.1", Call: 2, Return: 30, Outcome: history.OK, Token: 1<<53 + 2}},
			{At: 40, Worker: "w1", End: &history.End{Grant: "w1.1", Call: 40, Outcome: history.OK}},
		},
	})
	var page bytes.Buffer
	if err := Page(&page, v); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

func TestPage_selfContained(t *testing.T) {
	if found := regexp.MustCompile(`https?:|src=|href=|@import|url\(`).FindString(testPage(t)); found != "" {
		t.Errorf("got %q in the page, want no reference to another file", found)
	}
}

func TestPage_contents(t *testing.T) {
	page := testPage(t)
	for what, text := range map[string]string{
		"a hold":              `"grant":"w1.1","worker":"w1"`,
		"its token":           `"token":"9007199254740993"`, // not exact as a float64
		"a wait":              `{"lock":"l","grant":"w3.1","worker":"w3","call":2,"to":40}`,
		"a violation":         `"rule":"overlap","lock":"l","at":30`,
		"the table":           `<td>evict<td>1<td>1`,
		"the summary":         `1 conceded`,
		"the version of etcd": `etcd 1`,
		"the other figures":   `acquisitions per worker`,
	} {
		if !strings.Contains(page, text) {
			t.Errorf("%s is missing: want %s", what, text)
		}
	}
}

func TestPage_escapesScripts(t *testing.T) {
	if strings.Contains(testPage(t), "alert(1)</script>") {
		t.Error("the text of a fault ends the script")
	}
}
