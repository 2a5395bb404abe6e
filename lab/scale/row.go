//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// A row is the result of one measurement.
type row struct {
	Measure   string `json:"measure"`
	Store     string `json:"store"`
	Contender string `json:"contender"`
	N         int    `json:"n"`
	Revision  string `json:"revision"`

	Took       time.Duration `json:"took_ns"`
	PeakMemory int64         `json:"peak_memory"` // of all processes together, in bytes

	Waiters  *waitersResult  `json:"waiters,omitempty"`
	Held     *heldResult     `json:"held,omitempty"`
	Leader   *leaderResult   `json:"leader,omitempty"`
	Names    *namesResult    `json:"names,omitempty"`
	Sessions *sessionsResult `json:"sessions,omitempty"`
}

func (r row) String() string {
	return fmt.Sprintf("%s of %s on %s, %d", r.Measure, r.Contender, r.Store, r.N)
}

// phase is what happened during a part of a measurement. What a store does not count is zero.
type phase struct {
	Took     time.Duration `json:"took_ns"`
	CPU      time.Duration `json:"server_cpu_ns"`
	Requests float64       `json:"requests"`   // requests of the clients, and their messages on streams; see the samples
	Listings float64       `json:"listings"`   // those of the requests that list a directory
	Messages float64       `json:"messages"`   // that the server sends unasked
	Bytes    float64       `json:"bytes_sent"` // by the server
}

type rows []row

// find returns the row with the key of key: all fields down to Revision.
func (rs rows) find(key row) (row, bool) {
	i := slices.IndexFunc(rs, func(r row) bool {
		return r.Measure == key.Measure && r.Store == key.Store && r.Contender == key.Contender && r.N == key.N && r.Revision == key.Revision
	})
	if i < 0 {
		return row{}, false
	}
	return rs[i], true
}

// of returns the rows that have keys, in the order of the tables: by contender, then by number.
func (rs rows) of(keys []row) rows {
	var found rows
	for _, key := range keys {
		if r, ok := rs.find(key); ok {
			found = append(found, r)
		}
	}
	slices.SortStableFunc(found, func(a, b row) int {
		if a.Measure != b.Measure || a.Store != b.Store {
			return 0
		}
		return strings.Compare(b.Contender, a.Contender) // "stile" first
	})
	return found
}

// where returns the rows of a measurement; store may be empty.
func (rs rows) where(measure, store string) (found rows) {
	for _, r := range rs {
		if r.Measure == measure && (store == "" || r.Store == store) {
			found = append(found, r)
		}
	}
	return found
}

// markdown returns the tables.
func (rs rows) markdown() string {
	var b strings.Builder
	for _, m := range measures() {
		if found := rs.where(m.name, ""); len(found) > 0 {
			fmt.Fprintf(&b, "%s\n\n%s\n", m.heading, m.table(found))
		}
	}
	return b.String()
}

// table returns a table in Markdown.
func table(head []string, lines [][]string) string {
	var b strings.Builder
	write := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	write(head)
	b.WriteString(strings.Repeat("|---", len(head)) + "|\n")
	for _, cells := range lines {
		write(cells)
	}
	return b.String()
}

// readRows reads a file of results. A file that does not exist has none. An incomplete last line,
// which an interrupted run may leave, is ignored.
func readRows(path string) (rows rows, err error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var r row
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			rows = append(rows, r)
		}
	}
	return rows, lines.Err()
}

func each(d time.Duration, n int) string {
	return fmt.Sprintf("%.2f ms", d.Seconds()*1000/float64(n))
}
