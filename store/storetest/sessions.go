package storetest

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func sessions(s suite) {
	s.test("the capabilities are valid and constant", func(t *testing.T, w *testEnv) {
		caps := w.stores[0].Capabilities()
		if caps.Kind == "" || strings.ContainsAny(caps.Kind, " \t\n") {
			t.Errorf("Kind is %q, want one word", caps.Kind)
		}
		if caps.MinTTL < 0 || caps.MaxTTL < caps.MinTTL || w.h.TTL < caps.MinTTL || w.h.TTL > caps.MaxTTL {
			t.Errorf("MinTTL is %v and MaxTTL %v, want a range with the harness's TTL %v", caps.MinTTL, caps.MaxTTL, w.h.TTL)
		}
		again := w.stores[0].Capabilities()
		// Functions cannot be compared.
		functions, functionsAgain := takeFunctions(&caps), takeFunctions(&again)
		if functions != functionsAgain || !reflect.DeepEqual(caps, again) {
			t.Errorf("the capabilities changed from %+v, functions %v, to %+v, %v", caps, functions, again, functionsAgain)
		}
	})

	s.test("session IDs are unique", func(t *testing.T, w *testEnv) {
		seen := make(map[string]bool)
		for range 5 {
			c := w.open()
			if id := c.ID(); id == "" || seen[id] {
				t.Errorf("the session ID %q is empty or not unique", id)
			} else {
				seen[id] = true
			}
		}
	})

	s.test("a mode is supported or rejected with ErrUnsupported", func(t *testing.T, w *testEnv) {
		for _, mode := range []line.Mode{line.Shared, line.Slot(2)} {
			name := w.name(mode.String())
			p, err := w.openKept().tryEnqueue(name, mode, false)
			if w.caps.SharedModes {
				if err != nil {
					t.Fatal(err)
				}
				p.admitted()
				continue
			}
			if !errors.Is(err, store.ErrUnsupported) {
				t.Errorf("Enqueue with the unsupported mode %v returned %v, want ErrUnsupported", mode, err)
			}
			w.wantLine(name)
		}
	})
}

// takeFunctions sets the functions to nil and returns which ones there were.
func takeFunctions(c *store.Capabilities) [5]bool {
	had := [5]bool{c.ClearMarks != nil, c.SetLimit != nil, c.EnqueueAll != nil, c.Record != nil, c.Follow != nil}
	c.ClearMarks, c.SetLimit, c.EnqueueAll, c.Record, c.Follow = nil, nil, nil, nil, nil
	return had
}
