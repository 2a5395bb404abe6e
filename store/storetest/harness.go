package storetest

import (
	"fmt"
	"slices"
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
	// no Peer, the other sessions of st. If it is nil, Without has to name [Cut].
	Cut func(t *testing.T, st store.Store, session string) (heal func())

	// Run runs the body of one test. Nil means body(t), in parallel with the other tests. A store in
	// memory sets it to [synctest.Test], so that all TTLs elapse at once on a fake clock.
	Run func(t *testing.T, body func(t *testing.T))

	// TTL is that of the sessions that have to live. On a real clock it should be the longest of which the store is sure, up
	// to a minute: a machine so busy that the suite does not come to confirm a session for so long fails the test.
	TTL time.Duration

	// Brief is the TTL of the sessions that are left to expire, and the time that entries are to outlast theirs by: the
	// suite waits for it again and again, so it should be a second or two on a real clock. Nothing depends on what the suite
	// can do within it: where a session is over too soon for a test to show anything, the test begins again with one that
	// lives twice as long. Zero means TTL.
	Brief time.Duration

	// Grace is how long after its TTL the entries of a dead session may still stand, and how long the suite waits
	// for what the contract sets no time for, such as a waiter's turn after a release. It is positive. It is there to
	// tell what is late from what never comes, and makes only failures slower: on a real clock half a minute is about
	// right, because a busy machine can be late by many seconds.
	Grace time.Duration

	// Without names what the store cannot do, or the harness cannot do to it. The tests that need it are left out: they
	// are not run and do not show as skipped. It has to be exactly what is missing, so that a store cannot lose an
	// ability, and with it the tests of that, without anybody noticing.
	Without []Ability
}

// An Ability is what some tests of the suite need, and not every store has.
type Ability string

// The abilities. All but the last two are what the store's Capabilities say.
const (
	Fair          Ability = "admission in order of arrival (Capabilities.Fair)"
	SharedModes   Ability = "entries other than exclusive ones (Capabilities.SharedModes)"
	Fencing       Ability = "orders, of which fencing tokens are made (Capabilities.Fencing)"
	ReleaseAfter  Ability = "entries that outlast their session (Capabilities.ReleaseAfter)"
	Markers       Ability = "entries that leave markers (Capabilities.ClearMarks)"
	OwnerUpdates  Ability = "entries whose owner can be changed (Capabilities.OwnerUpdates)"
	Contention    Ability = "holders that are told that others wait (Capabilities.Contention)"
	WaitersOrders Ability = "orders of entries that wait, given on arrival and not at admission"
	Cut           Ability = "sessions that can be cut off from the server (Harness.Cut)"
)

// missing returns the abilities that a store with these capabilities lacks in this harness.
func (h Harness) missing(caps store.Capabilities) []Ability {
	var missing []Ability
	for _, a := range []struct {
		ability Ability
		there   bool
	}{
		{Fair, caps.Fair},
		{SharedModes, caps.SharedModes},
		{Fencing, caps.Fencing},
		{ReleaseAfter, caps.ReleaseAfter},
		{Markers, caps.ClearMarks != nil},
		{OwnerUpdates, caps.OwnerUpdates},
		{Contention, caps.Contention},
		{WaitersOrders, !slices.Contains(h.Without, WaitersOrders)}, // only a test can tell: see admission
		{Cut, h.Cut != nil},
	} {
		if !a.there {
			missing = append(missing, a.ability)
		}
	}
	return missing
}

// undeclared says in what Without is not what is missing.
func (h Harness) undeclared(caps store.Capabilities) []string {
	var wrong []string
	missing := h.missing(caps)
	for _, a := range missing {
		if !slices.Contains(h.Without, a) {
			wrong = append(wrong, fmt.Sprintf("the store is without %s: is it meant to be? Then Harness.Without names it, "+
				"and the tests that need it are left out", a))
		}
	}
	for _, a := range h.Without {
		if !slices.Contains(missing, a) {
			wrong = append(wrong, fmt.Sprintf("Harness.Without names %q, which the store has or the suite does not know: "+
				"are its tests to be left out?", a))
		}
	}
	return wrong
}

// Run runs the suite. On a real clock the tests are parallel to each other: as parallel subtests do they go on after Run
// has returned, and end before the cleanups of t. So what they need is closed by t.Cleanup, not by defer.
func Run(t *testing.T, h Harness) {
	if h.Open == nil || h.TTL <= 0 || h.Grace <= 0 {
		t.Fatalf("storetest: Harness needs Open, TTL and Grace; it has TTL %v and Grace %v", h.TTL, h.Grace)
	}
	if h.Brief == 0 {
		h.Brief = h.TTL
	}
	caps := capabilities(t, h)
	for _, a := range h.Without {
		t.Logf("left out: the tests that need %s", a)
	}
	for _, wrong := range h.undeclared(caps) {
		t.Errorf("storetest: %s", wrong)
	}
	for _, topic := range []struct {
		name  string
		tests func(suite)
		needs []Ability // without which there is nothing in the topic to run
	}{
		{"admission", admission, nil},
		{"try", try, nil},
		{"order", order, []Ability{Fencing}},
		{"withdraw", withdraw, nil},
		{"extensions", extensions, nil},
		{"outlast", outlast, []Ability{ReleaseAfter}},
		{"marker", marker, []Ability{Markers}},
		{"owner", ownership, []Ability{OwnerUpdates}},
		{"life", life, nil},
		{"notify", notify, nil},
		{"break", breaking, []Ability{Fencing}},
		{"cancel", cancellation, nil},
		{"close", closing, nil},
		{"lines", lines, nil},
		{"watch", watching, nil},
		{"contended", contended, []Ability{Fair, Contention}},
		{"concurrency", concurrency, nil},
		{"sessions", sessions, nil},
		{"outage", outage, []Ability{Cut}},
	} {
		s := suite{h: h, caps: caps}.needs(topic.needs...)
		if s.leftOut {
			continue
		}
		t.Run(topic.name, func(t *testing.T) {
			if h.Run == nil {
				t.Parallel()
			}
			s.t = t
			topic.tests(s)
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
	leftOut bool // since the store lacks what the tests need
}

// needs returns the suite for tests that need these abilities. Those of a store that lacks one are left out: not skipped,
// so that every test that is skipped is one that should have been run.
func (s suite) needs(abilities ...Ability) suite {
	missing := s.h.missing(s.caps)
	for _, a := range abilities {
		s.leftOut = s.leftOut || slices.Contains(missing, a)
	}
	return s
}

// test runs one test, named after what it shows.
func (s suite) test(name string, body func(t *testing.T, w *world)) {
	if s.leftOut {
		return
	}
	s.t.Run(name, func(t *testing.T) {
		if s.h.Run == nil {
			t.Parallel()
		}
		s.h.run(t, func(t *testing.T) { body(t, newWorld(t, s.h)) })
	})
}
