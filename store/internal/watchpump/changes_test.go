package watchpump

import (
	"slices"
	"testing"

	"github.com/stilelock/stile/store/internal/work"
)

// A change that arrives between the signal of another and the call is in that call. It must not cause a further
// call, which would have no names, and so would tell that any line may have changed.
func TestChanges_arriveBeforeTheyAreTaken(t *testing.T) {
	c := changes{arrived: work.NewSignal(), names: make(map[string]struct{})}
	c.add("a")
	<-c.arrived
	c.add("b")
	if names := c.take(); !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("got %q, want a and b", names)
	}
	select {
	case <-c.arrived:
		t.Errorf("a further call, with the names %q", c.take())
	default:
	}
	c.add("c")
	<-c.arrived
	if names := c.take(); !slices.Equal(names, []string{"c"}) {
		t.Errorf("got %q, want c", names)
	}
}
