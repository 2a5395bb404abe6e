package stile

import (
	"context"
	"fmt"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// Line is who stands behind one name, as read at one moment.
type Line struct {
	// Name is the lock's name.
	Name string `json:"name"`
	// Holders are those whose turn it is; for a mutex at most one.
	Holders []Entry `json:"holders"`
	// Waiters are the others, in order.
	Waiters []Entry `json:"waiters"`
	// Remarks tell what is odd about the line, and what to do.
	Remarks []string `json:"remarks,omitempty"`
}

// Entry is one place in a line, as others see it.
type Entry struct {
	// Token is what the entry's hold carries, or will carry; zero if the store does not tell yet. In JSON it is a
	// string: many readers of JSON take numbers for floating point, where tokens would not fit.
	Token uint64 `json:"token,string"`
	// Mode is what the entry asks for.
	Mode line.Mode `json:"mode"`
	// Owner is who it is.
	Owner Owner `json:"owner"`
	// Foreign is set if another client than Stile made the entry; then Owner is empty.
	Foreign bool `json:"foreign,omitempty"`
	// Session names the session that the entry belongs to in the store.
	Session string `json:"session"`
	// Remaining is how much longer that session lives if it is not renewed; zero if the store did not tell.
	Remaining time.Duration `json:"remaining_ns,omitempty"`
}

// Lines returns the lines, sorted by name, whose name begins with prefix; the empty prefix means all. Names that nobody
// holds or waits for are not among them.
func (c *Client) Lines(ctx context.Context, prefix string) ([]Line, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := store.CheckPrefix(prefix); err != nil {
		return nil, fmt.Errorf("stile: %w", err)
	}
	found, err := c.store.Lines(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("stile: lines: %w", err)
	}
	lines := make([]Line, 0, len(found))
	for _, l := range found {
		lines = append(lines, lineOf(l))
	}
	return lines, nil
}

// Line returns the line behind name. If nobody stands there it is empty. The name may be any that [Client.Lines] returns, even
// one that no lock of Stile can have, because another client has made it.
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

// Break takes the entry with the given token out of the line behind name, no matter whose it is, and returns it as it was. A holder
// that is broken loses the lock and is told so; but it may be working still when the next one is let in, so that only
// fencing keeps the two apart. A waiter that is broken joins the line again, at its end.
//
// If no entry with that token stands there the error matches [ErrGone], and nothing was changed. The name may be any that
// [Client.Line] takes.
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

func lineOf(l store.Line) Line {
	out := Line{Name: l.Name, Holders: []Entry{}, Waiters: []Entry{}, Remarks: l.Remarks}
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
	return Entry{
		Token:     tokenOf(e.Order),
		Mode:      e.Mode,
		Owner:     e.Owner,
		Foreign:   e.Foreign,
		Session:   e.Session,
		Remaining: e.Remaining,
	}
}
