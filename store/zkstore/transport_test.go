package zkstore

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/store/internal/attempts"
)

// A connection is abandoned if no request is answered on it, whether or not pings are. A request
// that waits behind others is no reason to abandon it.
func TestServerConn_abandonedWithoutReplies(t *testing.T) {
	const ttl = time.Minute
	const almost = ttl/4 - time.Second
	ping, sync := request(-2, 11), request(7, 9)
	for what, tt := range map[string]struct {
		run  func(t *testing.T, w *serverConn, deliver func(xid int32))
		want bool
	}{
		"no requests": {func(*testing.T, *serverConn, func(int32)) {}, false},
		"all requests are answered": {func(t *testing.T, w *serverConn, deliver func(int32)) {
			write(t, w, sync)
			time.Sleep(almost)
			deliver(7)
		}, false},
		"no request is answered": {func(t *testing.T, w *serverConn, _ func(int32)) { write(t, w, sync) }, true},
		"pings are answered": {func(t *testing.T, w *serverConn, deliver func(int32)) {
			write(t, w, sync)
			for range 10 {
				write(t, w, ping)
				deliver(-2)
				time.Sleep(ttl / 40)
			}
		}, true},
		"only pings are sent": {func(t *testing.T, w *serverConn, _ func(int32)) { write(t, w, ping) }, false},
		"earlier requests are answered first": {func(t *testing.T, w *serverConn, deliver func(int32)) {
			for range 10 {
				write(t, w, sync)
			}
			for range 10 {
				time.Sleep(almost)
				deliver(7)
			}
		}, false},
		"only the first of two requests is answered": {func(t *testing.T, w *serverConn, deliver func(int32)) {
			write(t, w, sync)
			write(t, w, sync)
			time.Sleep(almost)
			deliver(7)
		}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{output: frames(handshakeReply(ttl, 5))}
			w := connTo(t, s)
			if _, err := io.ReadFull(w, make([]byte, len(s.output))); err != nil {
				t.Fatal(err)
			}
			w.transport.conn = w
			tt.run(t, w, func(xid int32) {
				s.output = frames(answer(xid, 0))
				if _, err := io.ReadFull(w, make([]byte, len(s.output))); err != nil {
					t.Fatal(err)
				}
			})
			abandoned := func() (bool, error) {
				w.transport.mu.Lock()
				defer w.transport.mu.Unlock()
				return w.transport.conn == nil, w.transport.err
			}
			if up, _ := abandoned(); up && what != "pings are answered" {
				t.Errorf("%s: abandoned too early", what)
			}
			time.Sleep(ttl)
			if up, err := abandoned(); up != tt.want || errors.Is(err, errUnanswered) != tt.want {
				t.Errorf("%s: abandoned: got %v, want %v; the error is %v", what, up, tt.want, err)
			}
		})
	}
}

func write(t *testing.T, w *serverConn, frame []byte) {
	t.Helper()
	if _, err := w.Write(frame); err != nil {
		t.Fatal(err)
	}
}

// The library abandons a server that does not answer after two thirds of the session's TTL. Then it
// tries another.
func TestReadingTTL_leavesTimeForPing(t *testing.T) {
	if given, limit := readingTTL*2/3, attempts.MaxDuration/2; given+maxPause > limit {
		t.Errorf("a server is abandoned after %v, and the next is tried up to %v later; Ping waits for %v", given, maxPause, limit)
	}
}

// If a confirmation times out, there is time for another one at a server that answers. The leader
// may have received only the request before the last one, so two requests are never further apart
// than the slack.
func TestTerms_attemptsFitIntoValidity(t *testing.T) {
	for _, ttl := range []time.Duration{MinTTL, 15 * time.Second, MaxTTL} {
		g := &group{first: &session{ttl: ttl}}
		granted := g.Terms()
		terms := keeper.ScheduleFor(granted)
		if left := terms.Interval + silenceTimeout(ttl); left >= terms.Interval+terms.AttemptTimeout || terms.Interval+terms.AttemptTimeout+terms.RetryInterval >= terms.Validity {
			t.Errorf("TTL %v: a silent server is abandoned after %v, an attempt ends after %v, a confirmation is valid for %v",
				ttl, left, terms.Interval+terms.AttemptTimeout, terms.Validity)
		}
		if limit := terms.AttemptTimeout + terms.RetryInterval; limit >= granted.Slack {
			t.Errorf("TTL %v: up to %v between two requests, want less than the slack of %v", ttl, limit, granted.Slack)
		}
	}
}
