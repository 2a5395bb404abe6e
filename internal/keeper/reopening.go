package keeper

import "time"

// A Reopening says when a client may open the next session after one was lost: at once, unless it has lost
// sessions in a row, each soon after it was opened. Then it waits for a random time of up to a few TTLs.
//
// To open and to end a session costs a store much more than to renew it. When a store was slow for a TTL, all
// its clients lose their sessions. If all of them opened others at once, again and again, the store could stay too
// slow to confirm them, long after the cause is gone: a metastable failure (Bronson, Aghayev, Charapko and Zhu,
// "Metastable failures in distributed systems", HotOS 2021).
//
// The zero value is that of a client that has opened no session. A Reopening is not safe for concurrent use.
type Reopening struct {
	opened    Instant // when the last session was opened
	inRow     int
	notBefore Instant // valid if inRow > 1; there is no wait after a single loss, which may be an accident
}

const (
	// A session was lost soon if that was less than soonTTLs TTLs after it was opened.
	soonTTLs = 4
	// maxWaitTTLs and maxWait bound a wait. If clients lose all their sessions, about a quarter of them open new
	// ones in each TTL, or in each half minute if the TTL is longer.
	maxWaitTTLs = 8
	maxWait     = 2 * time.Minute
)

// Opened records that a session was opened.
func (r *Reopening) Opened(now Instant) { r.opened = now }

// Lost records that the last session was lost. The client calls it once for each loss, when it needs the next
// session. The later that is, the longer the session seems to have been there: a client that has needed none for a
// while has waited already. random is at least 0 and less than 1.
//
// An attempt to open a session that fails is not a loss: it takes as long as the store allows, and then the
// client's caller has the error.
func (r *Reopening) Lost(now Instant, ttl time.Duration, random float64) {
	if now.Sub(r.opened) >= soonTTLs*ttl {
		r.inRow = 0
		return
	}
	r.inRow++
	if r.inRow > 1 {
		most := min(min(time.Duration(1)<<min(r.inRow, 10), maxWaitTTLs)*ttl, maxWait)
		r.notBefore = now.Add(time.Duration(random * float64(most)))
	}
}

// InRow returns how many sessions in a row were lost soon after they were opened.
func (r *Reopening) InRow() int { return r.inRow }

// Wait returns how long to wait before the next session is opened; at most 0 means not at all.
func (r *Reopening) Wait(now Instant) time.Duration {
	if r.inRow <= 1 {
		return 0
	}
	return r.notBefore.Sub(now)
}
