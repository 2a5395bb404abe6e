package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
)

const (
	heartbeatInterval = 15 * time.Second
	eventTimeout      = 10 * time.Second // for a reader to take a message
	// maxChangedLines limits the size of a message. A reader that has missed more reads all lines, in pages.
	maxChangedLines = 2000
	maxEventBytes   = 2 * maxAnswerBytes // of the lines and events of a message, in memory
)

type eventsInput struct {
	Prefix      string `query:"prefix" doc:"Only lines whose name begins with it."`
	After       string `query:"after" doc:"The update of an answer: only what has changed since. Otherwise from now on."`
	LastEventID string `header:"Last-Event-ID" doc:"The same, and takes precedence. Browsers send it when they connect again."`
}

func (p *Page) registerEvents(api huma.API) {
	schemas := api.OpenAPI().Components.Schemas
	var texts []string
	for _, e := range []struct {
		event, text string
		data        reflect.Type
	}{
		{"lines", "lines have changed", reflect.TypeFor[changes]()},
		{"status", "how recent the lines are; sent at first, and when it changes", reflect.TypeFor[Status]()},
		{"reset", "some changes are not known any more: read all lines again, then go on", reflect.TypeFor[reset]()},
	} {
		ref := schemas.Schema(e.data, true, "").Ref
		texts = append(texts, fmt.Sprintf("%s: %s (data: %s)", e.event, e.text, ref))
	}
	huma.Register(api, huma.Operation{
		OperationID: "events", Method: http.MethodGet, Path: eventsPath,
		Summary: "Changes as server-sent events",
		Description: "Each event has an ID, with which a reader can resume. At most ten events a second are sent; changes in between " +
			"are merged. A comment every 15 seconds keeps the connection alive. The events are:\n\n- " + strings.Join(texts, "\n- "),
		Responses: map[string]*huma.Response{"200": {
			Description: "Events until the client or the server closes the connection",
			Content:     map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}}},
		}},
	}, func(_ context.Context, in *eventsInput) (*huma.StreamResponse, error) {
		select {
		case p.readers <- struct{}{}:
		default:
			return nil, huma.Error503ServiceUnavailable(fmt.Sprintf("there are %d readers of events already; try again later", maxReaders))
		}
		after := in.LastEventID
		if after == "" {
			after = in.After
		}
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			defer func() { <-p.readers }()
			r, w := humago.Unwrap(hc)
			p.stream(r.Context(), w, in.Prefix, after)
		}}, nil
	})
}

// updateID returns the ID of an update, which has a meaning only for this run of the server.
func (p *Page) updateID(n uint64) string { return p.observer.Boot() + "-" + strconv.FormatUint(n, 10) }

// updateNumber returns the number of an update of this run; ok is false if it is none.
func (p *Page) updateNumber(id string) (n uint64, ok bool) {
	boot, text, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil && boot == p.observer.Boot() && n <= p.observer.Last()
}

// stream sends events to one reader until it is gone.
func (p *Page) stream(ctx context.Context, w http.ResponseWriter, prefix, after string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ending, cancel)()
	to := &reader{w: w, control: http.NewResponseController(w), page: p}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy must not keep events back

	seen := p.observer.Status()
	number, known := p.updateNumber(after)
	if after == "" {
		number, known = p.observer.Last(), true
	}
	if !known {
		number = p.observer.Last()
		to.send("reset", number, reset{p.updateID(number)})
	}
	to.send("status", number, statusOf(seen))
	for ctx.Err() == nil {
		if now := p.observer.Status(); differs(now, seen) {
			seen = now
			to.send("status", number, statusOf(seen))
		}
		number = p.sendUpdates(ctx, to, number, prefix)
		if to.err != nil {
			return
		}
		if time.Since(to.last) >= heartbeatInterval {
			to.heartbeat(number)
		}
		waiting, cancel := context.WithDeadline(ctx, to.last.Add(heartbeatInterval))
		p.observer.Wait(waiting, number, seen)
		cancel()
	}
}

// differs reports whether a reader must be told of a status.
func differs(a, b observe.Status) bool { return a.Read != b.Read || (a.Err == nil) != (b.Err == nil) }

// sendUpdates sends what has changed after an update, and returns the number of the last one.
func (p *Page) sendUpdates(ctx context.Context, to *reader, after uint64, prefix string) (last uint64) {
	if p.observer.Last() == after {
		return after
	}
	var text []byte
	kept := false
	if !p.answers.inside(ctx, func() {
		text, last = p.changesAfter(to, after, prefix)
		kept = to.keep(text)
	}) {
		return after // the reader is gone
	}
	if kept {
		to.write(text)
	}
	return last
}

// changesAfter returns a message with what has changed after an update, nil if that is nothing, and the number of the
// last update.
func (p *Page) changesAfter(to *reader, after uint64, prefix string) (text []byte, last uint64) {
	updates, last, known := p.observer.Updates(after)
	if !known || len(updates) > maxChangedLines {
		return to.message("reset", last, reset{p.updateID(last)}), last
	}
	updates = slices.DeleteFunc(updates, func(u observe.Update) bool { return !strings.HasPrefix(u.Line.Name, prefix) })
	if len(updates) == 0 {
		return nil, last
	}
	changed, ok := changesWithin(updates, maxAnswerBytes)
	if !ok { // large lines that change all the time must not keep the changes of others from the reader
		changed, ok = changesWithin(updates, maxAnswerBytes/len(updates))
		for i := range changed.Lines {
			ok = ok && showsMost(changed.Lines[i].Line, updates[i].Line)
		}
	}
	if !ok {
		return to.message("reset", last, reset{p.updateID(last)}), last
	}
	return to.message("lines", last, changed), last
}

// showsMost reports whether a line that was cut has all holders, and a waiter if there are any: without them it would look
// like one that is free.
func showsMost(cut Line, l stile.Line) bool {
	return len(cut.Holders) == len(l.Holders) && (len(cut.Waiters) > 0 || len(l.Waiters) == 0)
}

// changesWithin returns what has changed, with lines that are cut to so many bytes. It returns false if a message has no
// room for that.
func changesWithin(updates []observe.Update, maxLineBytes int) (changed changes, ok bool) {
	bytes := room{maxEventBytes}
	for _, u := range updates {
		l := lineWithin(u.Line, maxLineBytes)
		if !bytes.fits(sizeOf(l.Line) + observe.SizeOfEvents(u.Events)) {
			return changes{}, false
		}
		changed.Lines = append(changed.Lines, changedLine{l, eventsOf(u.Events)})
	}
	return changed, true
}

// reader is a client that reads events.
type reader struct {
	w       http.ResponseWriter
	control *http.ResponseController
	page    *Page
	last    time.Time // when something was last sent
	err     error     // of the first failure
}

func (r *reader) send(event string, number uint64, data any) {
	r.sendText(r.message(event, number, data))
}

// heartbeat also moves the ID on, for a reader whose prefix no change had for long.
func (r *reader) heartbeat(number uint64) {
	r.sendText([]byte(": alive\nid: " + r.page.updateID(number) + "\n\n"))
}

func (r *reader) sendText(text []byte) {
	if r.keep(text) {
		r.write(text)
	}
}

// message returns the text of an event; nil if its data has no JSON.
func (r *reader) message(event string, number uint64, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		r.err = err
		return nil
	}
	return fmt.Appendf(nil, "event: %s\nid: %s\ndata: %s\n\n", event, r.page.updateID(number), text)
}

// keep reports whether a text must be written. It is not if it is empty, or the stream has ended. If clients have yet
// to take too many others, the stream ends: the reader can resume it.
func (r *reader) keep(text []byte) bool {
	if r.err == nil && len(text) > 0 && !r.page.answers.take(cap(text)) {
		r.err = errors.New("clients have yet to take many large answers")
	}
	return r.err == nil && len(text) > 0
}

// write sends a text that was kept.
func (r *reader) write(text []byte) {
	defer r.page.answers.give(cap(text))
	r.last = time.Now()
	_ = r.control.SetWriteDeadline(r.last.Add(eventTimeout))
	if _, r.err = r.w.Write(text); r.err == nil {
		r.err = r.control.Flush()
	}
}
