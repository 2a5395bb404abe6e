package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"sync"
)

// A Recorder writes a history. It records the events of its own process and, over a unix socket,
// those of other processes. An event that a process sent before it was killed is not lost: it is in
// the socket.
type Recorder struct {
	listener net.Listener
	writer   *Writer
	onEvent  func(Event)
	conns    sync.WaitGroup
}

// Record starts a recorder that listens on the unix socket at path. It calls onEvent, if not nil,
// for each event, possibly from several goroutines at the same time.
func Record(path string, writer *Writer, onEvent func(Event)) (*Recorder, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	r := &Recorder{listener: l, writer: writer, onEvent: onEvent}
	r.conns.Go(r.accept)
	return r, nil
}

func (r *Recorder) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.conns.Go(func() {
			defer conn.Close()
			r.receive(conn)
		})
	}
}

// receive records the events of one process until it closes the connection. It ignores an
// incomplete last line: the process was killed while it wrote it.
func (r *Recorder) receive(conn net.Conn) {
	for lines := bufio.NewReader(conn); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			panic(fmt.Sprintf("invalid event %q from a process of this program: %v", line, err))
		}
		r.Add(e)
	}
}

// Add records an event of this process.
func (r *Recorder) Add(e Event) {
	r.writer.Write(e)
	if r.onEvent != nil {
		r.onEvent(e)
	}
}

// Close stops listening, waits until all senders have closed their connections, and returns the
// first write error. Call it when all processes that know the socket have ended.
func (r *Recorder) Close() error {
	r.listener.Close()
	r.conns.Wait()
	return r.writer.Err()
}

// A Sender sends events to a recorder in another process. It is safe for concurrent use.
type Sender struct {
	worker string
	writer *Writer
	conn   net.Conn
}

// Dial connects to the recorder that listens at path. All events are sent in the name of worker.
func Dial(path, worker string) (*Sender, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	return &Sender{worker: worker, conn: conn, writer: &Writer{out: conn}}, nil
}

// Send sends an event. If its At is zero, it is set to the current time.
func (s *Sender) Send(e Event) {
	if e.At == 0 {
		e.At = Now()
	}
	e.Worker = s.worker
	s.writer.Write(e)
}

// Close closes the connection, and returns the first write error.
func (s *Sender) Close() error {
	s.conn.Close()
	return s.writer.Err()
}
