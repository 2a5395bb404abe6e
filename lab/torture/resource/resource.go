// Package resource is what the locks protect: a process of its own, outside everything that is done to the system. For every
// lock it has a cell that takes any write, with a version by which lost updates are seen; a cell that refuses
// tokens smaller than the largest it has seen; and an audit log. It records every write as a [history.Write] when it arrives.
//
// It is asked over a unix socket, one line of JSON for a question and one for its answer.
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

// The modes of writes, as they stand in a [history.Write].
const (
	Unfenced = "unfenced"
	Fenced   = "fenced"
	Audit    = "audit"
)

// What else can be asked for.
const (
	read   = "read"
	attach = "attach"
	detach = "detach"
)

// question is one line to the resource.
type question struct {
	// Op is a mode of writing, or one of the constants above.
	Op string `json:"op"`
	Writer
	// Read is, for an unfenced write, the version that its writer has read.
	Read uint64 `json:"read,omitempty"`
}

// answer is one line from the resource.
type answer struct {
	Version uint64 `json:"version,omitempty"`
	Refused bool   `json:"refused,omitempty"`
	Err     string `json:"err,omitempty"`
}

// cells are what one lock protects.
type cells struct {
	version uint64 // of the unfenced cell: how often it has been written
	token   uint64 // the largest that the fenced cell has seen
}

type server struct {
	voice *history.Voice

	mu    sync.Mutex // held from the arrival of a question until what was decided is recorded
	locks map[string]*cells
	conns map[net.Conn]bool // nil when the server has ended
}

// Serve is the resource. It listens on the unix socket at path and records what it is told with voice, one thing at a time,
// in the order in which it decides. When ctx ends it closes all connections, and returns nil.
func Serve(ctx context.Context, path string, voice *history.Voice) error {
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return err
	}
	s := &server{voice: voice, locks: map[string]*cells{}, conns: map[net.Conn]bool{}}
	defer context.AfterFunc(ctx, func() { l.Close() })()

	var conns sync.WaitGroup
	for {
		conn, err := l.Accept()
		if err != nil {
			l.Close()
			s.hangUp()
			conns.Wait()
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		conns.Go(func() { s.serve(conn) })
	}
}

// hangUp closes all connections, and those that are only being accepted.
func (s *server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		conn.Close()
	}
	s.conns = nil
}

// serve answers one process, until it hangs up or is killed.
func (s *server) serve(conn net.Conn) {
	defer conn.Close()
	s.mu.Lock()
	if s.conns == nil {
		s.mu.Unlock()
		return
	}
	s.conns[conn] = true
	s.mu.Unlock()

	attached, heard := "", history.Now()
	answers := json.NewEncoder(conn)
	for lines := bufio.NewReader(conn); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil { // also if the line is cut short
			break
		}
		heard = history.Now()
		var q question
		if err := json.Unmarshal(line, &q); err != nil {
			_ = answers.Encode(answer{Err: "not a question: " + err.Error()})
			break
		}
		switch q.Op {
		case attach:
			attached = q.Grant
		case detach:
			attached = ""
		}
		if answers.Encode(s.answer(q)) != nil {
			break
		}
	}
	s.left(conn, attached, heard)
}

// left records that the grant which a connection attached has ended with it, unless it is we who have ended. The process was
// certainly alive when it was heard last; when we see that it is not, another one may hold already.
func (s *server) left(conn net.Conn, attached string, heard int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if attached != "" && s.conns != nil {
		s.voice.Say(history.Event{At: history.Now(), End: &history.End{
			Grant: attached, Call: heard, Outcome: history.Unknown, Why: "its process was killed",
		}})
	}
	delete(s.conns, conn)
}

func (s *server) answer(q question) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := history.Now()
	c := s.cells(q.Lock)
	w := &history.Write{Lock: q.Lock, Grant: q.Grant, Token: q.Token, Mode: q.Op}
	switch q.Op {
	case attach, detach: // of the connection
		return answer{}
	case read:
		return answer{Version: c.version}
	case Unfenced:
		w.Version, w.Read = c.version, q.Read
		c.version++
	case Fenced:
		w.Refused = q.Token < c.token
		c.token = max(c.token, q.Token)
	case Audit:
	default:
		return answer{Err: fmt.Sprintf("nothing is called %q here", q.Op)}
	}
	s.voice.Say(history.Event{At: at, Write: w})
	return answer{Refused: w.Refused}
}

// cells returns what a lock protects.
func (s *server) cells(lock string) *cells {
	if s.locks[lock] == nil {
		s.locks[lock] = &cells{}
	}
	return s.locks[lock]
}

// A Writer is whose write it is.
type Writer struct {
	Lock  string `json:"lock,omitempty"`
	Grant string `json:"grant,omitempty"`
	Token uint64 `json:"token,omitempty"`
}

// A Client writes to the resource. It is safe for concurrent use; questions are asked one after another. After an error it
// is of no use any more.
type Client struct {
	mu      sync.Mutex
	conn    net.Conn
	answers *json.Decoder
}

// dialTimeout is how long a resource may take to begin, on however busy a machine.
const dialTimeout = 20 * time.Second

// Dial connects to the resource that listens at path. If nobody listens there yet it waits for that, twenty seconds at most.
func Dial(ctx context.Context, path string) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			return &Client{conn: conn, answers: json.NewDecoder(conn)}, nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Read returns the version of a lock's unfenced cell, which is the number of writes it has seen.
func (c *Client) Read(lock string) (version uint64, err error) {
	a, err := c.ask(question{Op: read, Writer: Writer{Lock: lock}})
	return a.Version, err
}

// Unfenced writes to the unfenced cell, of which the writer had read the given version.
func (c *Client) Unfenced(w Writer, read uint64) error {
	_, err := c.ask(question{Op: Unfenced, Writer: w, Read: read})
	return err
}

// Fenced writes to the fenced cell. It reports whether that took the write: it does not if it has seen a larger token.
func (c *Client) Fenced(w Writer) (accepted bool, err error) {
	a, err := c.ask(question{Op: Fenced, Writer: w})
	return !a.Refused, err
}

// Audit writes to the audit log.
func (c *Client) Audit(w Writer) error {
	_, err := c.ask(question{Op: Audit, Writer: w})
	return err
}

// Attach makes the resource record the End of a grant if the connection breaks before [Client.Detach]: a process that is
// killed holds nothing any more. It counts as over since the resource has heard of the process last. A connection guards one
// grant at a time.
func (c *Client) Attach(grant string) error {
	_, err := c.ask(question{Op: attach, Writer: Writer{Grant: grant}})
	return err
}

// Detach ends Attach: the End has been recorded.
func (c *Client) Detach() error {
	_, err := c.ask(question{Op: detach})
	return err
}

func (c *Client) ask(q question) (answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	line, err := json.Marshal(q)
	if err != nil {
		return answer{}, err
	}
	var a answer
	if _, err := c.conn.Write(append(line, '\n')); err != nil {
		return answer{}, fmt.Errorf("the resource cannot be asked: %w", err)
	}
	if err := c.answers.Decode(&a); err != nil {
		return answer{}, fmt.Errorf("the resource does not answer: %w", err)
	}
	if a.Err != "" {
		return answer{}, errors.New("the resource says: " + a.Err)
	}
	return a, nil
}

// Close hangs up.
func (c *Client) Close() error { return c.conn.Close() }
