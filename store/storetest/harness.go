package storetest

import (
	"testing"
	"time"

	"github.com/stilelock/stile/store"
)

// Harness tells the suite how to make a store and how to run one test.
type Harness struct {
	// Open returns a store. It is called once in each test, with the test's own t; what has to be closed is closed
	// by t.Cleanup, after the suite has closed its sessions. Several tests may use one server at the same time: each
	// uses lock names of its own, that begin with "storetest/" and a random word.
	Open func(t *testing.T) store.Store

	// Peer returns another client of the server that st is a client of, as another process would be. Nil means that
	// all sessions are opened with st.
	Peer func(t *testing.T, st store.Store) store.Store

	// Cut cuts off from the server the session with the given ID, which was opened with st: requests go unanswered
	// and nothing is heard, until heal is called. It may cut all of st; it must not cut its peer, nor, where there is
	// no Peer, the other sessions of st. If it is nil, the topic "outage" is skipped.
	Cut func(t *testing.T, st store.Store, session string) (heal func())

	// Run runs the body of one test. Nil means body(t), in parallel with the other tests. A store in
	// memory sets it to [synctest.Test], so that all TTLs elapse at once on a fake clock.
	Run func(t *testing.T, body func(t *testing.T))

	// TTL is what sessions are opened with. On a real clock it should be well above what the store takes for a
	// dozen requests on a busy machine: two seconds, rather than the store's minimum.
	TTL time.Duration

	// Grace is how long after its TTL the entries of a dead session may still stand, and how long the suite waits
	// for what the contract sets no time for, such as a waiter's turn after a release. It is positive. A slow store
	// needs more; a longer Grace makes only failures slower.
	Grace time.Duration
}

// Run runs the suite. On a real clock the tests are parallel to each other: as parallel subtests do they go on after Run
// has returned, and end before the cleanups of t. So what they need is closed by t.Cleanup, not by defer.
func Run(t *testing.T, h Harness) {
	if h.Open == nil || h.TTL <= 0 || h.Grace <= 0 {
		t.Fatalf("storetest: Harness needs Open, TTL and Grace; it has TTL %v and Grace %v", h.TTL, h.Grace)
	}
	caps := capabilities(t, h)
	for _, topic := range []struct {
		name  string
		tests func(suite)
	}{
		{"admission", admission},
		{"try", try},
		{"order", order},
		{"withdraw", withdraw},
		{"outlast", outlast},
		{"trace", trace},
		{"life", life},
		{"notify", notify},
		{"break", breaking},
		{"cancel", cancellation},
		{"close", closing},
		{"lines", lines},
		{"watch", watching},
		{"contended", contended},
		{"concurrency", concurrency},
		{"sessions", sessions},
		{"outage", outage},
	} {
		t.Run(topic.name, func(t *testing.T) {
			if h.Run == nil {
				t.Parallel()
			}
			topic.tests(suite{t: t, h: h, caps: caps})
		})
	}
}

func capabilities(t *testing.T, h Harness) (caps store.Capabilities) {
	t.Helper()
	h.run(t, func(t *testing.T) { caps = h.Open(t).Capabilities() })
	return caps
}

func (h Harness) run(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if h.Run == nil {
		body(t)
		return
	}
	h.Run(t, body)
}

// suite runs the tests of one topic.
type suite struct {
	t       *testing.T
	h       Harness
	caps    store.Capabilities
	missing string // why tests cannot be run
}

// needs returns the suite for tests that can be run only if ok; missing says why they are skipped if not.
func (s suite) needs(ok bool, missing string) suite {
	if !ok && s.missing == "" {
		s.missing = missing
	}
	return s
}

func (s suite) needsLine() suite {
	return s.needs(s.caps.Fair,
		"the store's Capabilities say that it keeps no order of arrival (Fair is false)")
}

func (s suite) needsShared() suite {
	return s.needs(s.caps.SharedModes,
		"the store's Capabilities say that it has exclusive locks only (SharedModes is false)")
}

func (s suite) needsFencing() suite {
	return s.needs(s.caps.Fencing,
		"the store's Capabilities say that it has no fencing tokens (Fencing is false)")
}

func (s suite) needsCut() suite {
	return s.needs(s.h.Cut != nil,
		"Harness.Cut is nil, so nothing is known about this store when it is out of reach")
}

// test runs one test, named after what it shows.
func (s suite) test(name string, body func(t *testing.T, w *world)) {
	s.t.Run(name, func(t *testing.T) {
		// A skip inside a bubble would count as a pass: so it is here.
		if s.missing != "" {
			t.Skip("SKIPPED: " + s.missing)
		}
		if s.h.Run == nil {
			t.Parallel()
		}
		s.h.run(t, func(t *testing.T) { body(t, newWorld(t, s.h)) })
	})
}
