//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A row is the result of one measurement. Per waiter means divided by the number of waiters, and a
// hand-over is one from a waiter to the next.
type row struct {
	Contender string `json:"contender"`
	Waiters   int    `json:"waiters"`
	Revision  string `json:"revision"`

	Join  phase `json:"join"`  // until all wait and the server is quiet
	Idle  phase `json:"idle"`  // while nothing happens
	Drain phase `json:"drain"` // from the release of the lock until all have passed
}

// phase is what happened during a part of a measurement.
type phase struct {
	Took     time.Duration `json:"took_ns"`
	CPU      time.Duration `json:"server_cpu_ns"`
	Requests float64       `json:"requests"`       // unary requests, and messages of the clients on streams
	Messages float64       `json:"watch_messages"` // from the server to the clients
	Bytes    float64       `json:"bytes_sent"`     // by the server
}

type rows []row

// find returns the row with the contender, number of waiters and revision of key.
func (rs rows) find(key row) (row, bool) {
	i := slices.IndexFunc(rs, func(r row) bool {
		return r.Contender == key.Contender && r.Waiters == key.Waiters && r.Revision == key.Revision
	})
	if i < 0 {
		return row{}, false
	}
	return rs[i], true
}

// of returns the rows of a revision with the given numbers of waiters, in the order of the table.
func (rs rows) of(revision string, waiters []int) rows {
	var found rows
	for _, contender := range contenders {
		for _, n := range waiters {
			if r, ok := rs.find(row{Contender: contender, Waiters: n, Revision: revision}); ok {
				found = append(found, r)
			}
		}
	}
	return found
}

func (rs rows) markdown() string {
	var b strings.Builder
	b.WriteString("| | waiters | join: requests each | kB each | server CPU each | idle: requests/s each | " +
		"hand-over: time | requests | watch messages | kB | server CPU |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range rs {
		n := float64(r.Waiters)
		idle := 0.0
		if r.Idle.Took > 0 {
			idle = r.Idle.Requests / n / r.Idle.Took.Seconds()
		}
		fmt.Fprintf(&b, "| %s | %d | %.1f | %.1f | %s | %.2f | %s | %.1f | %.1f | %.1f | %s |\n", r.Contender, r.Waiters,
			r.Join.Requests/n, r.Join.Bytes/n/1000, each(r.Join.CPU, r.Waiters), idle,
			each(r.Drain.Took, r.Waiters), r.Drain.Requests/n, r.Drain.Messages/n, r.Drain.Bytes/n/1000, each(r.Drain.CPU, r.Waiters))
	}
	return b.String()
}

func each(d time.Duration, n int) string {
	return fmt.Sprintf("%.2f ms", d.Seconds()*1000/float64(n))
}
