package memstore

import (
	"context"
	"fmt"
	"time"
)

// Op is an operation between a client and the store.
type Op string

// The operations that faults can be put on.
const (
	Open        Op = "open"         // open a session
	Confirm     Op = "confirm"      // renew a session
	Enqueue     Op = "enqueue"      // join a line
	EnqueueAll  Op = "enqueue all"  // join several lines in one step
	Mark        Op = "mark"         // leave a marker for an entry, or read those of others
	SetOwner    Op = "set owner"    // change the owner of an entry
	Downgrade   Op = "downgrade"    // make an exclusive entry shared
	ClaimNumber Op = "claim number" // claim a slot number for an entry
	Withdraw    Op = "withdraw"     // withdraw an entry, at once or after a time
	Requeue     Op = "requeue"      // replace an entry by one at the end of the line
	Close       Op = "close"        // close a session
	Read        Op = "read"         // read one or more lines
	Break       Op = "break"        // break an entry of any session
	ClearMarks  Op = "clear marks"  // delete markers
	SetLimit    Op = "set limit"    // set the operator's limit of a line
	SetRecord   Op = "set record"   // write the record of a name
	ReadRecord  Op = "read record"  // read the record of a name
	Watch       Op = "watch"        // start a watch
	Notify      Op = "notify"       // deliver an entry's standing, or a change to a watch; only Delay applies
)

// Call describes one operation before it is made.
type Call struct {
	Op Op
	// Session is the id of the session that makes the call or is notified; empty if there is none.
	Session string
	// Name is the lock's name, or the prefix of a read or watch; empty if there is none. For EnqueueAll it
	// is all names, with a space between them.
	Name string
}

// Fault is what goes wrong with a call. The zero Fault has no effect.
type Fault struct {
	// Delay is how long the request takes to reach the store. If the caller gives up first, the
	// request is not carried out.
	Delay time.Duration
	// Drop loses the request: it is not carried out, and the caller waits until its context ends.
	Drop bool
	// ReplyDelay is how long the reply takes to reach the caller. If the caller gives up first, the
	// effect is that of LoseReply.
	ReplyDelay time.Duration
	// LoseReply loses the reply: the request is carried out, and the caller waits until its context
	// ends. What Open, Enqueue, EnqueueAll or Requeue has added is removed then, because a failed call
	// leaves nothing.
	LoseReply bool
	// Err is returned to the caller, unless Drop is set. The request is not carried out unless
	// LoseReply is set; then it is carried out, and Err is returned at once.
	Err error
}

// SetFaults makes the store call f before each operation and apply the fault that f returns. A nil
// f ends all faults. f is called with the store locked and must not call the store. Operations
// already under way keep their fault.
func (s *Store) SetFaults(f func(Call) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

func (s *Store) faultLocked(c Call) Fault {
	if s.faults == nil {
		return Fault{}
	}
	return s.faults(c)
}

// request applies a call's fault: it delays or drops the request, calls apply with s.mu held, and
// delays or loses the reply. If apply succeeded and the reply does not arrive, request calls undo
// without s.mu, for calls that must have no effect when they fail.
func (s *Store) request(ctx context.Context, c Call, apply func() error, undo func()) error {
	s.mu.Lock()
	f := s.faultLocked(c)
	s.mu.Unlock()

	if err := transmit(ctx, f.Delay, f.Drop); err != nil {
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
	if lost := transmit(ctx, f.ReplyDelay, f.LoseReply); lost != nil {
		if err == nil && undo != nil {
			undo()
		}
		return fmt.Errorf("memory store: %s %s: %w", c.Op, c.Name, lost)
	}
	return err
}

// transmit simulates one message: it waits for delay, or until ctx ends if the message is lost.
func transmit(ctx context.Context, delay time.Duration, lost bool) error {
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
