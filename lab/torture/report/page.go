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
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// Page writes a verdict as one HTML file that needs nothing else: the figures, the violations, and a timeline of who waited
// and held when, and where the faults struck.
func Page(out io.Writer, v *verdict.Verdict) error {
	timeline := struct {
		Begin, End int64
		Holds      []hold
		Waits      []wait
		Strikes    []verdict.Strike
		Stale      []verdict.StaleWrite
		Violations []verdict.Violation
	}{v.Begin, v.End, holds(v), inVain(v), v.Strikes, v.Writes, v.Violations}
	data, err := json.Marshal(timeline) // which escapes what could end a script
	if err != nil {
		return err
	}
	table := rows(v, false)
	for i, r := range table {
		table[i] = r[2 : len(r)-1] // the page's title has the others
	}
	return page.Execute(out, map[string]any{
		"V": v, "Summary": Summary(v), "Headings": headings[2 : len(headings)-1], "Rows": table, "Figures": figures(v),
		"Timeline": template.JS(data), //nolint:gosec // escaped above
	})
}

// A hold has its token as a string: JavaScript's numbers are not exact enough.
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

// A wait is one that ended without the lock. The others are in the holds.
type wait struct {
	Lock   string `json:"lock"`
	Grant  string `json:"grant"`
	Worker string `json:"worker"`
	Call   int64  `json:"call"`
	To     int64  `json:"to"`
}

func inVain(v *verdict.Verdict) []wait {
	var all []wait
	for _, w := range v.Waits {
		if !w.Granted {
			all = append(all, wait{w.Lock, w.Grant, w.Worker, w.Call, cmp.Or(w.Return, w.Exit, v.End)})
		}
	}
	return all
}
