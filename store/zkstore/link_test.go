package zkstore

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
)

// A connection is given up for a request that was made on it, and for no other.
func TestAConnectionIsGivenUpForWhatWasAskedOnIt(t *testing.T) {
	asked := time.Now()
	for _, tt := range []struct {
		what  string
		ready time.Time
		want  bool
	}{
		{"one that was ready", asked.Add(-time.Second), true},
		{"one that is being made", time.Time{}, false},
		{"one that was made since", asked.Add(time.Second), false},
	} {
		s, err := New([]string{"nowhere"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		l := newLink(s, time.Minute, true)
		conn, other := net.Pipe()
		l.conn, l.ready = conn, tt.ready
		l.giveUp(asked, errUnanswered)
		if given := l.conn == nil; given != tt.want || errors.Is(l.trouble(), errUnanswered) != tt.want {
			t.Errorf("%s: given up: %v, want %v; the trouble is %v", tt.what, given, tt.want, l.trouble())
		}
		_, _ = conn.Close(), other.Close()
	}
}

// The library gives up a server that does not answer after two thirds of the session's TTL. Another is asked then.
func TestAReaderGivesUpAServerInTimeForPing(t *testing.T) {
	if given, most := readingTTL*2/3, attempts.Patience/2; given+lastPause > most {
		t.Errorf("a server is given up after %v, and the next tried up to %v later; Ping waits for %v", given, lastPause, most)
	}
}
