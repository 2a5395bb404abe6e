package page

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/danielgtaylor/huma/v2"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
)

// Limits of the memory for answers. An answer is complete in memory before it is sent, so that a client that reads
// slowly delays nobody; then it has requestTimeout to take it.
const (
	maxEntries     = 5000     // of an answer
	maxAnswerBytes = 4 << 20  // of what an answer shows, in memory; as JSON it may be several times as large
	maxEncoders    = 4        // answers that are encoded at the same time
	maxUnsentBytes = 64 << 20 // of the answers that clients have yet to take, together
)

// answers limits the memory of all answers.
type answers struct {
	encoders chan struct{} // a value for each answer that is being encoded
	maxBytes int64
	bytes    atomic.Int64 // of what clients have yet to take
}

// take reports whether there is room for an answer. Then give must be called when it has been sent.
func (a *answers) take(bytes int) bool {
	if a.bytes.Add(int64(bytes)) <= a.maxBytes {
		return true
	}
	a.give(bytes)
	return false
}

func (a *answers) give(bytes int) { a.bytes.Add(-int64(bytes)) }

// marshal returns a value as JSON, on one line.
func (a *answers) marshal(v any) ([]byte, error) {
	a.encoders <- struct{}{}
	defer func() { <-a.encoders }()
	return json.Marshal(v)
}

// format encodes the bodies of answers. It ignores errors of writing: the client is gone, or slow.
func (a *answers) format() huma.Format {
	marshal := func(w io.Writer, v any) error {
		text, err := a.marshal(v)
		if err == nil {
			_, _ = w.Write(append(text, '\n'))
		}
		return err
	}
	return huma.Format{Marshal: marshal, Unmarshal: json.Unmarshal}
}

// keep returns a handler that sends the answers of another one when they are complete. It refuses a GET if clients have
// yet to take too many other answers; a break has been done by then.
func (a *answers) keep(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		complete := &answer{header: w.Header(), status: http.StatusOK}
		next.ServeHTTP(complete, r)
		if r.Method == http.MethodGet {
			size := complete.body.Cap()
			if !a.take(size) {
				refuseForNow(w, "clients have yet to take many large answers; try again later")
				return
			}
			defer a.give(size)
		}
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

// cut returns a line with the entries for which an answer has room, the first ones, and how many are left out.
func cut(l stile.Line) (_ stile.Line, omitted int) {
	entries, bytes := maxEntries, maxAnswerBytes
	fit := func(all []stile.Entry) []stile.Entry {
		n := 0
		for ; n < len(all) && entries > 0 && bytes > 0; n++ {
			entries--
			bytes -= observe.SizeOf(&all[n])
		}
		omitted += len(all) - n
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
