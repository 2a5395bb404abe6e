package store

import (
	"context"
	"fmt"
	"time"
)

// A Severity says how bad a [Finding] is. Larger ones are worse.
type Severity int

const (
	// Fine means that something was examined and is as it should be.
	Fine Severity = iota
	// Attention means that locks may be slow, late, lost or out of reach, or that something could not be
	// examined. No promise is broken by it.
	Attention
	// Risk means that a promise may be broken.
	Risk
)

// String returns "fine", "attention" or "risk".
func (s Severity) String() string {
	switch s {
	case Fine:
		return "fine"
	case Attention:
		return "attention"
	case Risk:
		return "risk"
	}
	return fmt.Sprintf("Severity(%d)", int(s))
}

// MarshalText returns the text of String.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// A Finding is one result of an examination of a store: see [Examiner]. Its texts contain no secrets.
type Finding struct {
	// ID names what was examined; docs/operations.md lists all of them. A problem and the absence of
	// that problem have the same ID.
	ID string `json:"id"`
	// Severity says how bad it is.
	Severity Severity `json:"severity"`
	// Promise is the promise in docs/guarantees.md that is at risk, such as "P1". It may also be set
	// for a finding that needs attention. Otherwise it is empty.
	Promise string `json:"promise,omitempty"`
	// What says what was found.
	What string `json:"what"`
	// Advice says what to do. It is empty if the finding is fine.
	Advice string `json:"advice,omitempty"`
	// Servers are the servers that it was found at. It is empty if it concerns the whole store.
	Servers []string `json:"servers,omitempty"`
}

// An Examiner is a store that can examine its servers, for stile doctor.
type Examiner interface {
	// Examine looks for what may break a promise, and for what makes locks slow or unavailable. ttl is
	// the TTL that the clients of the store use; it must be positive. The order of the findings is that
	// in which they were made. A problem that several servers have is one finding.
	//
	// Examine changes neither locks nor settings, and it takes a few seconds. What it could not examine
	// is a finding too, for example because the user lacks the right or a server does not answer. The
	// error means that no server has answered; it is ctx's if that has ended. Examine may be called
	// concurrently with everything else.
	Examine(ctx context.Context, ttl time.Duration) ([]Finding, error)
}
