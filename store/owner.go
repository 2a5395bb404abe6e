package store

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Owner describes a holder or a waiter. It is stored as JSON. Everyone who can read the store can
// read it: put no secrets in it.
type Owner struct {
	// Host, PID and User identify the process.
	Host string `json:"host,omitempty"`
	PID  int    `json:"pid,omitempty"`
	User string `json:"user,omitempty"`
	// Command is the program that the process runs.
	Command string `json:"command,omitempty"`
	// Reason says why the lock is wanted.
	Reason string `json:"reason,omitempty"`
	// Labels are additional keys and values.
	Labels map[string]string `json:"labels,omitempty"`
	// Value is what a candidate or leader of an election publishes; empty for other locks.
	Value string `json:"value,omitempty"`
	// Since is when the entry joined its line, by the owner's wall clock. The client that enqueues
	// the entry sets it. It is informational: no decision depends on it.
	Since time.Time `json:"since,omitzero"`
	// Obtained is when the owner got the lock, by the owner's wall clock. It is informational too,
	// and others see it with a delay; see [Extensions.SetOwner]. Zero means that it is not known.
	Obtained time.Time `json:"obtained,omitzero"`
	// Lingers is set if the owner may keep its entry for a time after it has released the lock, to lock it
	// again without a request, and until somebody else waits. So others cannot tell whether the lock is held.
	Lingers bool `json:"lingers,omitempty"`
	// Waits are other locks that the owner has been waiting for while it holds this one, for longer
	// than a second. They are informational too, and others see them with a delay.
	Waits []Wait `json:"waits,omitempty"`
	// Under are locks that other processes hold as long as the owner's process runs, the outermost
	// first: stile run sets those of the stile run around it. They are informational too.
	Under []Held `json:"under,omitempty"`
}

// A Wait is a lock that somebody waits for.
type Wait struct {
	// Name is the lock's name.
	Name string `json:"name"`
	// Since is when the wait began, by the waiter's wall clock.
	Since time.Time `json:"since,omitzero"`
}

// Held names a hold.
type Held struct {
	// Name is the lock's name.
	Name string `json:"name"`
	// Token is the fencing token of the hold.
	Token uint64 `json:"token,string"`
}

// IsZero reports whether the owner is empty.
func (o Owner) IsZero() bool {
	return o.Host == "" && o.PID == 0 && o.User == "" && o.Command == "" && o.Reason == "" &&
		len(o.Labels) == 0 && o.Value == "" && o.Since.IsZero() && o.Obtained.IsZero() && len(o.Waits) == 0 && len(o.Under) == 0
}

// String describes the owner in one line: "ann@web-3 pid 812 (deploy.sh)". It returns "" for an
// unknown owner. Owners are written by other clients, so unprintable characters are escaped as in
// Go strings.
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

// printable escapes s if it contains anything that a terminal might interpret.
func printable(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return s
	}
	quoted := strconv.Quote(s)
	return quoted[1 : len(quoted)-1]
}
