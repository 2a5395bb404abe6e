package main

import (
	"strings"
	"time"
)

// timed has the times that something takes, by contender and round, and the
// server's count of requests for each, by round.
type timed struct {
	what       string
	contenders []string // in the order in which they were first measured
	took       map[string]series
	requests   map[string][]float64 // empty if they were not counted
}

func newTimed(what string) *timed {
	return &timed{what: what, took: make(map[string]series), requests: make(map[string][]float64)}
}

// add adds what one contender took in one round.
func (m *timed) add(contender string, took []time.Duration) {
	if m.took[contender] == nil {
		m.contenders = append(m.contenders, contender)
	}
	m.took[contender] = append(m.took[contender], took)
}

func (m *timed) ratio(a, b string) *ratio { return compare(m.took[a].medians(), m.took[b].medians()) }

// timedRow has the figures of one contender. The ratio is the subject's time divided by this
// contender's.
type timedRow struct {
	What, Contender string
	Took            summary
	Ratio           *ratio `json:",omitempty"`
	Requests        *ratio `json:",omitempty"`
}

func (m *timed) rows(subject string) (rows []timedRow) {
	for _, name := range m.contenders {
		row := timedRow{What: m.what, Contender: name, Took: m.took[name].summary(), Requests: spread(m.requests[name])}
		if name != subject {
			row.Ratio = m.ratio(subject, name)
		}
		rows = append(rows, row)
	}
	return rows
}

func timedTable(t *strings.Builder, all []timedRow) {
	if len(all) == 0 {
		return
	}
	rows := [][]string{{"", "", "time", "Stile's / this one's", "commands"}}
	for _, r := range all {
		rows = append(rows, []string{r.What, r.Contender, r.Took.String(), r.Ratio.String(), r.Requests.String()})
	}
	t.WriteString("\n")
	table(t, rows)
}
