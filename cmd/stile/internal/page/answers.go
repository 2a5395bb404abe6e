package page

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"sync/atomic"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
)

// Limits of the memory for answers. An answer is complete in memory before it is sent, so that a client that reads
// slowly delays no other. That client has requestTimeout to take the answer. An answer may need more memory while it is
// made than when it is complete, so few are made at the same time.
const (
	maxEntries     = 5000     // of an answer
	maxAnswerBytes = 4 << 20  // of what an answer shows, in memory; as JSON it may be several times as large
	maxAtOnce      = 4        // answers that are made at the same time
	maxUnsentBytes = 64 << 20 // of the answers that clients have yet to take, together
)

// answers limits the memory of all answers.
type answers struct {
	places   chan struct{} // a value for each answer that is being made
	maxBytes int64
	bytes    atomic.Int64 // of what clients have yet to take
}

// inside calls f, which makes an answer, when there is a place for it. It returns false if ctx ends before.
func (a *answers) inside(ctx context.Context, f func()) bool {
	select {
	case a.places <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-a.places }()
	f()
	return true
}

// outside gives up the place while it calls f: f waits for the store, and other answers must not wait for that.
func (a *answers) outside(f func()) {
	<-a.places
	defer func() { a.places <- struct{}{} }()
	f()
}

// take reports whether there is room for an answer. Then give must be called when it has been sent. There is room for
// one answer of any size.
func (a *answers) take(bytes int) bool {
	if all := a.bytes.Add(int64(bytes)); all <= a.maxBytes || all == int64(bytes) {
		return true
	}
	a.give(bytes)
	return false
}

func (a *answers) give(bytes int) { a.bytes.Add(-int64(bytes)) }

// keep returns a handler that sends the answers of another one when they are complete. It refuses a request if clients
// have yet to take too many other answers.
func (a *answers) keep(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		complete := &answer{header: make(http.Header), status: http.StatusOK}
		size, taken := 0, false
		if !a.inside(r.Context(), func() {
			next.ServeHTTP(complete, r)
			size = complete.body.Cap()
			taken = a.take(size)
		}) {
			refuseForNow(w, "the request has ended before its turn: many answers are being made; try again later")
			return
		}
		if !taken {
			refuseForNow(w, "clients have yet to take many large answers; try again later")
			return
		}
		defer a.give(size)
		maps.Copy(w.Header(), complete.header)
		w.WriteHeader(complete.status)
		_, _ = w.Write(complete.body.Bytes()) // the client may be gone, or slow
	})
}

// answer keeps an answer until it is complete.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter].
func (a *answer) WriteHeader(status int) { a.status = status }

// Write implements [http.ResponseWriter].
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }

// room is what an answer has room for.
type room struct{ bytes int }

// fits reports whether there is room for something, and takes the room for it then.
func (r *room) fits(bytes int) bool {
	if bytes > r.bytes {
		return false
	}
	r.bytes -= bytes
	return true
}

// cut returns a line with the entries for which so many bytes are enough, the first ones and at most maxEntries, and how
// many are left out.
func cut(l stile.Line, maxBytes int) (_ stile.Line, omitted int) {
	entries, bytes := maxEntries, room{maxBytes - sizeOf(stile.Line{Name: l.Name, Remarks: l.Remarks})}
	fit := func(all []stile.Entry) []stile.Entry {
		n := 0
		for ; n < len(all) && entries > 0 && bytes.fits(observe.SizeOf(&all[n])); n++ {
			entries--
		}
		if n < len(all) {
			omitted += len(all) - n
			entries = 0 // what follows is not shown without these
		}
		return all[:n]
	}
	l.Holders, l.Waiters = fit(l.Holders), fit(l.Waiters)
	return l, omitted
}

// sizeOf returns about how many bytes of memory a line takes.
func sizeOf(l stile.Line) int {
	n := len(l.Name)
	for _, remark := range l.Remarks {
		n += len(remark)
	}
	for _, entries := range [][]stile.Entry{l.Holders, l.Waiters} {
		for i := range entries {
			n += observe.SizeOf(&entries[i])
		}
	}
	return n
}
