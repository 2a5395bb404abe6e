package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"sync"
)

// A Recorder writes a history of what it is told, by the process it is in and, over a unix socket, by others. What a
// process has said before it was killed is not lost: it is in the socket.
type Recorder struct {
	listener net.Listener
	to       *Writer
	heard    func(Event)
	conns    sync.WaitGroup
}

// Record starts a recorder that listens on the unix socket at path. heard, if not nil, is called with each event, possibly
// by several goroutines at once.
func Record(path string, to *Writer, heard func(Event)) (*Recorder, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	r := &Recorder{listener: l, to: to, heard: heard}
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
			r.listen(conn)
		})
	}
}

// listen records what one process says, until it hangs up. A line that is cut short was being said by a process that was
// killed.
func (r *Recorder) listen(conn net.Conn) {
	for lines := bufio.NewReader(conn); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			panic(fmt.Sprintf("a process of this program says %q: %v", line, err))
		}
		r.Add(e)
	}
}

// Add records an event of this process.
func (r *Recorder) Add(e Event) {
	r.to.Write(e)
	if r.heard != nil {
		r.heard(e)
	}
}

// Close waits until everybody has hung up, stops listening, and returns the first error of writing. Call it when all
// processes that were told of the socket have ended.
func (r *Recorder) Close() error {
	r.listener.Close()
	r.conns.Wait()
	return r.to.Err()
}

// A Sender tells a recorder in another process what happens. It is safe for concurrent use.
type Sender struct {
	worker string
	to     *Writer
	conn   net.Conn
}

// Dial connects to the recorder that listens at path. All events are those of worker.
func Dial(path, worker string) (*Sender, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	return &Sender{worker: worker, conn: conn, to: &Writer{out: conn}}, nil
}

// Send tells an event. If its At is zero it is now.
func (v *Sender) Send(e Event) {
	if e.At == 0 {
		e.At = Now()
	}
	e.Worker = v.worker
	v.to.Write(e)
}

// Close hangs up, and returns the first error of saying something.
func (v *Sender) Close() error {
	v.conn.Close()
	return v.to.Err()
}
