package storetest

import (
	"errors"
	"math"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func sessions(s suite) {
	s.test("the capabilities make sense", func(t *testing.T, w *world) {
		caps := w.stores[0].Capabilities()
		if caps.Kind == "" || strings.ContainsAny(caps.Kind, " \t\n") {
			t.Errorf("Kind is %q, want one word", caps.Kind)
		}
		if caps.MinTTL < 0 || caps.MaxTTL < caps.MinTTL || w.h.TTL < caps.MinTTL || w.h.TTL > caps.MaxTTL {
			t.Errorf("MinTTL is %v and MaxTTL %v; the harness's TTL is %v", caps.MinTTL, caps.MaxTTL, w.h.TTL)
		}
		again := w.stores[0].Capabilities()
		clears, clearsAgain := caps.ClearMarks != nil, again.ClearMarks != nil
		caps.ClearMarks, again.ClearMarks = nil, nil // functions cannot be compared
		if clears != clearsAgain || !reflect.DeepEqual(caps, again) {
			t.Errorf("the capabilities were %+v, ClearMarks %v, and are %+v, %v", caps, clears, again, clearsAgain)
		}
	})

	s.test("a TTL that cannot be granted is an error that names the limits", func(t *testing.T, w *world) {
		bad := []time.Duration{-time.Second, 0}
		if least := w.caps.MinTTL; least > 1 {
			bad = append(bad, 1, least-1)
		}
		if most := w.caps.MaxTTL; most < math.MaxInt64-time.Hour {
			bad = append(bad, most+time.Hour)
		}
		for _, ttl := range bad {
			ctx, cancel := w.call()
			se, err := w.stores[0].Open(ctx, store.SessionOptions{TTL: ttl})
			if err == nil {
				_ = se.Close(ctx)
				t.Errorf("Open granted a TTL of %v; it should be between %v and %v", ttl, w.caps.MinTTL, w.caps.MaxTTL)
			} else if !namesAnother(err, ttl) {
				t.Errorf("the error for a TTL of %v does not say what it may be: %v", ttl, err)
			}
			cancel()
		}
	})

	s.test("sessions have IDs of their own", func(t *testing.T, w *world) {
		seen := make(map[string]bool)
		for range 5 {
			c := w.open()
			if id := c.ID(); id == "" || seen[id] {
				t.Errorf("the ID %q is empty or was given before", id)
			} else {
				seen[id] = true
			}
		}
	})

	s.test("a mode is supported or refused with ErrUnsupported", func(t *testing.T, w *world) {
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
				t.Errorf("Enqueue with mode %v, which the capabilities exclude, returned %v, want ErrUnsupported", mode, err)
			}
			w.lineOf(name)
		}
	})
}

var duration = regexp.MustCompile(`([0-9]+(\.[0-9]+)?(h|ms|µs|ns|m|s))+`)

// namesAnother reports whether the error tells a duration other than ttl.
func namesAnother(err error, ttl time.Duration) bool {
	for _, text := range duration.FindAllString(err.Error(), -1) {
		if d, parseErr := time.ParseDuration(text); parseErr == nil && d != ttl && d != -ttl {
			return true
		}
	}
	return false
}
