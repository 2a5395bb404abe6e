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

// This file is a model of everything around a [Lease]: clients, their clocks, the network and a store. The lease in
// it is the shipping one. The explorer in explore_test.go walks through all that can happen in the model, in every
// order, and looks for two clients that hold what only one may.
//
// One lock; up to three clients. A client opens a session, joins the line, hears of its admission, holds, leaves,
// and begins again. At any moment any client may be paused, which is simply that nothing happens to it for a while.
// Requests and replies take any time, or get lost, or are reported as failed and carried out all the same, or are
// carried out again later. Time is a step like any other. Nothing bounds the number of steps: states that differ
// only in what time it is, in the names of the clients, or in numbers that only their order matters of, are one
// state, and so there is an end to them.
//
// What is simpler than life: joining and leaving are one step each, since a client that joins but is not in the line
// yet, or has left but is in it still, holds nothing; and renewals that were given up or doubled may arrive at any time
// in the life of a session, even if none was sent.

const maxClients = 3

// model is what can happen, and what must not.
type model struct {
	clients  int
	ttl      time.Duration // by the store's clock
	schedule Schedule      // by the client's

	// lag lets the clock of client 0 lose a tick, but not two within so many ticks. Zero: its clock is exact.
	lag int
	// revokes lets the store end sessions that it has just confirmed: a broken promise of the store.
	revokes bool
	// evictions lets an administrator take an entry out whose session lives on.
	evictions bool
	// writes lets holders write to a resource that looks at tokens. It takes any time from a holder's look at its
	// lease to the arrival of the write.
	writes bool
	// unguarded makes the resource accept every write.
	unguarded bool
	// lingering lets a client open a session while its lost one is still in the store.
	oldSessions bool

	// The three places where a mistake can be planted; see newModel for the shipping ones.
	onOpened    func(schedule Schedule, sent, now Instant) Lease
	onConfirmed func(l *Lease, sent, now Instant)
	onFailed    func(l *Lease, sent, now Instant)

	// check says what is wrong with a state; empty if nothing is.
	check func(m *model, w *modelState) string
	// saw counts the states and steps of each kind that matters, so that none is missing unnoticed.
	seen [situations]int
}

// newModel returns the model of the shipping code, in which the store keeps its promises.
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

// world is one state: a value, so that going on from it leaves it as it was.
type modelState struct {
	now        Instant // the store's clock
	order      int     // the last place in the line that was given out
	admissions int     // how many there have been
	maxToken   int     // the largest token that the resource has seen
	clients    [maxClients]client
}

type client struct {
	// What the client knows.
	clock   Instant
	open    bool // it has a session, whose life is lease
	lease   Lease
	joined  bool // it asked for an entry and wants it still
	holding bool // it was told of its admission, and not yet that its entry is gone
	ended   bool // the hold has been found invalid once
	stale   bool // a hold admitted later has written already

	// What is on its way.
	request      request
	sent         Instant
	notification notification
	write        write

	// What the store knows.
	sinceLag int // ticks since the client's clock lost one
	alive    bool
	expires  Instant
	inLine   bool
	order    int // of its entry; stays after it as the token
	admitted int // the number of its admission; zero before
	old      int // the order of the entry of a lost session that is still there; zero if there is none
}

// request is a client's request for its session and what became of it. A client has one at a time.
type request uint8

const (
	noRequest request = iota
	opening           // sent
	opened            // carried out, the reply is on its way
	renewing          // sent
	renewed           // carried out, the reply is on its way
	refused           // the session had ended, the reply is on its way
)

// news is what the store has to tell of an entry and the client has not heard.
type notification uint8

const (
	noNotification notification = iota
	admittedNotification
	goneNotification
	admittedAndGoneNotification // in this order
)

// write is a write on its way to the resource; the zero write is none.
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

// event is one step. All are atomic: what takes time consists of several.
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
	lags:           "a tick passes, which client 0's clock misses",
	opens:          "client %d asks for a session",
	renews:         "client %d looks at its clock and renews if it is due",
	arrives:        "client %d's request is carried out",
	replies:        "client %d gets its reply",
	givesUp:        "client %d gives its request up",
	isRenewedLate:  "client %d's session is renewed by a request that was given up or doubled",
	joins:          "client %d joins the line",
	isNotified:     "client %d hears of its standing",
	withdraws:      "client %d leaves",
	expires:        "client %d's session is ended by the store in due time",
	closes:         "client %d, having lost it, closes its session",
	startsOver:     "client %d, having lost its session, begins again",
	oldSessionEnds: "client %d's old session ends",
	isRevoked:      "client %d's session is ended by the store too early",
	isEvicted:      "client %d's entry is removed by somebody else",
	writes:         "client %d finds its hold valid and writes",
	writeArrives:   "client %d's write arrives",
}

func (e event) String() string {
	if e.kind <= lags {
		return eventTexts[e.kind]
	}
	return fmt.Sprintf(eventTexts[e.kind], e.client)
}

// sight is something that an explorer worth its name must have come across.
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
	clientHeld:                 "somebody held",
	handedOver:                 "a hold was released to another client",
	admittedAfterDeadline:      "a client was admitted after another lost by its deadline",
	admittedBehindPausedHolder: "a client was admitted whose predecessor has not looked at its clock since it lost",
	admittedAtHoldersDeadline:  "such a client was admitted in the very tick after which its predecessor was not valid",
	recoveredFromAtRisk:        "a lease recovered from being at risk",
	replyAfterDeadline:         "a reply came after the deadline",
	lateRenewalExtended:        "a session lived on by a request that was given up or doubled",
	failedButCarriedOut:        "a request that was carried out counted as failed",
	expiryReported:             "a client was told that its session had ended, before its deadline",
	admissionReceivedAfterLoss: "an admission was heard of after the session was lost",
	queuedBehindOwnOldEntry:    "a client waited behind the entry of its own lost session",
	overlapped:                 "two conflicting holds were valid",
	staleWriteRefused:          "a stale write was refused",
}

// step makes next what becomes of w by e, which must be possible, and says what is wrong with it.
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
			c.alive = false // a session without entries that nobody knows of: it does not matter
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
		if c.old > 0 {
			m.seen[queuedBehindOwnOldEntry]++
		}
		m.settle(next, e)
	case isNotified:
		m.notify(c)
	case withdraws:
		c.dropEntry()
		m.settle(next, e)
	case expires, isRevoked:
		c.end()
		m.settle(next, e)
	case closes:
		c.alive, c.inLine = false, false
		m.settle(next, e)
	case startsOver:
		m.startOver(c)
	case oldSessionEnds:
		c.old = 0
		m.settle(next, e)
	case isEvicted:
		c.inLine = false
		c.gone()
		m.settle(next, e)
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
		return c.alive && w.now >= c.expires && !lost // else it is as if it closes
	case closes:
		return lost && c.alive
	case startsOver:
		return lost && (!c.alive || m.oldSessions && c.old == 0)
	case oldSessionEnds:
		return c.old > 0
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

// arrive carries a request out at the store.
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

// reply brings the outcome of a request to the client.
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

// hear brings the oldest news of its entry to the client.
func (m *model) notify(c *client) {
	admission := c.notification != goneNotification
	c.lease.Advance(c.clock)
	switch {
	case c.lease.State() == Lost: // it has no ears for it
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

// land lets the resource decide about a write.
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

// end takes a session away, as the store does of itself, and lets the client hear of it some time.
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

// dropEntry forgets an entry. A write that is on its way stays so.
func (c *client) dropEntry() {
	c.joined, c.holding, c.ended, c.stale = false, false, false, false
	c.inLine, c.order, c.admitted, c.notification = false, 0, 0, noNotification
}

// forget makes the client begin again without a session. What the lost one has in the store stays there.
func (m *model) startOver(c *client) {
	if c.alive && c.inLine {
		c.old = c.order
	}
	c.dropEntry()
	c.open, c.lease, c.alive, c.expires = false, Lease{}, false, 0
	c.request, c.sent = noRequest, 0
}

// settle admits those whose turn it is, by the shipping rules.
func (m *model) settle(w *modelState, e event) {
	var (
		entries [2 * maxClients]line.Entry
		owners  [2 * maxClients]*client // nil for an entry of an old session: nobody is told of its turn
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
		if c.old > 0 {
			insert(c.old, nil)
		}
	}
	for i, admitted := range line.Admitted(entries[:n]) {
		if c := owners[i]; admitted && c != nil && c.admitted == 0 {
			w.admissions++
			c.admitted, c.notification = w.admissions, admittedNotification
			m.countSituations(w, c, e)
		}
	}
}

// lookAround notes what is remarkable about the admission of c.
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

// checkPromises says what is wrong with a state if the store keeps its promises and clocks keep theirs.
func (m *model) checkPromises(w *modelState) string {
	if violation := m.checkOverlap(w); violation != "" {
		return violation
	}
	for i := range m.clients {
		c := &w.clients[i]
		if c.valid() && !(c.inLine && c.admitted > 0) {
			return fmt.Sprintf("client %d holds without an admitted entry in the line: others may be let in", i)
		}
		if c.ended && c.valid() {
			return fmt.Sprintf("client %d's hold had ended and is valid again", i)
		}
	}
	return ""
}

// checkOverlap says which two holds are valid.
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

// checkBroken says what is wrong with a state even if the store breaks its promise or entries are removed by hand.
// Holds may overlap then, but only until the news arrives, and never with the wrong token.
func (m *model) checkBroken(w *modelState) string {
	m.checkOverlap(w)
	for i := range m.clients {
		c := &w.clients[i]
		if c.valid() && !c.inLine && c.notification != goneNotification {
			return fmt.Sprintf("client %d holds without an entry, and no news of that is on its way", i)
		}
		for j := range m.clients {
			other := &w.clients[j]
			if c.valid() && other.valid() && c.admitted < other.admitted {
				if c.inLine {
					return fmt.Sprintf("client %d was admitted although client %d's entry stands", j, i)
				}
				if c.order >= other.order {
					return fmt.Sprintf("client %d was admitted before client %d and has the larger token", i, j)
				}
			}
		}
	}
	return ""
}

// key is what of a state matters for what can come after it: how far moments are from the present, and in which
// order the places in the line are. Clients that are alike can be exchanged.
type key [maxClients + 1]uint64

func (m *model) key(w *modelState) key {
	var tokens [3 * maxClients]int // without order; zeros are none
	for i := range m.clients {
		c := &w.clients[i]
		tokens[3*i], tokens[3*i+1], tokens[3*i+2] = c.token(), c.write.token, c.old
	}
	slices.Sort(tokens[:])
	smaller := func(than int) (n int) { // how many of them, each counted once
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

// token is the order of the client's entry, or zero if nothing depends on it any more.
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
		p.number(clamp(c.clock-c.sent, m.schedule.Valid), 4)
	}
	p.bit(c.alive)
	p.bit(c.inLine)
	p.bit(c.holding)
	p.bit(c.ended)
	for _, token := range [...]int{c.token(), c.write.token, c.old} {
		p.bit(token > 0)
		p.number(smaller(token), 4)
	}
	p.bit(c.write.stale)

	switch {
	case !c.open:
		p.number(0, 2)
	case c.lease.State() == Lost:
		p.number(1, 2)
		return p.bits // its session may end at any moment from here on, and no news matters
	default:
		p.number(2, 2)
		p.number(clamp(c.clock-c.lease.confirmed, m.schedule.Valid), 4)
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

// clamp cuts off what is too long ago, or too far in the future, to matter.
func clamp(i Instant, most time.Duration) int { return int(max(0, min(i, Instant(most)))) }

// packer writes small numbers into one large one.
type packer struct {
	bits uint64
	used int
}

func (p *packer) number(v, bits int) {
	if p.used += bits; v < 0 || v>>bits != 0 || p.used > 64 {
		panic(fmt.Sprintf("%d does not fit into %d bits, or there are none left", v, bits))
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

// String draws a state in a line, for traces.
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
			fmt.Fprintf(&b, ", place %d", c.order)
		}
		if c.valid() {
			fmt.Fprintf(&b, ", HOLDS %d", c.order)
		}
		b.WriteString("]")
	}
	return b.String()
}

// explorer is a walk through all states of a model, in order of their distance from the first.
type explorer struct {
	m         *model
	nodes     []node // every state that was reached, as a step from an earlier one
	violation string // what was found, in the last of nodes
	events    int    // how many steps were tried
}

type node struct {
	from int32
	by   event
}

// explore walks until there is nothing new, or something is wrong, or there are more than limit states.
func explore(m *model, limit int) (*explorer, error) {
	type place struct {
		state modelState
		node  int32
	}
	all := m.events()
	x := &explorer{m: m, nodes: []node{{from: -1}}}
	first := m.initial()
	visited := map[key]struct{}{m.key(&first): {}}
	here, there := []place{{first, 0}}, []place(nil)
	var next modelState
	for len(here) > 0 {
		for i := range here {
			for _, e := range all {
				if !m.possible(&here[i].state, e) {
					continue
				}
				x.events++
				violation := m.step(&here[i].state, e, &next)
				known := len(visited)
				visited[m.key(&next)] = struct{}{}
				if len(visited) == known && violation == "" {
					continue
				}
				x.nodes = append(x.nodes, node{here[i].node, e})
				if violation != "" {
					x.violation = violation
					return x, nil
				}
				if len(x.nodes) > limit {
					return x, fmt.Errorf("gave up after %d states", limit)
				}
				there = append(there, place{next, int32(len(x.nodes) - 1)})
			}
		}
		here, there = there, here[:0]
	}
	return x, nil
}

// events returns all that could ever happen.
func (m *model) events() []event {
	all := []event{{kind: ticks}, {kind: lags}}
	for i := range uint8(m.clients) {
		for k := opens; k < kinds; k++ {
			all = append(all, event{k, i})
		}
	}
	return all
}

// trace tells the shortest way to what was found.
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

// steps is how long the way is to what was found.
func (x *explorer) steps() int {
	n := 0
	for at := len(x.nodes) - 1; at > 0; at = int(x.nodes[at].from) {
		n++
	}
	return n
}

// unseen returns which of the sights the model never came across.
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
