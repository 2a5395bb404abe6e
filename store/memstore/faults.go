package memstore

import (
	"context"
	"fmt"
	"time"
)

// Op is what a client asks of the store, or the store tells a client.
type Op string

// The operations that faults can be put on.
const (
	Open       Op = "open"        // a session is opened
	Confirm    Op = "confirm"     // a session is renewed
	Enqueue    Op = "enqueue"     // an entry is put in
	Mark       Op = "mark"        // an entry leaves a marker, or is told of others
	SetOwner   Op = "set owner"   // the owner of an entry is changed
	Withdraw   Op = "withdraw"    // an entry is taken out by its session, at once or after a time
	Close      Op = "close"       // a session is ended by its client
	Read       Op = "read"        // a line or lines are read
	Break      Op = "break"       // somebody's entry is taken out
	ClearMarks Op = "clear marks" // markers are removed
	Watch      Op = "watch"       // a watch begins
	Notify     Op = "notify"      // an entry's new standing is told, or a change to a watch; only Delay applies
)

// Call is one use of the store, about to be made.
type Call struct {
	Op Op
	// Session is the id of the session that calls, or is called; empty where none is.
	Session string
	// Name is the lock's name, or the prefix of a reading; empty where there is none.
	Name string
}

// Fault is what goes wrong with a call. The zero Fault is nothing.
type Fault struct {
	// Delay passes before the request reaches the store. If the caller gives up meanwhile it never does.
	Delay time.Duration
	// Drop loses the request: the caller waits until its context ends, and nothing has happened.
	Drop bool
	// ReplyDelay passes before the reply reaches the caller. If the caller gives up meanwhile it is as with
	// LoseReply.
	ReplyDelay time.Duration
	// LoseReply loses the reply: the request has been carried out, and the caller waits until its context ends.
	LoseReply bool
	// Err is what the caller gets instead of a reply. The request is not carried out, unless LoseReply is set: then
	// it is, and the error arrives at once.
	Err error
}

// SetFaults makes the store ask f about each call. A nil f ends all faults. f is called with the store locked: it
// must not call the store. Calls under way keep the fault they got.
func (s *Store) SetFaults(f func(Call) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

// fault is called with s.mu held.
func (s *Store) fault(c Call) Fault {
	if s.faults == nil {
		return Fault{}
	}
	return s.faults(c)
}

// request carries one call through its fault: there, apply with s.mu held, and back. If apply was successful and the
// reply does not arrive, undo is called, without s.mu, for calls that must leave nothing behind when they fail.
func (s *Store) request(ctx context.Context, c Call, apply func() error, undo func()) error {
	s.mu.Lock()
	f := s.fault(c)
	s.mu.Unlock()

	if err := travel(ctx, f.Delay, f.Drop); err != nil {
		return fmt.Errorf("memory store: %s %s: %w", c.Op, c.Name, err)
	}
	if f.Err != nil && !f.LoseReply {
		return f.Err
	}

	s.mu.Lock()
	err := apply()
	s.mu.Unlock()

	if f.Err != nil {
		if err == nil && undo != nil {
			undo()
		}
		return f.Err
	}
	if lost := travel(ctx, f.ReplyDelay, f.LoseReply); lost != nil {
		if err == nil && undo != nil {
			undo()
		}
		return fmt.Errorf("memory store: %s %s: %w", c.Op, c.Name, lost)
	}
	return err
}

// travel is one way of a message.
func travel(ctx context.Context, delay time.Duration, lost bool) error {
	switch {
	case lost:
		<-ctx.Done()
	case delay > 0:
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}
