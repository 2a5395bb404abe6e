package page_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/page"
)

// changes is the data of an event of the name lines.
type changes struct {
	Lines []struct {
		Line   page.Line
		Events []page.Event
	}
}

// follower keeps lines as a page in a browser does.
type follower struct {
	lines  map[string]page.Line // by key
	events map[string][]string  // by key, as text
	resets int
}

func newFollower() *follower {
	return &follower{lines: map[string]page.Line{}, events: map[string][]string{}}
}

func (f *follower) apply(t *testing.T, ev event) {
	t.Helper()
	switch ev.name {
	case "reset":
		f.resets++
	case "lines":
		var c changes
		if err := json.Unmarshal([]byte(ev.data), &c); err != nil {
			t.Fatalf("%v: %s", err, ev.data)
		}
		for _, changed := range c.Lines {
			f.lines[changed.Line.Key] = changed.Line
			for _, e := range changed.Events {
				f.events[changed.Line.Key] = append(f.events[changed.Line.Key], eventText(e))
			}
		}
	}
}

func eventText(e page.Event) string {
	return fmt.Sprint(e.What, e.Entry.Token, e.Entry.Session, e.Time.UnixNano(), e.Cause)
}

// A reader that is cut off again and again, and resumes, sees every event of every line once, and in the
// end what the store says.
func TestEvents_resumeWithoutGapOrDouble(t *testing.T) {
	t.Parallel()
	resumeUnderChurn(t, start(t, nil), 200)
}

// resumeUnderChurn lets clients lock until a reader, whose connection is lost again and again, has received
// enough events.
func resumeUnderChurn(t *testing.T, w *world, enough int) {
	t.Helper()
	first := w.awaitLines(0)
	const names, clients = 7, 5
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var churn sync.WaitGroup
	for i := range clients {
		c := w.client(fmt.Sprint("client ", i))
		random := rand.New(rand.NewPCG(uint64(i), 1))
		churn.Go(func() {
			for ctx.Err() == nil {
				h, err := c.Mutex(fmt.Sprintf("name/%d", random.IntN(names))).Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond) // some are seen by a reading, some are not
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if i == 0 {
				if _, err := c.Mutex("stays").Lock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}

	f := newFollower()
	random := rand.New(rand.NewPCG(1, 2))
	id, connections := first.Update, 0
	for done := false; !done; {
		if f.count() >= enough {
			stop()
			churn.Wait()
			done = true // one more connection, until nothing is missing
		}
		stream := w.events("?after="+first.Update, id) // the header takes precedence
		if connections++; connections == 1 {
			stream.close()
			stream = w.events("?after="+first.Update, "")
			stream.id = id
		}
		for n := 1 + random.IntN(4); n > 0 || done; n-- {
			ev, err := stream.next()
			if err != nil {
				t.Fatal(err)
			}
			f.apply(t, ev)
			if done && f.agrees(w) {
				break
			}
		}
		id = stream.id
		stream.close()
	}
	if f.resets > 0 || connections < 3 {
		t.Errorf("got %d resets and %d connections, want none and several", f.resets, connections)
	}
	all := 0
	for i := range names {
		name := fmt.Sprintf("name/%d", i)
		var history struct{ Events []page.Event }
		w.get("history?name="+escape(name), &history)
		var want []string
		for _, e := range history.Events {
			want = append(want, eventText(e))
		}
		got := f.events[base64Of(name)]
		all += len(got)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %d events, want the %d of the history:\n got %v\nwant %v", name, len(got), len(want), got, want)
		}
	}
	t.Logf("%d events, %d connections", all, connections)
}

func (f *follower) count() (n int) {
	for _, events := range f.events {
		n += len(events)
	}
	return n
}

// agrees reports whether the follower has the lines that the store has, and all events.
func (f *follower) agrees(w *world) bool {
	truth, err := w.truth.Lines(w.Context(), "")
	if err != nil {
		w.Fatal(err)
	}
	there := 0
	for _, l := range f.lines {
		if len(l.Holders)+len(l.Waiters) > 0 {
			there++
		}
	}
	if there != len(truth) {
		return false
	}
	for _, l := range truth {
		if !sameEntries(f.lines[base64Of(l.Name)].Line, l) {
			return false
		}
	}
	return true
}

func sameEntries(a, b stile.Line) bool {
	text := func(l stile.Line) string {
		var all []string
		for _, e := range l.Holders {
			all = append(all, fmt.Sprint("holds ", e.Token, e.Session))
		}
		for _, e := range l.Waiters {
			all = append(all, fmt.Sprint("waits ", e.Token, e.Session))
		}
		return strings.Join(all, ", ")
	}
	return text(a) == text(b)
}

// An ID of another run, or one that is not known, is answered with a reset and the ID to go on with.
func TestEvents_resetForUnknownID(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	first := w.awaitLines(0)
	boot, _, _ := strings.Cut(first.Update, "-")
	for _, id := range []string{"OTHERBOOT-0", boot + "-999999", boot, boot + "-", boot + "-x", boot + "--1", "-0", "\u202e", "null"} {
		var data struct{ Update string }
		stream := w.events("?after="+escape(id), "")
		ev, err := stream.next()
		if err == nil {
			err = json.Unmarshal([]byte(ev.data), &data)
		}
		if err != nil || ev.name != "reset" || data.Update != first.Update || ev.id != first.Update {
			t.Errorf("%q: got %+v (%v), want a reset to %s", id, ev, err, first.Update)
		}
		stream.await("status")
		stream.close()
	}
	// After the reset the reader goes on.
	stream := w.events("", "OTHERBOOT-5")
	stream.await("reset")
	w.lock(w.client("ann"), "a")
	stream.await("lines")
}

// A reader gets only the lines with its prefix. Its ID moves on nevertheless.
func TestEvents_prefix(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.awaitLines(0)
	stream := w.events("?prefix=b", "")
	stream.await("status")
	ann := w.client("ann")
	w.lock(ann, "a")
	w.awaitLines(1)
	w.lock(ann, "b")
	ev := stream.await("lines")
	var c changes
	if err := json.Unmarshal([]byte(ev.data), &c); err != nil || len(c.Lines) != 1 || c.Lines[0].Line.Name != "b" || !strings.HasSuffix(ev.id, "-2") {
		t.Errorf("got %+v (%v), want the line b and the ID of the second update", ev, err)
	}
}

// Lines are told first whether they were read.
func TestEvents_statusFirst(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.awaitLines(0)
	ev, err := w.events("", "").next()
	if err != nil || ev.name != "status" || !strings.Contains(ev.data, `"read":true`) {
		t.Errorf("got %+v (%v), want a status", ev, err)
	}
}

// The number of readers is limited. A reader that leaves makes room.
func TestLimits_readers(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	var all []*events
	for range 64 {
		all = append(all, w.events("", ""))
	}
	status, _, text := w.request(http.MethodGet, "/api/v1/events")
	if status != http.StatusServiceUnavailable || !strings.Contains(text, "64 readers") {
		t.Errorf("the next reader: got status %d, want 503: %s", status, text)
	}
	if status, _, _ := w.request(http.MethodGet, "/api/v1/lines"); status != http.StatusOK {
		t.Errorf("lines: got status %d, want 200", status)
	}
	all[0].close()
	eventually(t, "room for a reader", func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/api/v1/events", nil)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}
