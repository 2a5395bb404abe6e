package store

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Owner is who stands in a line. It is written into the store as JSON, where everyone who can read the store
// can read it: put no secrets in it.
type Owner struct {
	// Host, PID and User say which process it is.
	Host string `json:"host,omitempty"`
	PID  int    `json:"pid,omitempty"`
	User string `json:"user,omitempty"`
	// Command is what the process runs, for people.
	Command string `json:"command,omitempty"`
	// Reason is why the lock is wanted, in the owner's words.
	Reason string `json:"reason,omitempty"`
	// Labels are the owner's own keys and values.
	Labels map[string]string `json:"labels,omitempty"`
	// Since is when the entry joined its line, by the owner's wall clock; whoever enqueues it sets this. It is for
	// people: nothing is decided by it.
	Since time.Time `json:"since,omitzero"`
	// Obtained is when the entry's turn came and its owner had the lock, by the owner's wall clock. It is for people, like
	// Since, and others read it a little later: see [Extensions.SetOwner]. Zero if it is not known, or not yet.
	Obtained time.Time `json:"obtained,omitzero"`
}

// IsZero reports whether nothing is known of the owner.
func (o Owner) IsZero() bool {
	return o.Host == "" && o.PID == 0 && o.User == "" && o.Command == "" && o.Reason == "" &&
		len(o.Labels) == 0 && o.Since.IsZero() && o.Obtained.IsZero()
}

// String describes the owner in one line: "ann@web-3 pid 812 (deploy.sh)". It is empty if nothing is known. Owners are
// written by everyone who can write to the store: what a terminal would not print is shown escaped, as Go does.
func (o Owner) String() string {
	var b strings.Builder
	switch {
	case o.User != "" && o.Host != "":
		b.WriteString(printable(o.User) + "@" + printable(o.Host))
	default:
		b.WriteString(printable(o.User) + printable(o.Host))
	}
	if o.PID != 0 {
		fmt.Fprintf(&b, " pid %d", o.PID)
	}
	if o.Command != "" {
		fmt.Fprintf(&b, " (%s)", printable(o.Command))
	}
	return strings.TrimSpace(b.String())
}

// printable returns s without anything that a terminal would take for a command.
func printable(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return s
	}
	quoted := strconv.Quote(s)
	return quoted[1 : len(quoted)-1]
}
