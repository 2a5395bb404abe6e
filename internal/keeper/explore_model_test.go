//go:build !race

package keeper

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stilelock/stile/line"
)

// This file is a model of everything around a [Lease]: clients, their clocks, the network and a
// store. The lease in it is the production code. The explorer in explore_test.go visits every
// reachable state of the model and checks that no two clients hold the lock at the same time.
//
// The model has one exclusive lock and up to three clients. A client opens a session, joins the
// line, is notified of its admission, holds, withdraws, and starts over. A client can be paused at
// any moment: it then takes no steps while others do. Requests and replies take any time, or get
// lost, or are reported as failed although they were carried out, or are carried out again later.
// The passing of time is a step like any other. The number of steps is not bounded. The exploration
// is finite because states count as equal if they differ only in absolute time, in the names of the
// clients, or in numbers of which only the order matters.
//
// There are two simplifications. Joining and withdrawing are one step each, because a client holds
// nothing between the parts of these steps. And late or duplicate renewals may arrive at any time
// in the life of a session, even if none was sent.

const maxClients = 3

// A model defines the possible steps and the states that violate the promises.
type model struct {
	clients  int
	ttl      time.Duration // measured by the store's clock
	schedule Schedule      // measured by the client's clock

	// lag lets the clock of client 0 lose one tick in that many ticks. If it is zero, the clock is
	// exact.
	lag int
	// revokes lets the store end sessions too early, which breaks its promise.
	revokes bool
	// evictions lets an administrator remove an entry whose session continues.
	evictions bool
	// writes lets holders write to a resource that checks tokens. A write can arrive any time after
	// the holder has checked its lease.
	writes bool
	// unguarded makes the resource accept all writes.
	unguarded bool
	// oldSessions lets a client open a session while its lost one is still in the store.
	oldSessions bool

	// The handlers of outcomes. newModel sets those of the production code; tests replace them with
	// wrong ones.
	onOpened    func(schedule Schedule, sent, now Instant) Lease
	onConfirmed func(l *Lease, sent, now Instant)
	onFailed    func(l *Lease, sent, now Instant)

	// check returns how a state violates the promises, or an empty string.
	check func(m *model, w *modelState) string
	// seen counts the situations that occurred, so that tests can require them.
	seen [situations]int
}

// newModel returns a model of the production code with a store that keeps its promises.
func newModel(clients int, ttl time.Duration, schedule Schedule) *model {
	return &model{
		clients:     clients,
		ttl:         ttl,
		schedule:    schedule,
		onOpened:    NewLease,
		onConfirmed: func(l *Lease, sent, now Instant) { l.RequestConfirmed(sent, now) },
		onFailed:    func(l *Lease, _, now Instant) { l.RequestFailed(now) },
		check:       (*model).checkPromises,
	}
}

// A modelState is a state of the model. It is a value, so that steps can start from copies.
type modelState struct {
	now        Instant // the store's clock
	order      int     // of the newest entry
	admissions int     // number of admissions so far
	maxToken   int     // the largest token seen by the resource
	clients    [maxClients]client
}

type client struct {
	// The client's own state.
	clock   Instant
	open    bool // it has a session, with this lease
	lease   Lease
	joined  bool // it has joined the line and not withdrawn
	holding bool // it was notified of its admission, and not that its entry is gone
	ended   bool // the hold has been invalid
	stale   bool // a hold that was admitted later has written

	// Messages in flight.
	request      request
	sent         Instant
	notification notification
	write        write

	// The store's state.
	sinceLag int // ticks since the client's clock lost one
	alive    bool
	expires  Instant
	inLine   bool
	order    int // of its entry; it remains as the token after the entry is gone
	admitted int // the number of its admission; zero if not admitted
	oldOrder int // the order of an entry of a lost session that still exists; zero if there is none
}

// A request is the state of a client's request about its session. A client has one at a time.
type request uint8

const (
	noRequest request = iota
	opening           // sent
	opened            // carried out, reply in flight
	renewing          // sent
	renewed           // carried out, reply in flight
	refused           // the session had ended, reply in flight
)

// A notification is what the store has sent about an entry and the client has not received.
type notification uint8

const (
	noNotification notification = iota
	admittedNotification
	goneNotification
	admittedAndGoneNotification // in this order
)

// A write is a write to the resource in flight; the zero value is none.
type write struct {
	token    int
	admitted int
	stale    bool
}

func (m *model) initial() modelState {
	var w modelState
	for i := range m.clients {
		w.clients[i].sinceLag = m.lag
	}
	return w
}

// An event is one atomic step.
type event struct {
	kind   kind
	client uint8
}

type kind uint8

const (
	ticks kind = iota
	lags
	opens
	renews
	arrives
	replies
	givesUp
	isRenewedLate
	joins
	isNotified
	withdraws
	expires
	closes
	startsOver
	oldSessionEnds
	isRevoked
	isEvicted
	writes
	writeArrives
	kinds
)

var eventTexts = [kinds]string{
	ticks:          "a tick passes",
	lags:           "a tick passes that client 0's clock misses",
	opens:          "client %d requests a session",
	renews:         "client %d reads its clock and renews if due",
	arrives:        "client %d's request is carried out",
	replies:        "client %d receives its reply",
	givesUp:        "client %d gives up its request",
	isRenewedLate:  "client %d's session is renewed by a late or duplicate request",
	joins:          "client %d joins the line",
	isNotified:     "client %d receives a notification",
	withdraws:      "client %d withdraws",
	expires:        "client %d's session expires in the store",
	closes:         "client %d closes its lost session",
	startsOver:     "client %d starts over without its lost session",
	oldSessionEnds: "client %d's old session ends",
	isRevoked:      "the store ends client %d's session too early",
	isEvicted:      "an administrator removes client %d's entry",
	writes:         "client %d checks its hold and writes",
	writeArrives:   "client %d's write arrives",
}

func (e event) String() string {
	if e.kind <= lags {
		return eventTexts[e.kind]
	}
	return fmt.Sprintf(eventTexts[e.kind], e.client)
}

// A situation is something that an exploration must have come across to be worth anything.
type situation int

const (
	clientHeld situation = iota
	handedOver
	admittedAfterDeadline
	admittedBehindPausedHolder
	admittedAtHoldersDeadline
	recoveredFromAtRisk
	replyAfterDeadline
	lateRenewalExtended
	failedButCarriedOut
	expiryReported
	admissionReceivedAfterLoss
	queuedBehindOwnOldEntry
	overlapped
	staleWriteRefused
	situations
)

var situationNames = [situations]string{
	clientHeld:                 "a client held",
	handedOver:                 "a hold was released to another client",
	admittedAfterDeadline:      "a client was admitted after another had lost by its deadline",
	admittedBehindPausedHolder: "a client was admitted after a holder that had not read its clock since its deadline",
	admittedAtHoldersDeadline:  "a client was admitted exactly at the deadline of a holder that had not read its clock",
	recoveredFromAtRisk:        "a lease at risk recovered",
	replyAfterDeadline:         "a reply arrived after the deadline",
	lateRenewalExtended:        "a late or duplicate renewal extended an overdue session",
	failedButCarriedOut:        "a request that was carried out was recorded as failed",
	expiryReported:             "the end of a session was reported before its deadline",
	admissionReceivedAfterLoss: "a notification of an admission arrived after the session was lost",
	queuedBehindOwnOldEntry:    "a client joined behind the entry of its own lost session",
	overlapped:                 "two conflicting holds were valid at the same time",
	staleWriteRefused:          "a stale write was refused",
}

// step sets next to the state after the event e in w, which must be possible. It returns how that
// state violates the promises.
func (m *model) step(w *modelState, e event, next *modelState) (violation string) {
	*next = *w
	c := &next.clients[e.client]
	switch e.kind {
	case ticks, lags:
		next.now++
		for i := range m.clients {
			c := &next.clients[i]
			if i == 0 && e.kind == lags {
				c.sinceLag = 0
				continue
			}
			c.clock++
			c.sinceLag = min(c.sinceLag+1, m.lag)
		}
	case opens:
		c.request, c.sent = opening, c.clock
	case renews:
		c.lease.Advance(c.clock)
		if c.lease.Due(c.clock) {
			c.lease.RequestSent(c.clock)
			c.request, c.sent = renewing, c.clock
		}
	case arrives:
		m.arrive(next, c)
	case replies:
		m.reply(c)
	case givesUp:
		if c.request == renewed {
			m.seen[failedButCarriedOut]++
		}
		if c.open {
			m.onFailed(&c.lease, c.sent, c.clock)
		} else {
			c.alive = false // an unknown session without entries affects nothing
		}
		c.request = noRequest
	case isRenewedLate:
		if c.expires <= next.now {
			m.seen[lateRenewalExtended]++
		}
		c.expires = next.now.Add(m.ttl)
	case joins:
		next.order++
		c.joined, c.inLine, c.order = true, true, next.order
		if c.oldOrder > 0 {
			m.seen[queuedBehindOwnOldEntry]++
		}
		m.admitEntries(next, e)
	case isNotified:
		m.notify(c)
	case withdraws:
		c.dropEntry()
		m.admitEntries(next, e)
	case expires, isRevoked:
		c.end()
		m.admitEntries(next, e)
	case closes:
		c.alive, c.inLine = false, false
		m.admitEntries(next, e)
	case startsOver:
		m.startOver(c)
	case oldSessionEnds:
		c.oldOrder = 0
		m.admitEntries(next, e)
	case isEvicted:
		c.inLine = false
		c.gone()
		m.admitEntries(next, e)
	case writes:
		c.write = write{token: c.order, admitted: c.admitted, stale: c.stale}
	case writeArrives:
		violation = m.arriveWrite(next, c)
	}
	if violation == "" {
		violation = m.check(m, next)
	}
	for i := range m.clients {
		c := &next.clients[i]
		c.ended = c.ended || c.holding && !c.valid()
	}
	return violation
}

// possible reports whether e can happen in w.
func (m *model) possible(w *modelState, e event) bool {
	c := &w.clients[e.client]
	lost := c.open && c.lease.State() == Lost
	switch e.kind {
	case ticks:
		return true
	case lags:
		return m.lag > 0 && w.clients[0].sinceLag+1 >= m.lag
	case opens:
		return !c.open && c.request == noRequest
	case renews:
		return c.open && !lost && (c.lease.Due(c.clock) || !c.lease.ValidAt(c.clock))
	case arrives:
		return c.request == opening || c.request == renewing
	case replies:
		return c.request == opened || c.request == renewed || c.request == refused
	case givesUp:
		return c.request != noRequest
	case isRenewedLate:
		return c.alive && c.expires < w.now.Add(m.ttl)
	case joins:
		return c.open && c.alive && !c.joined && c.lease.ValidAt(c.clock)
	case isNotified:
		return c.notification != noNotification
	case withdraws:
		return c.joined && !lost
	case expires:
		return c.alive && w.now >= c.expires && !lost // otherwise it is the same as closes
	case closes:
		return lost && c.alive
	case startsOver:
		return lost && (!c.alive || m.oldSessions && c.oldOrder == 0)
	case oldSessionEnds:
		return c.oldOrder > 0
	case isRevoked:
		return m.revokes && c.alive && c.open && w.now < c.expires && !lost
	case isEvicted:
		return m.evictions && c.inLine
	case writes:
		return m.writes && c.holding && c.valid() && c.write == write{}
	case writeArrives:
		return c.write != write{}
	default:
		return false
	}
}

func (c *client) valid() bool { return c.holding && c.lease.ValidAt(c.clock) }

// arrive carries out a request at the store.
func (m *model) arrive(w *modelState, c *client) {
	switch {
	case c.request == opening:
		c.request, c.alive, c.expires = opened, true, w.now.Add(m.ttl)
	case c.alive:
		c.request, c.expires = renewed, w.now.Add(m.ttl)
	default:
		c.request = refused
	}
}

// reply delivers the outcome of a request to the client.
func (m *model) reply(c *client) {
	before := c.lease
	before.Advance(c.clock)
	switch c.request {
	case opened:
		c.open, c.lease = true, m.onOpened(m.schedule, c.sent, c.clock)
	case renewed:
		m.onConfirmed(&c.lease, c.sent, c.clock)
		if before.State() == AtRisk && c.lease.State() == Held {
			m.seen[recoveredFromAtRisk]++
		}
		if before.State() == Lost {
			m.seen[replyAfterDeadline]++
		}
	case refused:
		c.lease.End(Expired, c.clock)
		if before.State() != Lost {
			m.seen[expiryReported]++
		}
	}
	c.request = noRequest
}

// notify delivers the oldest notification about its entry to the client.
func (m *model) notify(c *client) {
	admission := c.notification != goneNotification
	c.lease.Advance(c.clock)
	switch {
	case c.lease.State() == Lost: // notifications are ignored after the loss
		c.notification = noNotification
		if admission {
			m.seen[admissionReceivedAfterLoss]++
		}
	case admission:
		c.notification -= admittedNotification
		c.holding = true
		m.seen[clientHeld]++
	default:
		c.dropEntry()
	}
}

// arriveWrite lets the resource accept or refuse a write.
func (m *model) arriveWrite(w *modelState, c *client) (violation string) {
	wr := c.write
	c.write = write{}
	if wr.token < w.maxToken && !m.unguarded {
		m.seen[staleWriteRefused]++
		return ""
	}
	if wr.stale {
		return "a write was accepted after one of a hold that was admitted later"
	}
	w.maxToken = max(w.maxToken, wr.token)
	for i := range m.clients {
		other := &w.clients[i]
		if other.admitted > 0 && other.admitted < wr.admitted && other.lease.State() != Lost {
			other.stale = true
		}
		if other.write.admitted > 0 && other.write.admitted < wr.admitted {
			other.write.stale = true
		}
	}
	return ""
}

// end ends a session by decision of the store; the notification about its entry is in flight.
func (c *client) end() {
	c.alive = false
	if c.inLine {
		c.inLine = false
		c.gone()
	}
}

func (c *client) gone() {
	if c.notification == noNotification {
		c.notification = goneNotification
	} else {
		c.notification = admittedAndGoneNotification
	}
}

// dropEntry resets the state of an entry. A write in flight stays.
func (c *client) dropEntry() {
	c.joined, c.holding, c.ended, c.stale = false, false, false, false
	c.inLine, c.order, c.admitted, c.notification = false, 0, 0, noNotification
}

// startOver makes the client start again without a session. The entry of the lost session stays in
// the store.
func (m *model) startOver(c *client) {
	if c.alive && c.inLine {
		c.oldOrder = c.order
	}
	c.dropEntry()
	c.open, c.lease, c.alive, c.expires = false, Lease{}, false, 0
	c.request, c.sent = noRequest, 0
}

// admitEntries admits entries by the production rules of package line.
func (m *model) admitEntries(w *modelState, e event) {
	var (
		entries [2 * maxClients]line.Entry
		owners  [2 * maxClients]*client // nil for an entry of an old session, which gets no notification
	)
	n := 0
	insert := func(order int, owner *client) {
		at := n
		for ; at > 0 && entries[at-1].Order > uint64(order); at-- {
			entries[at], owners[at] = entries[at-1], owners[at-1]
		}
		entries[at], owners[at] = line.Entry{Order: uint64(order), Mode: line.Exclusive}, owner
		n++
	}
	for i := range m.clients {
		c := &w.clients[i]
		if c.inLine {
			insert(c.order, c)
		}
		if c.oldOrder > 0 {
			insert(c.oldOrder, nil)
		}
	}
	for i, admitted := range line.Admitted(entries[:n], 0) {
		if c := owners[i]; admitted && c != nil && c.admitted == 0 {
			w.admissions++
			c.admitted, c.notification = w.admissions, admittedNotification
			m.countSituations(w, c, e)
		}
	}
}

// countSituations counts the situations in which c is admitted.
func (m *model) countSituations(w *modelState, c *client, e event) {
	for i := range m.clients {
		other := &w.clients[i]
		switch {
		case other == c:
		case e.kind == withdraws && i == int(e.client):
			m.seen[handedOver]++
		case !other.holding || other.valid():
		case other.lease.State() == Lost && other.lease.Reason() == Deadline:
			m.seen[admittedAfterDeadline]++
		case other.lease.State() != Lost:
			m.seen[admittedBehindPausedHolder]++
			if other.clock == other.lease.Deadline() {
				m.seen[admittedAtHoldersDeadline]++
			}
		}
	}
}

// checkPromises returns how a state violates the promises of Stile, given a store that keeps its
// own and clocks within the margin.
func (m *model) checkPromises(w *modelState) string {
	if violation := m.checkOverlap(w); violation != "" {
		return violation
	}
	for i := range m.clients {
		c := &w.clients[i]
		if c.valid() && !(c.inLine && c.admitted > 0) {
			return fmt.Sprintf("client %d holds without an admitted entry in the line, so others may be admitted", i)
		}
		if c.ended && c.valid() {
			return fmt.Sprintf("client %d's hold had ended and is valid again", i)
		}
	}
	return ""
}

// checkOverlap reports two holds that are valid at the same time.
func (m *model) checkOverlap(w *modelState) string {
	for i := range m.clients {
		for j := range i {
			if w.clients[i].valid() && w.clients[j].valid() {
				m.seen[overlapped]++
				return fmt.Sprintf("clients %d and %d both hold", j, i)
			}
		}
	}
	return ""
}

// checkBroken returns how a state violates what must hold even if the store breaks its promise or
// an administrator removes entries. Holds may then overlap, but only until the notification
// arrives, and the later hold has the larger token.
func (m *model) checkBroken(w *modelState) string {
	m.checkOverlap(w)
	for i := range m.clients {
		c := &w.clients[i]
		if c.valid() && !c.inLine && c.notification != goneNotification {
			return fmt.Sprintf("client %d holds without an entry, and no notification of that is in flight", i)
		}
		for j := range m.clients {
			other := &w.clients[j]
			if c.valid() && other.valid() && c.admitted < other.admitted {
				if c.inLine {
					return fmt.Sprintf("client %d was admitted although client %d's entry is in the line", j, i)
				}
				if c.order >= other.order {
					return fmt.Sprintf("client %d was admitted before client %d and has the larger token", i, j)
				}
			}
		}
	}
	return ""
}

// A key is the part of a state that determines its possible futures: times relative to now, and the
// relative order of the entries. It does not depend on the numbering of the clients.
type key [maxClients + 1]uint64

func (m *model) key(w *modelState) key {
	var tokens [3 * maxClients]int // unordered; zero is none
	for i := range m.clients {
		c := &w.clients[i]
		tokens[3*i], tokens[3*i+1], tokens[3*i+2] = c.token(), c.write.token, c.oldOrder
	}
	slices.Sort(tokens[:])
	smaller := func(than int) (n int) { // the number of distinct smaller tokens
		for i, token := range tokens {
			if token != 0 && token < than && (i == 0 || token != tokens[i-1]) {
				n++
			}
		}
		return n
	}

	var k key
	for i := range m.clients {
		k[i] = m.clientKey(w, i, smaller)
	}
	slices.Sort(k[:m.clients])
	k[maxClients] = uint64(smaller(w.maxToken))
	return k
}

// token returns the order of the client's entry, or zero if nothing depends on it any more.
func (c *client) token() int {
	if c.inLine || c.holding || c.notification == admittedAndGoneNotification && c.lease.State() != Lost {
		return c.order
	}
	return 0
}

func (m *model) clientKey(w *modelState, i int, smaller func(int) int) uint64 {
	c := &w.clients[i]
	var p packer
	p.bit(i == 0 && m.lag > 0)
	p.number(c.sinceLag, 4)
	p.number(int(c.request), 3)
	if c.request != noRequest {
		p.number(clamp(c.clock-c.sent, m.schedule.Validity), 4)
	}
	p.bit(c.alive)
	p.bit(c.inLine)
	p.bit(c.holding)
	p.bit(c.ended)
	for _, token := range [...]int{c.token(), c.write.token, c.oldOrder} {
		p.bit(token > 0)
		p.number(smaller(token), 4)
	}
	p.bit(c.write.stale)

	switch {
	case !c.open:
		p.number(0, 2)
	case c.lease.State() == Lost:
		p.number(1, 2)
		return p.bits // from here its session may end at any moment, and notifications have no effect
	default:
		p.number(2, 2)
		p.number(clamp(c.clock-c.lease.confirmed, m.schedule.Validity), 4)
		p.bit(c.lease.inFlight)
		if !c.lease.inFlight {
			p.number(clamp(c.lease.next-c.clock, m.ttl), 4)
		}
	}
	if c.alive {
		p.number(clamp(c.expires-w.now, m.ttl), 4)
	}
	p.bit(c.joined)
	p.bit(c.admitted > 0)
	p.bit(c.stale)
	p.number(int(c.notification), 2)
	return p.bits
}

// clamp limits a duration to [0, limit], because larger ones make no difference.
func clamp(i Instant, limit time.Duration) int { return int(max(0, min(i, Instant(limit)))) }

// A packer packs small numbers into 64 bits.
type packer struct {
	bits uint64
	used int
}

func (p *packer) number(v, bits int) {
	if p.used += bits; v < 0 || v>>bits != 0 || p.used > 64 {
		panic(fmt.Sprintf("%d does not fit into %d bits, or all 64 bits are used", v, bits))
	}
	p.bits = p.bits<<bits | uint64(v)
}

func (p *packer) bit(b bool) {
	v := 0
	if b {
		v = 1
	}
	p.number(v, 1)
}

// String describes a state in one line.
func (m *model) String(w *modelState) string {
	var b strings.Builder
	for i := range m.clients {
		c := &w.clients[i]
		fmt.Fprintf(&b, "  [%d", i)
		if m.lag > 0 {
			fmt.Fprintf(&b, " clock %d", c.clock)
		}
		switch {
		case !c.open:
			b.WriteString(" no lease")
		case !c.lease.ValidAt(c.clock):
			b.WriteString(" lease lost")
		default:
			fmt.Fprintf(&b, " lease to %d", c.lease.Deadline())
		}
		if c.alive {
			fmt.Fprintf(&b, ", store to %d", c.expires)
		}
		if c.inLine {
			fmt.Fprintf(&b, ", entry %d", c.order)
		}
		if c.valid() {
			fmt.Fprintf(&b, ", HOLDS %d", c.order)
		}
		b.WriteString("]")
	}
	return b.String()
}

// An explorer is a breadth-first search through the states of a model.
type explorer struct {
	m         *model
	nodes     []node // every state reached, as a step from an earlier one
	violation string // of the last node; empty if none
	events    int    // number of steps tried
}

type node struct {
	from int32
	by   event
}

// explore searches until all states are visited, or one violates the promises, or there are more
// than limit.
func explore(m *model, limit int) (*explorer, error) {
	type stateAt struct {
		state modelState
		node  int32
	}
	all := m.events()
	x := &explorer{m: m, nodes: []node{{from: -1}}}
	first := m.initial()
	visited := map[key]struct{}{m.key(&first): {}}
	frontier, nextFrontier := []stateAt{{first, 0}}, []stateAt(nil)
	var next modelState
	for len(frontier) > 0 {
		for i := range frontier {
			for _, e := range all {
				if !m.possible(&frontier[i].state, e) {
					continue
				}
				x.events++
				violation := m.step(&frontier[i].state, e, &next)
				known := len(visited)
				visited[m.key(&next)] = struct{}{}
				if len(visited) == known && violation == "" {
					continue
				}
				x.nodes = append(x.nodes, node{frontier[i].node, e})
				if violation != "" {
					x.violation = violation
					return x, nil
				}
				if len(x.nodes) > limit {
					return x, fmt.Errorf("gave up after %d states", limit)
				}
				nextFrontier = append(nextFrontier, stateAt{next, int32(len(x.nodes) - 1)})
			}
		}
		frontier, nextFrontier = nextFrontier, frontier[:0]
	}
	return x, nil
}

// events returns all events, possible or not.
func (m *model) events() []event {
	all := []event{{kind: ticks}, {kind: lags}}
	for i := range uint8(m.clients) {
		for k := opens; k < kinds; k++ {
			all = append(all, event{k, i})
		}
	}
	return all
}

// trace returns the shortest path to the violation.
func (x *explorer) trace() string {
	var steps []event
	for at := len(x.nodes) - 1; at > 0; at = int(x.nodes[at].from) {
		steps = append(steps, x.nodes[at].by)
	}
	slices.Reverse(steps)
	var b strings.Builder
	w := x.m.initial()
	for _, e := range steps {
		before := w
		x.m.step(&before, e, &w)
		fmt.Fprintf(&b, "%3d  %-60s %s\n", w.now, e, x.m.String(&w))
	}
	return b.String() + x.violation
}

// steps returns the length of that path.
func (x *explorer) steps() int {
	n := 0
	for at := len(x.nodes) - 1; at > 0; at = int(x.nodes[at].from) {
		n++
	}
	return n
}

// missing returns the names of the wanted situations that did not occur.
func (m *model) missing(wanted ...situation) []string {
	var names []string
	for _, s := range wanted {
		if m.seen[s] == 0 {
			names = append(names, situationNames[s])
		}
	}
	slices.SortFunc(names, cmp.Compare[string])
	return names
}
