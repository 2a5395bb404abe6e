package page

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/store/memstore"
)

// pipes is a listener whose connections are in memory, so that time can be faked.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// served calls run in a bubble with a store and a page. request makes a request for a path.
func served(t *testing.T, run func(t *testing.T, p *Page, client *stile.Client, request func(path string) net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		client, err := stile.New(st, nil)
		if err != nil {
			t.Fatal(err)
		}
		p := newPage(Config{Logger: slog.New(slog.DiscardHandler)})
		listener := &pipes{make(chan net.Conn), make(chan struct{})}
		p.listeners, p.hosts = []net.Listener{listener}, []string{"localhost"}
		p.Serve(Source{Client: client, Observer: observe.New(client)})
		time.Sleep(time.Second)
		run(t, p, client, func(path string) net.Conn {
			mine, its := net.Pipe()
			listener.conns <- its
			if _, err := fmt.Fprintf(mine, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path); err != nil {
				t.Fatal(err)
			}
			return mine
		})
		p.Close()
		_ = client.Close(context.Background())
	})
}

// streamed is served for streams of events.
func streamed(t *testing.T, run func(t *testing.T, client *stile.Client, events func() net.Conn)) {
	t.Helper()
	served(t, func(t *testing.T, _ *Page, client *stile.Client, request func(path string) net.Conn) {
		run(t, client, func() net.Conn { return request(eventsPath) })
	})
}

// A stream of events has no end, though requests are limited in time. A comment every 15 seconds keeps it
// alive.
func TestStream_heartbeat(t *testing.T) {
	t.Parallel()
	streamed(t, func(t *testing.T, _ *stile.Client, events func() net.Conn) {
		conn := events()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		defer conn.Close() // first: closing the body would read it to its end
		text := bufio.NewReader(resp.Body)
		began, beats := time.Now(), 0
		for beats < 40 {
			line, err := text.ReadString('\n')
			if err != nil {
				t.Fatalf("after %v: %v", time.Since(began), err)
			}
			if strings.HasPrefix(line, ": ") {
				beats++
			}
		}
		if took := time.Since(began); took < 40*heartbeatInterval || took > 40*(heartbeatInterval+time.Second) {
			t.Errorf("got 40 heartbeats in %v, want one every %v", took, heartbeatInterval)
		}
	})
}

// A reader gets at most ten messages a second, however often the lines change, and the changes in between
// are not lost.
func TestStream_mergesChanges(t *testing.T) {
	t.Parallel()
	streamed(t, func(t *testing.T, client *stile.Client, events func() net.Conn) {
		conn := events()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil) //nolint:bodyclose // it is closed below
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		defer conn.Close() // first: closing the body would read it to its end
		messages, ended := 0, 0
		go func() {
			text := bufio.NewReader(resp.Body)
			for {
				line, err := text.ReadString('\n')
				if err != nil {
					return
				}
				if strings.HasPrefix(line, "data: ") {
					messages++
					ended += strings.Count(line, `"what":"ended"`)
				}
			}
		}()
		const locks, seconds = 20, 10
		for range seconds {
			var holds []*stile.Hold
			for i := range locks {
				h, err := client.Mutex(fmt.Sprint(i)).Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				holds = append(holds, h)
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(300 * time.Millisecond) // until all are seen
			for _, h := range holds {
				if err := h.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(300 * time.Millisecond)
		}
		synctest.Wait()
		if messages > 10*seconds+1 || ended != locks*seconds {
			t.Errorf("got %d messages in %d s with the end of %d holds, want at most 10 a second and %d", messages, seconds, ended, locks*seconds)
		}
	})
}

// A reader that takes no events is cut off, so that it does not keep others from reading.
func TestStream_readerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	streamed(t, func(t *testing.T, _ *stile.Client, events func() net.Conn) {
		conn := events()
		defer conn.Close()
		time.Sleep(eventTimeout + heartbeatInterval)
		synctest.Wait()
		_ = conn.SetReadDeadline(time.Now().Add(time.Hour))
		began := time.Now()
		for {
			if _, err := conn.Read(make([]byte, 1024)); err != nil {
				break
			}
		}
		if time.Since(began) > 0 {
			t.Errorf("the connection was closed only after %v", time.Since(began))
		}
	})
}

// A client has half a minute to send a request to break a lock.
func TestBreak_slowBody(t *testing.T) {
	t.Parallel()
	served(t, func(t *testing.T, p *Page, _ *stile.Client, _ func(path string) net.Conn) {
		mine, its := net.Pipe()
		var sending sync.WaitGroup
		defer sending.Wait()
		defer mine.Close() // first: it ends the sending
		p.listeners[0].(*pipes).conns <- its
		body := `{"name":"a","token":"1","reason":"stuck"}`
		sending.Go(func() {
			_, _ = fmt.Fprintf(mine, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
				breakPath, len(body), body[:10])
			time.Sleep(requestTimeout - time.Second)
			_, _ = fmt.Fprint(mine, body[10:])
		})
		resp, err := http.ReadResponse(bufio.NewReader(mine), nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden { // breaking locks is off
			t.Errorf("got status %d, want 403", resp.StatusCode)
		}
	})
}
