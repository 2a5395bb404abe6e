package attempts

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Places limit how many requests are under way at the same time. A Places may be used concurrently.
type Places struct {
	taken   chan struct{} // has an element for each
	longest time.Duration
}

// NewPlaces returns n places, which must be positive. A request keeps its place until it is answered, but at most for
// longest: one silent member of a cluster must not keep all places while the others answer.
func NewPlaces(n int, longest time.Duration) *Places {
	return &Places{taken: make(chan struct{}, n), longest: longest}
}

// Enter waits for a place, and returns a function that gives it back. If ctx ends first, the error says that the request
// was not sent.
func (p *Places) Enter(ctx context.Context) (leave func(), err error) {
	select {
	case p.taken <- struct{}{}:
	case <-ctx.Done():
		return nil, errNotSent
	}
	giveBack := sync.OnceFunc(func() { <-p.taken })
	late := time.AfterFunc(p.longest, giveBack)
	return func() {
		late.Stop()
		giveBack()
	}, nil
}

// errNotSent is the error of a request whose context ended before it had a place.
var errNotSent = errors.New("the request was not sent: too many others of this process are under way")
