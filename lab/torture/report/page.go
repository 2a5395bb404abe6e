package report

import (
	_ "embed"
	"encoding/json"
	"html/template"
	"io"

	"github.com/stilelock/stile/lab/torture/verdict"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// Page writes a verdict as one HTML file that needs nothing else: the figures, the violations, and a timeline of who held
// when and where the faults struck.
func Page(out io.Writer, v *verdict.Verdict) error {
	timeline := struct {
		Begin, End int64
		Holds      []*verdict.Hold
		Strikes    []verdict.Strike
		Stale      []verdict.StaleUse
		Violations []verdict.Violation
	}{v.Begin, v.End, v.Holds, v.Strikes, v.Writes, v.Violations}
	data, err := json.Marshal(timeline) // which escapes what could end a script
	if err != nil {
		return err
	}
	return page.Execute(out, map[string]any{
		"V": v, "Summary": Summary(v), "Timeline": template.JS(data), //nolint:gosec // escaped above
	})
}
