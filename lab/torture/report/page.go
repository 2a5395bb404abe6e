package report

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"html/template"
	"io"

	"github.com/stilelock/stile/lab/torture/verdict"
)

//go:embed page.html
var pageTemplate string

var page = template.Must(template.New("page").Parse(pageTemplate))

// Page writes a verdict as one HTML file that needs no other files: the figures, the violations,
// and a timeline of waits, holds and faults.
func Page(out io.Writer, v *verdict.Verdict) error {
	timeline := struct {
		Begin, End int64
		Holds      []hold
		Waits      []wait
		Strikes    []verdict.Strike
		Stale      []verdict.StaleWrite
		Violations []verdict.Violation
	}{v.Begin, v.End, holds(v), waitsWithoutLock(v), v.Strikes, v.Writes, v.Violations}
	data, err := json.Marshal(timeline) // escapes characters that could end the script
	if err != nil {
		return err
	}
	table := rows(v, false)
	for i, r := range table {
		table[i] = r[2 : len(r)-1] // the page's title has the other columns
	}
	return page.Execute(out, map[string]any{
		"V": v, "Summary": Summary(v), "Headings": headings[2 : len(headings)-1], "Rows": table, "Figures": figures(v),
		"Timeline": template.JS(data), //nolint:gosec // escaped above
	})
}

// A hold has its token as a string, because JavaScript's numbers are not exact enough.
type hold struct {
	*verdict.Hold

	Token uint64 `json:"token,omitempty,string"`
}

func holds(v *verdict.Verdict) []hold {
	var all []hold
	for _, h := range v.Holds {
		all = append(all, hold{h, h.Token})
	}
	return all
}

// A wait is a call that waited and did not acquire the lock. The other waits are shown with the
// holds.
type wait struct {
	Lock   string `json:"lock"`
	Grant  string `json:"grant"`
	Worker string `json:"worker"`
	Call   int64  `json:"call"`
	To     int64  `json:"to"`
}

func waitsWithoutLock(v *verdict.Verdict) []wait {
	var all []wait
	for _, w := range v.Waits {
		if !w.Granted {
			all = append(all, wait{w.Lock, w.Grant, w.Worker, w.Call, cmp.Or(w.Return, w.Exit, v.End)})
		}
	}
	return all
}
