package stile

import "context"

// holdContext is a context that knows its hold. [Hold.Context] is derived from it.
type holdContext struct {
	context.Context
	hold *Hold
}

type holdKey struct{}

// Value returns the hold for holdKey.
func (c holdContext) Value(key any) any {
	if key == (holdKey{}) {
		return c.hold
	}
	return c.Context.Value(key)
}

// outerHold returns the hold of a client's lock that ctx comes from, if it has not ended; nil if there
// is none. A context may come from several holds, each taken with the context of the one before.
func outerHold(ctx context.Context, c *Client, name string) *Hold {
	for h := holdOf(ctx); h != nil; h = holdOf(h.started) {
		if q := h.tenure.queue; q.client == c && q.name == name && !h.over.Load() {
			return h
		}
	}
	return nil
}

// holdOf returns the innermost hold that ctx comes from; nil if there is none.
func holdOf(ctx context.Context) *Hold {
	h, _ := ctx.Value(holdKey{}).(*Hold)
	return h
}
