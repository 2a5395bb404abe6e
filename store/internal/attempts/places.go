package attempts

import (
	"context"
	"errors"
	"sync"
)

// Places limit how many requests are under way at the same time. A Places may be used concurrently.
type Places struct {
	taken chan struct{} // has an element for each place that is taken
}

// NewPlaces returns n places, which must be positive.
func NewPlaces(n int) *Places { return &Places{taken: make(chan struct{}, n)} }

// Enter waits for a place, and returns a function that gives it back, and that may be called more than once. If ctx ends
// first, the error says that the request was not sent. If a place is free, it is taken even though ctx has ended.
func (p *Places) Enter(ctx context.Context) (leave func(), err error) {
	select {
	case p.taken <- struct{}{}:
	default:
		select {
		case p.taken <- struct{}{}:
		case <-ctx.Done():
			return nil, errNotSent
		}
	}
	return sync.OnceFunc(func() { <-p.taken }), nil
}

// errNotSent is the error of a request whose context ended before it had a place.
var errNotSent = errors.New("the request was not sent: too many others of this process are under way")
