package testservers

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// quietPeriod is how long to wait to see that nothing arrives.
const quietPeriod = 50 * time.Millisecond

// startEcho starts a server that echoes its input.
func startEcho(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatalf("sending: %v", err)
	}
}

func expect(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	buf := make([]byte, len(text))
	_ = conn.SetReadDeadline(time.Now().Add(processTimeout))
	if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != text {
		t.Fatalf("received %q, %v; want %q", buf, err, text)
	}
}

func expectNothing(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(quietPeriod))
	buf := make([]byte, 100)
	if n, err := conn.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("received %q, %v; want nothing", buf[:n], err)
	}
}

func TestProxy_forwardsInOrder(t *testing.T) {
	p := NewProxy(t, startEcho(t))
	conn := dial(t, p.Addr())
	const size = 3 << 20 // more than all buffers in between hold
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i * i / 7)
	}
	go func() {
		_, _ = conn.Write(sent)
		_ = conn.CloseWrite()
	}()
	_ = conn.SetReadDeadline(time.Now().Add(processTimeout))
	got, err := io.ReadAll(conn) // returns only if the close is forwarded
	if err != nil || string(got) != string(sent) {
		t.Errorf("got %d bytes, want the %d bytes sent; error %v", len(got), size, err)
	}
}

// connected returns a proxy and both ends of a connection through it.
func connected(t *testing.T) (p *Proxy, client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p = NewProxy(t, l.Addr().String())
	client = dial(t, p.Addr())
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return p, client, server
}

func TestProxy_delayByDirection(t *testing.T) {
	p, client, server := connected(t)
	for _, c := range []struct {
		name       string
		directions []Direction
		up, down   bool // whether the direction is delayed
	}{
		{"up", []Direction{Up}, true, false},
		{"down", []Direction{Down}, false, true},
		{"both", nil, true, true},
	} {
		p.Delay(time.Hour, c.directions...)
		send(t, client, "a")
		send(t, server, "b")
		for _, end := range []struct {
			conn    net.Conn
			text    string
			delayed bool
		}{{server, "a", c.up}, {client, "b", c.down}} {
			if !end.delayed {
				expect(t, end.conn, end.text)
				continue
			}
			expectNothing(t, end.conn)
		}
		p.Delay(0)
		if c.up {
			expect(t, server, "a")
		}
		if c.down {
			expect(t, client, "b")
		}
		if t.Failed() {
			t.Fatalf("failed with the delay %s", c.name)
		}
	}
}

func TestProxy_delayIsAtLeastTheDuration(t *testing.T) {
	p, client, server := connected(t)
	const delay = 50 * time.Millisecond
	p.Delay(delay)
	start := time.Now()
	send(t, client, "a")
	expect(t, server, "a")
	if took := time.Since(start); took < delay {
		t.Errorf("a request arrived after %v, want at least %v", took, delay)
	}
	start = time.Now()
	send(t, server, "b")
	expect(t, client, "b")
	if took := time.Since(start); took < delay {
		t.Errorf("a reply arrived after %v, want at least %v", took, delay)
	}
}

func TestProxy_delayTo(t *testing.T) {
	p := NewProxy(t, startEcho(t))
	from := func(ip string) net.Conn {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}).Dial("tcp", p.Addr())
		if err != nil {
			t.Skipf("this system has no second loopback address: %v", err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	one, other := from("127.0.0.2"), from("127.0.0.3")
	p.DelayTo("127.0.0.2", time.Hour)
	send(t, one, "a")
	send(t, other, "b")
	expect(t, other, "b")
	expectNothing(t, one)
	p.DelayTo("127.0.0.2", 0)
	expect(t, one, "a")
}

func TestProxy_holdAndRelease(t *testing.T) {
	p := NewProxy(t, startEcho(t))
	conn := dial(t, p.Addr())
	send(t, conn, "a")
	expect(t, conn, "a")

	p.Hold()
	send(t, conn, "b")
	expectNothing(t, conn)
	second := dial(t, p.Addr())
	send(t, second, "x")
	expectNothing(t, second)

	p.Release(Up)
	expectNothing(t, conn)
	p.Release(Down)
	expect(t, conn, "b")
	expect(t, second, "x")
}

func TestProxy_holdsClose(t *testing.T) {
	p, client, server := connected(t)
	p.Hold(Down)
	_ = server.Close()
	expectNothing(t, client)
	p.Release(Down)
	_ = client.SetReadDeadline(time.Now().Add(processTimeout))
	if n, err := client.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %d, %v; want the close of the server", n, err)
	}
}

func TestProxy_cutReplies(t *testing.T) {
	p, client, server := connected(t)
	p.CutReplies()
	send(t, client, "request")
	expect(t, server, "request")
	send(t, server, "reply")
	expectNothing(t, client)

	p.Reset()
	p.Release()
	_ = client.SetReadDeadline(time.Now().Add(processTimeout))
	buf := make([]byte, 10)
	if n, err := client.Read(buf); n != 0 || !isReset(err) {
		t.Errorf("received %q, %v; want the reply lost and the connection reset", buf[:n], err)
	}
}

func TestProxy_reset(t *testing.T) {
	p := NewProxy(t, startEcho(t))
	conn := dial(t, p.Addr())
	send(t, conn, "a")
	expect(t, conn, "a")
	if n := p.Connections(); n != 1 {
		t.Errorf("got %d connections, want 1", n)
	}

	p.Reset()
	if n := p.Connections(); n != 0 {
		t.Errorf("got %d connections after Reset, want none", n)
	}
	_ = conn.SetReadDeadline(time.Now().Add(processTimeout))
	if _, err := conn.Read(make([]byte, 1)); !isReset(err) {
		t.Errorf("reading after Reset: got %v, want a reset", err)
	}

	again := dial(t, p.Addr())
	send(t, again, "b")
	expect(t, again, "b")
}

func TestProxy_refuseAndAccept(t *testing.T) {
	p := NewProxy(t, startEcho(t))
	old := dial(t, p.Addr())
	send(t, old, "a")
	expect(t, old, "a")

	p.Refuse()
	p.Refuse() // the second call has no effect
	if conn, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialing: got %v, %v; want ECONNREFUSED", conn, err)
	}
	send(t, old, "b")
	expect(t, old, "b")

	p.Accept()
	p.Accept()
	conn := dial(t, p.Addr())
	send(t, conn, "c")
	expect(t, conn, "c")
}

func TestProxy_resetsClientsWithoutServer(t *testing.T) {
	addr, err := NewAddress()
	if err != nil {
		t.Fatal(err)
	}
	p := NewProxy(t, addr)
	conn, err := net.Dial("tcp", p.Addr())
	if err == nil { // otherwise the reset arrived while dialing
		defer conn.Close()
		_ = conn.SetReadDeadline(time.Now().Add(processTimeout))
		_, err = conn.Read(make([]byte, 1))
	}
	if !isReset(err) {
		t.Errorf("dialing and reading: got %v, want a reset", err)
	}
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// A client that has connected before the server listens is served when it does, if the proxy waits for it.
func TestProxy_waitsForServer(t *testing.T) {
	addr, err := NewAddress()
	if err != nil {
		t.Fatal(err)
	}
	p := NewProxy(t, addr)
	p.WaitForServer(processTimeout)
	conn := dial(t, p.Addr())
	send(t, conn, "early")
	expectNothing(t, conn)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
		}
	}()
	expect(t, conn, "early")

	_ = l.Close()
	waiting := dial(t, p.Addr())
	_ = waiting.SetReadDeadline(time.Now().Add(processTimeout))
	for p.Connections() < 2 { // it has been accepted
		time.Sleep(time.Millisecond)
	}
	p.Reset()
	if _, err := waiting.Read(make([]byte, 1)); !isReset(err) {
		t.Errorf("reading after Reset: got %v, want a reset", err)
	}
}
