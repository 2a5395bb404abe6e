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

// A connection is given up when nothing is answered on it, but for pings; and not for an answer that has to wait for others.
func TestAConnectionOnWhichNothingIsAnsweredIsGivenUp(t *testing.T) {
	const ttl = time.Minute
	const nearly = ttl/4 - time.Second
	ping, sync := request(-2, 11), request(7, 9)
	for what, tt := range map[string]struct {
		does func(t *testing.T, w *serverConn, hears func(xid int32))
		want bool
	}{
		"nothing was asked": {func(*testing.T, *serverConn, func(int32)) {}, false},
		"all was answered": {func(t *testing.T, w *serverConn, hears func(int32)) {
			say(t, w, sync)
			time.Sleep(nearly)
			hears(7)
		}, false},
		"nothing is answered": {func(t *testing.T, w *serverConn, _ func(int32)) { say(t, w, sync) }, true},
		"pings are answered": {func(t *testing.T, w *serverConn, hears func(int32)) {
			say(t, w, sync)
			for range 10 {
				say(t, w, ping)
				hears(-2)
				time.Sleep(ttl / 40)
			}
		}, true},
		"only pings are asked for": {func(t *testing.T, w *serverConn, _ func(int32)) { say(t, w, ping) }, false},
		"others are answered first": {func(t *testing.T, w *serverConn, hears func(int32)) {
			for range 10 {
				say(t, w, sync)
			}
			for range 10 {
				time.Sleep(nearly)
				hears(7)
			}
		}, false},
		"others were answered before": {func(t *testing.T, w *serverConn, hears func(int32)) {
			say(t, w, sync)
			say(t, w, sync)
			time.Sleep(nearly)
			hears(7)
		}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{says: frames(handshakeReply(ttl, 5))}
			w := connTo(t, s)
			if _, err := io.ReadFull(w, make([]byte, len(s.says))); err != nil {
				t.Fatal(err)
			}
			w.transport.conn = w
			tt.does(t, w, func(xid int32) {
				s.says = frames(answer(xid, 0))
				if _, err := io.ReadFull(w, make([]byte, len(s.says))); err != nil {
					t.Fatal(err)
				}
			})
			given := func() (bool, error) {
				w.transport.mu.Lock()
				defer w.transport.mu.Unlock()
				return w.transport.conn == nil, w.transport.err
			}
			if up, _ := given(); up && what != "pings are answered" {
				t.Errorf("%s: given up too early", what)
			}
			time.Sleep(ttl)
			if up, err := given(); up != tt.want || errors.Is(err, errUnanswered) != tt.want {
				t.Errorf("%s: given up: %v, want %v; the trouble is %v", what, up, tt.want, err)
			}
		})
	}
}

func say(t *testing.T, w *serverConn, frame []byte) {
	t.Helper()
	if _, err := w.Write(frame); err != nil {
		t.Fatal(err)
	}
}

// The library gives up a server that does not answer after two thirds of the session's TTL. Another is asked then.
func TestAReaderGivesUpAServerInTimeForPing(t *testing.T) {
	if given, most := readingTTL*2/3, attempts.Patience/2; given+maxPause > most {
		t.Errorf("a server is given up after %v, and the next tried up to %v later; Ping waits for %v", given, maxPause, most)
	}
}

// A confirmation that is given up leaves time for another one at a server that answers; and the leader, which may have heard
// last of the one before, has heard of it late enough.
func TestAttemptsFitIntoTheTimeThatAConfirmationIsGoodFor(t *testing.T) {
	for _, ttl := range []time.Duration{MinTTL, 15 * time.Second, MaxTTL} {
		g := &group{first: &session{ttl: ttl}}
		granted := g.Terms()
		terms := keeper.ScheduleFor(granted)
		if left := terms.Every + silenceTimeout(ttl); left >= terms.Every+terms.Attempt || terms.Every+terms.Attempt+terms.Retry >= terms.Valid {
			t.Errorf("a TTL of %v: a silent server is left after %v, an attempt ends after %v, all is lost after %v",
				ttl, left, terms.Every+terms.Attempt, terms.Valid)
		}
		if most := terms.Attempt + terms.Retry; most >= granted.Slack {
			t.Errorf("a TTL of %v: there may be %v between two requests, and the slack is %v", ttl, most, granted.Slack)
		}
	}
}
