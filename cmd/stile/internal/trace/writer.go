package trace

import (
	"bufio"
	"encoding/json"
	"io"
	"time"
)

// event is an event of the format. The texts are last: Perfetto looks for ph and ts before it decodes an
// event, and gives up at the escapes that texts may contain.
type event struct {
	Phase string `json:"ph"`
	TS    int64  `json:"ts"` // microseconds since 1970
	PID   int    `json:"pid"`
	TID   int    `json:"tid"`
	ID    int    `json:"id,omitempty"` // of an arrow
	Bind  string `json:"bp,omitempty"` // "e": an arrow ends in the slice that is open
	Scope string `json:"s,omitempty"`  // "t": a mark belongs to its thread
	Cat   string `json:"cat,omitempty"`
	Name  string `json:"name"`
	Args  *args  `json:"args,omitempty"`
}

// args are what a viewer shows of a slice. Name is for events that announce a process or thread.
type args struct {
	Name    string            `json:"name,omitempty"`
	Lock    string            `json:"lock,omitempty"`
	Token   string            `json:"token,omitempty"` // a number that JSON readers may not hold exactly
	Mode    string            `json:"mode,omitempty"`
	Host    string            `json:"host,omitempty"`
	Owner   string            `json:"owner,omitempty"`
	Reason  string            `json:"reason,omitempty"`
	Value   string            `json:"value,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Session string            `json:"session,omitempty"`
	Cause   string            `json:"cause,omitempty"` // of the end
	Note    string            `json:"note,omitempty"`
}

// writer writes the events of a trace, an array.
type writer struct {
	out       *bufio.Writer
	json      *json.Encoder
	separator string // before the next event
	started   time.Time
}

func newWriter(to io.Writer, started time.Time) writer {
	out := bufio.NewWriter(to)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return writer{out: out, json: encoder, separator: "[\n", started: started}
}

// ts returns the time stamp of a moment. The steps of the clock during the recording have no effect.
func (w *writer) ts(t time.Time) int64 {
	return w.started.UnixMicro() + t.Sub(w.started).Microseconds()
}

// write writes an event. Errors are returned by flush.
func (w *writer) write(e event) {
	_, _ = w.out.WriteString(w.separator)
	_ = w.json.Encode(e) // ends the line
	w.separator = ","
}

// finish ends the array.
func (w *writer) finish() { _, _ = w.out.WriteString("]\n") }

// flush returns the error of this or an earlier write.
func (w *writer) flush() error { return w.out.Flush() }
