package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stilelock/stile/store"
)

// Harness describes to the suite how to make a store and how to run one test.
type Harness struct {
	// Open returns a store. It is called once in each test, with the test's own t, and once before all
	// tests, for the store's Capabilities. Resources are to be closed with t.Cleanup, which runs after the
	// suite has closed its sessions. Several tests may use one server at the same time: the lock names of
	// each test begin with "storetest/" and a random word.
	Open func(t *testing.T) store.Store

	// Peer returns another client of st's server, as another process would have. If Peer is nil,
	// all sessions are opened with st.
	Peer func(t *testing.T, st store.Store) store.Store

	// Cut disconnects the session with the given ID, which was opened with st, from the server:
	// requests get no reply and no events arrive until heal is called. Cut may disconnect all of
	// st. It must not disconnect the peer of st or, without a Peer, other sessions of st. If Cut is
	// nil, Without must list [Cut].
	Cut func(t *testing.T, st store.Store, session string) (heal func())

	// Run runs the body of one test. Nil means body(t), in parallel with the other tests. A store
	// in memory sets it to [synctest.Test], which makes all TTLs elapse immediately on a fake
	// clock.
	Run func(t *testing.T, body func(t *testing.T))

	// TTL is the TTL of sessions that must not expire. On a real clock use the longest that the
	// store is certain to grant, up to a minute: if the machine is so busy that the suite fails to
	// confirm a session within TTL, the test fails.
	TTL time.Duration

	// Brief is the TTL of sessions that are left to expire, and how long entries outlast their
	// sessions. The suite waits for it many times, so use one or two seconds on a real clock. No
	// test depends on what the suite can do within Brief: if a session expires before a test has
	// shown anything, the test starts over with twice the TTL. Zero means TTL.
	Brief time.Duration

	// Grace is how long the entries of an expired session may remain after its TTL, and how long
	// the suite waits for events for which the contract sets no time, such as an admission after a
	// release. It must be positive. It only separates late events from events that never come, so a
	// long Grace slows down only failures. On a real clock use about 30 s, because events can be
	// many seconds late on a busy machine.
	Grace time.Duration

	// Without lists the abilities that the store or the harness lacks. The tests that need one of
	// them are left out: they do not run and are not reported as skipped. The list must be exact,
	// so that a store cannot silently lose an ability together with its tests.
	Without []Ability
}

// An Ability is something that some tests of the suite need and some stores lack.
type Ability string

// The abilities. The store's Capabilities report all but the last three.
const (
	Fair          Ability = "admission in order of arrival (Capabilities.Fair)"
	SharedModes   Ability = "shared and slot entries (Capabilities.SharedModes)"
	Fencing       Ability = "orders for fencing tokens (Capabilities.Fencing)"
	ReleaseAfter  Ability = "entries that outlast their session (Capabilities.ReleaseAfter)"
	Markers       Ability = "markers of unreleased entries (Capabilities.ClearMarks)"
	OwnerUpdates  Ability = "changing the owner of an entry (Capabilities.OwnerUpdates)"
	Downgrades    Ability = "making an exclusive entry shared (Capabilities.Downgrades)"
	Contention    Ability = "notifying holders of waiters (Capabilities.Contention)"
	Requeue       Ability = "replacing an entry by one at the end of the line (Capabilities.Requeue)"
	SlotNumbers   Ability = "numbers of slots (Capabilities.SlotNumbers)"
	EnqueueAll    Ability = "joining several lines in one step (Capabilities.EnqueueAll)"
	Limits        Ability = "the operator's limit of slots (Capabilities.SetLimit)"
	Records       Ability = "records of names (Capabilities.Record)"
	Follow        Ability = "reporting every state of a line (Capabilities.Follow)"
	WaitersOrders Ability = "orders assigned on arrival, not at admission"
	ExactAhead    Ability = "an exact Standing.Ahead, whatever the length of the line"
	OwnerEvents   Ability = "an event for a watch when an owner changes, not only a periodic one"
	Cut           Ability = "disconnecting a session from the server (Harness.Cut)"
)

// missing returns the abilities that a store with the given capabilities lacks in this harness.
func (h Harness) missing(caps store.Capabilities) []Ability {
	var missing []Ability
	for _, a := range []struct {
		ability Ability
		present bool
	}{
		{Fair, caps.Fair},
		{SharedModes, caps.SharedModes},
		{Fencing, caps.Fencing},
		{ReleaseAfter, caps.ReleaseAfter},
		{Markers, caps.ClearMarks != nil},
		{OwnerUpdates, caps.OwnerUpdates},
		{Downgrades, caps.Downgrades},
		{Contention, caps.Contention},
		{Requeue, caps.Requeue},
		{SlotNumbers, caps.SlotNumbers},
		{Limits, caps.SetLimit != nil},
		{EnqueueAll, caps.EnqueueAll != nil},
		{Records, caps.Record != nil},
		{Follow, caps.Follow != nil},
		{WaitersOrders, !slices.Contains(h.Without, WaitersOrders)}, // not in Capabilities: only a test can detect it, see admission
		{ExactAhead, !slices.Contains(h.Without, ExactAhead)},
		{OwnerEvents, !slices.Contains(h.Without, OwnerEvents)},
		{Cut, h.Cut != nil},
	} {
		if !a.present {
			missing = append(missing, a.ability)
		}
	}
	return missing
}

// undeclared describes the differences between Without and the missing abilities.
func (h Harness) undeclared(caps store.Capabilities) []string {
	var wrong []string
	missing := h.missing(caps)
	for _, a := range missing {
		if !slices.Contains(h.Without, a) {
			wrong = append(wrong, fmt.Sprintf("the store lacks the ability %q: if that is intended, add it to Harness.Without "+
				"to leave out the tests that need it", a))
		}
	}
	for _, a := range h.Without {
		if !slices.Contains(missing, a) {
			wrong = append(wrong, fmt.Sprintf("Harness.Without lists %q, which the store has or the suite does not know: "+
				"remove it to run the tests that need it", a))
		}
	}
	return wrong
}

// Run runs the suite. On a real clock the tests are parallel subtests: they continue after Run has
// returned and end before the cleanups of t run. Close what they need with t.Cleanup, not with
// defer.
func Run(t *testing.T, h Harness) {
	if h.Open == nil || h.TTL <= 0 || h.Grace <= 0 {
		t.Fatalf("storetest: Harness needs Open, a positive TTL and a positive Grace; TTL is %v and Grace %v", h.TTL, h.Grace)
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
		needs []Ability // every test of the topic needs these
	}{
		{"admission", admission, nil},
		{"try", try, nil},
		{"kinds", kinds, []Ability{SharedModes}},
		{"order", order, []Ability{Fencing}},
		{"withdraw", withdraw, nil},
		{"extensions", extensions, nil},
		{"outlast", outlast, []Ability{ReleaseAfter}},
		{"marker", marker, []Ability{Markers}},
		{"owner", ownership, []Ability{OwnerUpdates}},
		{"downgrade", downgrade, []Ability{Downgrades}},
		{"life", life, nil},
		{"notify", notify, nil},
		{"break", breaking, []Ability{Fencing}},
		{"cancel", cancellation, nil},
		{"close", closing, nil},
		{"lines", lines, nil},
		{"watch", watching, nil},
		{"follow", following, []Ability{Follow, Fair, Fencing, WaitersOrders}},
		{"contended", contended, []Ability{Fair, Contention}},
		{"requeue", requeue, []Ability{Fair, Requeue}},
		{"numbers", numbers, []Ability{SharedModes, Fencing, SlotNumbers}},
		{"limit", limits, []Ability{SharedModes, Limits}},
		{"enqueueall", enqueueAll, []Ability{Fair, EnqueueAll}},
		{"record", records, []Ability{Records}},
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
	leftOut bool // the store lacks an ability that the tests need
}

// needs returns the suite for tests that need the given abilities. If the store lacks one of them,
// the tests are left out, not skipped, so that every skipped test is one that should have run.
func (s suite) needs(abilities ...Ability) suite {
	missing := s.h.missing(s.caps)
	for _, a := range abilities {
		s.leftOut = s.leftOut || slices.Contains(missing, a)
	}
	return s
}

// test runs one test. The name is the promise that the test checks.
func (s suite) test(name string, body func(t *testing.T, w *testEnv)) {
	if s.leftOut {
		return
	}
	s.t.Run(name, func(t *testing.T) {
		if s.h.Run == nil {
			t.Parallel()
		}
		s.h.run(t, func(t *testing.T) { body(t, newTestEnv(t, s.h)) })
	})
}
