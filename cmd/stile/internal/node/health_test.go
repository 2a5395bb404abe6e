package node

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// Beyond the limit a connection waits until another one has ended.
func TestHealth_limitsConnections(t *testing.T) {
	t.Parallel()
	h, err := listenHealth("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	// A connection whose request is being answered does not end.
	asked, answer := make(chan struct{}, healthConnections+1), make(chan struct{})
	h.serveWith(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-answer
	}))
	t.Cleanup(func() { close(answer) })
	ask := func() {
		conn, err := net.Dial("tcp", h.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := io.WriteString(conn, "GET /livez HTTP/1.0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	await := func() {
		select {
		case <-asked:
		case <-time.After(3 * time.Minute):
			t.Fatalf("no request was read from a connection within the limit of %d", healthConnections)
		}
	}
	for range healthConnections {
		ask()
		await()
	}
	ask()
	select {
	case <-asked:
		t.Fatalf("a request was read from a connection beyond the limit of %d", healthConnections)
	case <-time.After(100 * time.Millisecond):
	}
	answer <- struct{}{}
	await()
}
