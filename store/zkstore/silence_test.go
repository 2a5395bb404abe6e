package zkstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/store"
)

// A fakeServer grants sessions and sends empty replies, in a synctest bubble.
type fakeServer struct {
	ttl time.Duration

	mu       sync.Mutex
	delay    time.Duration // of each reply
	opening  time.Duration // how long it takes to open a session, one after the other
	opened   time.Time     // when the last one is open that was asked for
	only     int32         // the only operation that is answered; zero for all
	silent   bool          // nothing is answered
	accepted int
}

// connect is used as [Store.dial].
func (s *fakeServer) connect(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	s.mu.Lock()
	s.accepted++
	s.mu.Unlock()
	go s.serve(server)
	return addressed{client}, nil
}

// addressed has a TCP address. Pipes have another kind.
type addressed struct{ net.Conn }

func (addressed) RemoteAddr() net.Addr { return &net.TCPAddr{} }

func (s *fakeServer) setFault(silent bool, only int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent, s.only = silent, only
}

func (s *fakeServer) answers(op int32) (bool, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.silent && (s.only == 0 || s.only == op), s.delay
}

// open returns when a session is open that is asked for now.
func (s *fakeServer) open() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.opened.Before(now) {
		s.opened = now
	}
	s.opened = s.opened.Add(s.opening)
	return s.opened
}

func (s *fakeServer) serve(conn net.Conn) {
	type due struct {
		frame []byte
		at    time.Time
	}
	answers := make(chan due, 1000)
	defer close(answers)
	go func() {
		defer conn.Close()
		for a := range answers {
			time.Sleep(time.Until(a.at))
			if _, err := conn.Write(a.frame); err != nil {
				return
			}
		}
	}()
	for n := 0; ; n++ {
		var length [4]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(length[:]))
		if _, err := io.ReadFull(conn, body); err != nil {
			return
		}
		frame, op := frames(handshakeReply(s.ttl, 5)), int32(0)
		if n > 0 {
			op = int32(binary.BigEndian.Uint32(body[4:]))
			frame = frames(answer(int32(binary.BigEndian.Uint32(body)), 0, 0, 0, 0, 1, '/'))
		}
		if yes, delay := s.answers(op); yes {
			at := time.Now()
			if n == 0 {
				at = s.open()
			}
			answers <- due{frame, at.Add(delay)}
		}
	}
}

const opPing = 11

// openKept opens a session at the first server, and confirms it as clients do.
func openKept(t *testing.T, ttl time.Duration, servers ...*fakeServer) (*keeper.Session, *Store) {
	t.Helper()
	var names []string
	for i := range servers {
		names = append(names, fmt.Sprintf("%d:1", i))
	}
	st, err := New(names, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	st.lookup = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	st.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		at++
		return servers[(at-1)%len(servers)].connect(ctx, network, address)
	}
	se, err := keeper.Open(t.Context(), st, store.SessionOptions{TTL: ttl}, keeper.Callbacks{})
	if err != nil {
		t.Fatal(err)
	}
	return se, st
}

// Each reply comes before the next confirmation must.
// Promise: P4
func TestHold_survivesSlowReplies(t *testing.T) {
	const ttl = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{ttl: ttl, delay: ttl / 5}
		se, st := openKept(t, ttl, s)
		time.Sleep(100 * ttl)
		if !se.Valid() {
			t.Error("the session was lost although each reply came in time")
		}
		if s.accepted > 1 {
			t.Errorf("the connection was abandoned %d times, want 0", s.accepted-1)
		}
		_ = se.Close(t.Context())
		_ = st.Close()
		time.Sleep(ttl)
	})
}

// A server that stops answering is abandoned in time for its holders: whenever it stops, and also
// if it still answers pings, like a server that is cut off from its leader.
// Promise: P4
func TestHold_survivesSilentServer(t *testing.T) {
	const ttl = 10 * time.Second
	for what, only := range map[string]int32{"is hung": 0, "answers pings": opPing} {
		for after := range time.Duration(20) {
			synctest.Test(t, func(t *testing.T) {
				first, second := &fakeServer{ttl: ttl}, &fakeServer{ttl: ttl}
				se, st := openKept(t, ttl, first, second)
				time.Sleep(ttl + after*ttl/100)
				first.setFault(only == 0, only)
				time.Sleep(10 * ttl)
				if !se.Valid() {
					t.Errorf("the server %s after %v: the session was lost", what, ttl+after*ttl/100)
				}
				if second.accepted == 0 {
					t.Errorf("the server %s: the other server was not tried", what)
				}
				_ = se.Close(t.Context())
				_ = st.Close()
				time.Sleep(ttl)
			})
		}
	}
}

// The first address that accepts connections may be that of a server that hangs or refuses
// sessions.
// Promise: P4
func TestDial_triesAllAddresses(t *testing.T) {
	const ttl = 10 * time.Second
	for range 20 { // the first address to try is random
		synctest.Test(t, func(t *testing.T) {
			healthy := &fakeServer{ttl: ttl}
			servers := map[string]*fakeServer{"10.0.0.1:7": {ttl: ttl, silent: true}, "10.0.0.2:7": {ttl: ttl, silent: true}, "10.0.0.3:7": healthy}
			st, err := New([]string{"ensemble:7", "elsewhere:7"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			st.lookup = func(_ context.Context, host string) ([]string, error) {
				if host == "elsewhere" {
					return nil, errors.New("no such host")
				}
				addresses := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}
				rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
				return addresses, nil
			}
			st.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				if s := servers[address]; s != nil {
					return s.connect(ctx, network, address)
				}
				return nil, errors.New("connection refused")
			}
			se, err := st.Open(t.Context(), store.SessionOptions{TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			_ = se.Close(t.Context())
			_ = st.Close()
			time.Sleep(ttl)
		})
	}
}

func TestNew_serverAddresses(t *testing.T) {
	for server, want := range map[string]string{
		"h": "h:2181", "h:7": "h:7", "h:": "h:2181", "10.0.0.1": "10.0.0.1:2181",
		"::1": "[::1]:2181", "[::1]": "[::1]:2181", "[::1]:7": "[::1]:7", "fe80::1%eth0": "[fe80::1%eth0]:2181",
		"": "", ":2181": "", "[]": "", "a:b:c": "", "h]": "",
	} {
		st, err := New([]string{server}, nil)
		switch {
		case want == "" && err == nil:
			t.Errorf("New(%q): got servers %q, want an error", server, st.servers)
		case want != "" && (err != nil || st.servers[0] != want):
			t.Errorf("New(%q): got %v, %v, want server %q", server, st, err, want)
		}
	}
}

// A server opens forty sessions a second, and 480 are wanted at once. Each is asked for once, and all are open after
// twelve seconds, although an attempt gives up after ten: waiting for others is no silence of the server.
func TestStore_opensManySessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, ttl = 480, time.Minute
		s := &fakeServer{ttl: ttl, opening: time.Second / 40}
		st, err := New([]string{"0:1"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		st.lookup = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
		st.dial = s.connect
		var opening sync.WaitGroup
		for i := range n {
			opening.Go(func() {
				se, err := st.Open(t.Context(), store.SessionOptions{TTL: ttl})
				if err != nil {
					t.Errorf("session %d: %v", i, err)
					return
				}
				_ = se.Close(t.Context()) // at once, because each uses 3 MB
			})
		}
		opening.Wait()
		if s.accepted != n {
			t.Errorf("%d sessions were asked for, want %d", s.accepted, n)
		}
		_ = st.Close()
	})
}
