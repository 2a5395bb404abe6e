// Package resource is the resource that the locks protect. It runs in a process of its own that no
// fault touches. For every lock it has a cell that accepts every write, with a version that shows
// lost updates; a cell that refuses tokens smaller than the largest that it has seen; and an audit
// log. It records every write as a [history.Write] when the write arrives.
//
// Clients send requests over a unix socket: each request is one line of JSON, and so is each reply.
package resource

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
)

// The modes of writes, as a [history.Write] has them.
const (
	Unfenced = "unfenced"
	Fenced   = "fenced"
	Audit    = "audit"
	Reread   = "reread"
)

// The other operations.
const (
	read   = "read"
	attach = "attach"
	detach = "detach"
)

// request is one line to the resource.
type request struct {
	// Op is a mode of writing, or one of the other operations.
	Op string `json:"op"`
	Writer
	// Read is the version that the writer of an unfenced write, or the reader, has read.
	Read uint64 `json:"read,omitempty"`
}

// reply is one line from the resource.
type reply struct {
	Version uint64 `json:"version,omitempty"`
	Refused bool   `json:"refused,omitempty"`
	Err     string `json:"err,omitempty"`
}

// cells are the two cells of one lock.
type cells struct {
	version uint64 // of the unfenced cell: the number of writes to it
	token   uint64 // the largest that the fenced cell has seen
}

type server struct {
	sender *history.Sender

	mu    sync.Mutex // held from the arrival of a request until its effect is recorded
	locks map[string]*cells
	conns map[net.Conn]bool // nil after the server has ended
}

// Serve runs the resource. It listens on the unix socket at path, and records with voice. Requests
// are served one at a time, so the order of the records is the order in which they took effect.
// When ctx ends, Serve closes all connections and returns nil.
func Serve(ctx context.Context, path string, sender *history.Sender) error {
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return err
	}
	s := &server{sender: sender, locks: map[string]*cells{}, conns: map[net.Conn]bool{}}
	defer context.AfterFunc(ctx, func() { l.Close() })()

	var conns sync.WaitGroup
	for {
		conn, err := l.Accept()
		if err != nil {
			l.Close()
			s.closeAll()
			conns.Wait()
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		conns.Go(func() { s.serve(conn) })
	}
}

// closeAll closes all connections, and makes serve close those that are accepted afterwards.
func (s *server) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		conn.Close()
	}
	s.conns = nil
}

// serve serves one process until it closes the connection or is killed.
func (s *server) serve(conn net.Conn) {
	defer conn.Close()
	s.mu.Lock()
	if s.conns == nil {
		s.mu.Unlock()
		return
	}
	s.conns[conn] = true
	s.mu.Unlock()

	attached, lastSeen := "", history.Now()
	replies := json.NewEncoder(conn)
	for lines := bufio.NewReader(conn); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil { // also if the line is truncated
			break
		}
		lastSeen = history.Now()
		var q request
		if err := json.Unmarshal(line, &q); err != nil {
			_ = replies.Encode(reply{Err: "invalid request: " + err.Error()})
			break
		}
		switch q.Op {
		case attach:
			attached = q.Grant
		case detach:
			attached = ""
		}
		if replies.Encode(s.handle(q)) != nil {
			break
		}
	}
	s.recordDisconnect(conn, attached, lastSeen)
}

// recordDisconnect records that the grant attached to a connection has ended with it, unless the
// server itself has ended. The end is recorded as of lastSeen: the process was certainly alive
// then, and when the server notices its death, another process may hold the lock already.
func (s *server) recordDisconnect(conn net.Conn, attached string, lastSeen int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if attached != "" && s.conns != nil {
		s.sender.Send(history.Event{At: history.Now(), End: &history.End{
			Grant: attached, Call: lastSeen, Outcome: history.Unknown, Why: "its process was killed",
		}})
	}
	delete(s.conns, conn)
}

func (s *server) handle(q request) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := history.Now()
	c := s.cells(q.Lock)
	w := &history.Write{Lock: q.Lock, Grant: q.Grant, Token: q.Token, Mode: q.Op}
	switch q.Op {
	case attach, detach: // serve does these
		return reply{}
	case read:
		return reply{Version: c.version}
	case Unfenced:
		w.Version, w.Read = c.version, q.Read
		c.version++
	case Fenced:
		w.Refused = q.Token < c.token
		c.token = max(c.token, q.Token)
	case Reread:
		w.Version, w.Read = c.version, q.Read
	case Audit:
	default:
		return reply{Err: fmt.Sprintf("unknown op %q", q.Op)}
	}
	s.sender.Send(history.Event{At: at, Write: w})
	return reply{Refused: w.Refused}
}

// cells returns the cells of a lock.
func (s *server) cells(lock string) *cells {
	if s.locks[lock] == nil {
		s.locks[lock] = &cells{}
	}
	return s.locks[lock]
}

// A Writer identifies the hold under which a request is sent.
type Writer struct {
	Lock  string `json:"lock,omitempty"`
	Grant string `json:"grant,omitempty"`
	Token uint64 `json:"token,omitempty"`
}

// A Client sends requests to the resource. It is safe for concurrent use; it sends one request at a
// time. After an error it must not be used again.
type Client struct {
	mu      sync.Mutex
	conn    net.Conn
	replies *json.Decoder
}

// dialTimeout is the time that a resource gets to start listening, on a busy machine too.
const dialTimeout = 20 * time.Second

// Dial connects to the resource that listens at path. If it does not listen yet, Dial retries for
// up to twenty seconds.
func Dial(ctx context.Context, path string) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			return &Client{conn: conn, replies: json.NewDecoder(conn)}, nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Read returns the version of a lock's unfenced cell, which is the number of writes to it.
func (c *Client) Read(lock string) (version uint64, err error) {
	a, err := c.send(request{Op: read, Writer: Writer{Lock: lock}})
	return a.Version, err
}

// Unfenced writes to the unfenced cell. The writer has read the version given as read.
func (c *Client) Unfenced(w Writer, read uint64) error {
	_, err := c.send(request{Op: Unfenced, Writer: w, Read: read})
	return err
}

// Reread reads the unfenced cell again, and records whether it has changed since the reader read the
// version given as read.
func (c *Client) Reread(w Writer, read uint64) error {
	_, err := c.send(request{Op: Reread, Writer: w, Read: read})
	return err
}

// Fenced writes to the fenced cell. It reports whether the cell accepted the write: it refuses a
// token smaller than the largest that it has seen.
func (c *Client) Fenced(w Writer) (accepted bool, err error) {
	a, err := c.send(request{Op: Fenced, Writer: w})
	return !a.Refused, err
}

// Audit writes to the audit log.
func (c *Client) Audit(w Writer) error {
	_, err := c.send(request{Op: Audit, Writer: w})
	return err
}

// Attach attaches a grant to the connection. If the connection breaks before [Client.Detach], the
// resource records the grant's End, since a killed process holds nothing. The End is recorded as of
// the last request that the resource received from the process. A connection has at most one
// attached grant.
func (c *Client) Attach(grant string) error {
	_, err := c.send(request{Op: attach, Writer: Writer{Grant: grant}})
	return err
}

// Detach reverts Attach. It is called once the End has been recorded.
func (c *Client) Detach() error {
	_, err := c.send(request{Op: detach})
	return err
}

func (c *Client) send(q request) (reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	line, err := json.Marshal(q)
	if err != nil {
		return reply{}, err
	}
	var a reply
	if _, err := c.conn.Write(append(line, '\n')); err != nil {
		return reply{}, fmt.Errorf("write to the resource: %w", err)
	}
	if err := c.replies.Decode(&a); err != nil {
		return reply{}, fmt.Errorf("no reply from the resource: %w", err)
	}
	if a.Err != "" {
		return reply{}, errors.New("the resource replied with an error: " + a.Err)
	}
	return a, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }
