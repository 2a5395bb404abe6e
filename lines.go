package stile

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A Line is the line of one name at one moment.
type Line struct {
	// Name is the lock's name.
	Name string `json:"name"`
	// Holders are the admitted entries; for a mutex at most one.
	Holders []Entry `json:"holders"`
	// Waiters are the other entries, in order.
	Waiters []Entry `json:"waiters"`
	// Limit is the operator's limit of slots, set with [Client.Resize]; zero if there is none. A
	// name without holders and waiters may have one.
	Limit int `json:"limit,omitempty"`
	// Remarks say what is wrong with the line and what to do about it.
	Remarks []string `json:"remarks,omitempty"`
}

// An Entry is one position in a line, as others see it.
type Entry struct {
	// Token is the fencing token that the entry's first hold has or will have; later turns with the
	// entry ([Options.Turns]) have larger ones, up to 2047 more. It is zero if the store does not know it yet. On Redis and Redlock it is also zero if Foreign is true. In JSON it is a string,
	// because many JSON readers use floating-point numbers, which are not exact enough for tokens.
	Token uint64 `json:"token,string"`
	// Mode is the requested mode, or shared after [Hold.Downgrade].
	Mode line.Mode `json:"mode"`
	// Owner describes the holder or waiter.
	Owner Owner `json:"owner"`
	// Foreign is true if a client other than Stile made the entry; then Owner is empty. An owner that is larger
	// than a client of Stile can write ([MaxOwnerBytes]) counts as that of another client.
	Foreign bool `json:"foreign,omitempty"`
	// Session is the ID of the entry's session in the store.
	Session string `json:"session"`
	// Remaining is how long the session will live if it is not renewed; zero if the store does not
	// know. It may not show a renewal of the last second yet.
	Remaining time.Duration `json:"remaining_ns,omitempty"`
}

// Lines returns the lines whose name begins with prefix, sorted by name. The empty prefix means
// all. A name without holders and waiters has no line. Where there may be very many lines, use
// [Client.LinesSeq].
func (c *Client) Lines(ctx context.Context, prefix string) ([]Line, error) {
	lines := []Line{}
	for l, err := range c.LinesSeq(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// LinesSeq yields the lines that [Client.Lines] returns, in the same order. On etcd it reads them in pages
// while they are used, so the first ones come soon and few are in memory; other stores read the
// names of all lines first. Each line is consistent in itself, but later ones are read later.
//
// After a failure it yields the error, with an empty Line, and ends. It may be ranged over several times,
// and reads the lines each time.
func (c *Client) LinesSeq(ctx context.Context, prefix string) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		err := c.check()
		if err == nil {
			if err = store.CheckPrefix(prefix); err != nil {
				err = fmt.Errorf("stile: %w", err)
			}
		}
		if err != nil {
			yield(Line{}, err)
			return
		}
		for l, err := range c.store.Lines(ctx, prefix) {
			if err != nil {
				yield(Line{}, fmt.Errorf("stile: lines: %w", err))
				return
			}
			if !yield(lineOf(l), nil) {
				return
			}
		}
	}
}

// Line returns the line of name; it is empty if the name has no holders and waiters. Line accepts
// every name that [Client.Lines] returns, including names that only other clients can have created.
func (c *Client) Line(ctx context.Context, name string) (Line, error) {
	if err := c.check(); err != nil {
		return Line{}, err
	}
	l, err := c.store.Line(ctx, name)
	if err != nil {
		return Line{}, fmt.Errorf("stile: show lock %q: %w", name, err)
	}
	return lineOf(l), nil
}

// Break removes the entry with the given token from the line of name, no matter which client owns
// it, and returns the removed entry. A holder that is broken loses its hold and is notified. But it
// may still be working when the next holder is admitted; only fencing protects against that. A
// waiter that is broken rejoins the line at its end.
//
// If no entry has that token, the error matches [ErrGone] and nothing has changed. The tokens of all turns
// with an entry ([Options.Turns]) mean the entry, and so the hold that has it now. On Redis and
// Redlock the entries of other programs ([Entry.Foreign]) have no token, and so cannot be broken: delete
// their keys. Break accepts the same names as [Client.Line].
func (c *Client) Break(ctx context.Context, name string, token uint64) (Entry, error) {
	if err := c.check(); err != nil {
		return Entry{}, err
	}
	e, err := c.store.Break(ctx, name, orderOf(token))
	if err != nil {
		return Entry{}, fmt.Errorf("stile: break lock %q, token %d: %w", name, token, err)
	}
	return entryOf(e), nil
}

// Resize sets the operator's limit of the slots of a name. The semaphore of that name then admits at most
// that many holds, however many slots its clients declare. A limit larger than what they declare has no
// effect, because a program never gets more slots, or a larger slot number, than it has declared. Declare
// as many slots as can ever be sensible, and limit them to what is sensible today. Zero removes the limit.
//
// The limit is a value in the store: it applies to all clients, is kept until it is changed or removed,
// and needs no holder. If it is raised, the waiters that now fit are admitted. If it is lowered, nobody
// loses a hold: the next waiter is admitted when enough holders have left. Mutexes and read-write locks
// have no limit; a name may have one before it is used as a semaphore.
//
// For a moment after a change, clients on etcd and ZooKeeper may still use the old limit. They use it only
// for waiters that joined the line before the change.
//
// Resize returns an error if slots is negative or more than [MaxSlots]. The error matches [ErrBadName] if
// the name is invalid, and [ErrUnsupported] if the store has no such limits. After any other error the
// old or the new limit may apply; Resize may be called again.
func (c *Client) Resize(ctx context.Context, name string, slots int) error {
	if err := c.check(); err != nil {
		return err
	}
	if err := store.CheckName(name); err != nil {
		return fmt.Errorf("stile: %w", err)
	}
	err := error(nil)
	switch {
	case slots < 0 || slots > MaxSlots:
		err = fmt.Errorf("%d slots: there must be between 1 and %d, or 0 for no limit", slots, MaxSlots)
	case c.caps.SetLimit == nil:
		err = fmt.Errorf("%w by the %s store", ErrUnsupported, c.caps.Kind)
	default:
		err = c.caps.SetLimit(ctx, name, slots)
	}
	if err != nil {
		return fmt.Errorf("stile: limit the slots of lock %q: %w", name, err)
	}
	return nil
}

func lineOf(l store.Line) Line {
	out := Line{Name: l.Name, Holders: []Entry{}, Waiters: []Entry{}, Limit: l.Limit, Remarks: l.Remarks}
	for _, e := range l.Entries {
		if e.Admitted {
			out.Holders = append(out.Holders, entryOf(e))
		} else {
			out.Waiters = append(out.Waiters, entryOf(e))
		}
	}
	return out
}

func entryOf(e store.Entry) Entry {
	if !canBeOurs(&e) {
		e.Foreign, e.Owner = true, Owner{}
		e.Session = strings.ToValidUTF8(e.Session[:min(len(e.Session), maxSessionBytes)], "")
	}
	return Entry{
		Token:     tokenOf(e.Order),
		Mode:      e.Mode,
		Owner:     e.Owner,
		Foreign:   e.Foreign,
		Session:   e.Session,
		Remaining: e.Remaining,
	}
}
