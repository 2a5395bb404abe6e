package page_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/cmd/stile/internal/page"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// limited serves a page of an empty store with limits of its own. It closes a connection only to keep to them.
func limited(t *testing.T, proven, unproven int, configure func(*page.Config)) *world {
	t.Helper()
	w := &world{T: t, st: memstore.New()}
	client := w.client("observer")
	cfg := page.Config{Address: "127.0.0.1:0", Store: "mem:", Logger: slog.New(slog.DiscardHandler)}
	if configure != nil {
		configure(&cfg)
	}
	p, err := page.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	page.SetMaxConnections(p, proven, unproven)
	page.SetLongTimeouts(p)
	p.Serve(page.Source{Client: client, Observer: observe.New(client)})
	t.Cleanup(p.Close)
	w.page, w.url = p, p.URL()
	return w
}

// peer is a connection of a client to a page.
type peer struct {
	net.Conn
	w *world
	r *bufio.Reader
}

func (w *world) dial() *peer { w.Helper(); return w.dialFrom(nil) }

// dialFrom opens a connection from an address; nil for any.
func (w *world) dialFrom(ip net.IP) *peer {
	w.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: ip}}
	c, err := d.Dial("tcp", strings.TrimPrefix(strings.TrimPrefix(w.url, "http://"), "https://"))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return &peer{c, w, bufio.NewReader(c)}
}

// reply is an answer whose body need not be read.
type reply struct {
	status int
	header http.Header
	body   *bufio.Reader
}

// ask makes a request and reads the header of the answer.
func (p *peer) ask(path, token string) reply {
	p.w.Helper()
	if _, err := fmt.Fprintf(p, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", path, token); err != nil {
		p.w.Fatal(err)
	}
	resp, err := http.ReadResponse(p.r, nil) //nolint:bodyclose // the connection is closed at the end of the test
	if err != nil {
		p.w.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, bufio.NewReader(resp.Body)}
}

// want asks for a path, reads the answer, and checks its status.
func (p *peer) want(path, token string, status int) {
	p.w.Helper()
	resp := p.ask(path, token)
	body, err := io.ReadAll(resp.body)
	if err != nil {
		p.w.Fatal(err)
	}
	if resp.status != status {
		p.w.Errorf("%s: got status %d, want %d: %s", path, resp.status, status, body)
	}
}

// wantEnd waits until the server has closed the connection.
func (p *peer) wantEnd() {
	p.w.Helper()
	if n, err := p.r.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		p.w.Errorf("got %d bytes, %v, want the end of the connection", n, err)
	}
}

// The number of connections is limited. One that waits for its next request gives way to a new one; if all of them have a
// request, the new one is told so.
func TestLimits_connections(t *testing.T) {
	t.Parallel()
	const limit = 4
	w := limited(t, limit, 100, nil)
	idle := w.dial()
	idle.want("/api/v1/lines", "", http.StatusOK)
	idle.want("/api/v1/lines", "", http.StatusOK) // it may have as many as it likes
	var streams []reply
	var streaming []*peer
	for range limit {
		p := w.dial()
		resp := p.ask("/api/v1/events", "")
		if resp.status != http.StatusOK {
			t.Fatalf("stream %d: got status %d", len(streams)+1, resp.status)
		}
		streams, streaming = append(streams, resp), append(streaming, p)
	}
	idle.wantEnd()
	over := w.dial()
	resp := over.ask("/api/v1/lines", "")
	text, _ := io.ReadAll(resp.body)
	if resp.status != http.StatusServiceUnavailable || !strings.Contains(string(text), "4 connections") || resp.header.Get("Retry-After") == "" {
		t.Errorf("one more: got status %d, %v, %s; want 503", resp.status, resp.header, text)
	}
	over.wantEnd()
	for _, s := range streams {
		if line, err := s.body.ReadString('\n'); err != nil || line != "event: status\n" {
			t.Errorf("a stream: got %q, %v", line, err)
		}
	}
	_ = streaming[0].Close()
	eventually(t, "room for a connection", func() bool {
		p := w.dial()
		defer p.Close()
		resp := p.ask("/api/v1/lines", "")
		return resp.status == http.StatusOK
	})
}

// Connections of clients without a token keep out no client that has one, neither before nor after its first request: the
// newest of them replaces the oldest.
func TestLimits_unproven(t *testing.T) {
	t.Parallel()
	const flood = 300
	w := limited(t, 8, page.MaxUnproven, func(c *page.Config) { c.Tokens = tokens(t) })
	before := w.dial()
	before.want("/api/v1/lines", readToken, http.StatusOK)
	stream := w.dial()
	resp := stream.ask("/api/v1/events", readToken)
	var silent []*peer
	for i := range flood {
		p := w.dial()
		switch i % 4 {
		case 0: // sends nothing
		case 1:
			p.want("/", "", http.StatusOK)
		case 2:
			p.want("/api/v1/lines", "a token that is wrong", http.StatusUnauthorized)
		default:
			if _, err := fmt.Fprint(p, "GET / HTTP/1.1\r\nHost: local"); err != nil {
				t.Fatal(err)
			}
		}
		silent = append(silent, p)
	}
	for range 4 {
		w.dial().want("/api/v1/lines", readToken, http.StatusOK)
	}
	before.want("/api/v1/lines", readToken, http.StatusOK)
	if line, err := resp.body.ReadString('\n'); resp.status != http.StatusOK || err != nil || line != "event: status\n" {
		t.Errorf("the stream: got status %d, %q, %v", resp.status, line, err)
	}
	for _, p := range silent[:flood-page.MaxUnproven] {
		p.wantEnd()
	}
}

// A browser loads the page though a user of the machine has taken all places from other addresses of loopback.
func TestLimits_browser(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has all addresses of 127.0.0.0/8")
	}
	w := limited(t, 8, page.MaxUnproven, func(c *page.Config) { c.Tokens = tokens(t) })
	for i := range page.MaxUnproven {
		w.dialFrom(net.IPv4(127, 0, 1, byte(i)))
	}
	var browser []*peer
	for range 6 {
		browser = append(browser, w.dial())
	}
	for _, path := range []string{"/", "/static/app.js", "/static/timeline.js"} {
		for i, p := range browser {
			p.want(path, "", http.StatusOK)
			var last *peer
			for j := range 8 { // 48 until its next request: of 64 places the others have more
				last = w.dialFrom(net.IPv4(127, 0, 2, byte(8*i+j)))
			}
			last.want("/", "", http.StatusOK) // so all of them have been accepted
		}
	}
	browser[0].want("/api/v1/lines", readToken, http.StatusOK)
}

// With TLS, clients that do not even begin the handshake keep nobody out.
func TestLimits_unprovenTLS(t *testing.T) {
	t.Parallel()
	server, config := certificates(t, false, "localhost")
	config.ServerName = "localhost"
	w := limited(t, 256, page.MaxUnproven, func(c *page.Config) { c.TLS, c.Tokens = server, tokens(t) })
	for range 300 {
		w.dial()
	}
	p := w.dial()
	p.Conn = tls.Client(p.Conn, config)
	p.r = bufio.NewReader(p.Conn)
	for range 3 {
		p.want("/api/v1/lines", readToken, http.StatusOK)
	}
}

// An answer about several lines ends when it has too many entries.
func TestLimits_entries(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	se, err := st.Open(t.Context(), store.SessionOptions{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = se.Close(context.Background()) }()
	query := "leases?"
	for i := range 60 {
		name := fmt.Sprintf("line/%02d", i)
		query += "key=" + base64Of(name) + "&"
		for range 100 {
			req := store.Request{Name: name, Mode: line.Exclusive, Notify: func(store.Standing) {}}
			if _, err := se.Enqueue(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
	}
	w := startOn(t, st, nil)
	var lines linesAnswer
	eventually(t, "the lines", func() bool {
		w.get("lines", &lines)
		return lines.Read
	})
	if len(lines.Lines) != 50 || lines.Next == "" {
		t.Errorf("lines: got %d, and the next one %q; want 50, and more", len(lines.Lines), lines.Next)
	}
	var leases struct {
		Leases []struct{ Entries []struct{} }
	}
	w.get(query, &leases)
	if n := len(leases.Leases); n != 51 {
		t.Errorf("leases: got %d lines, want 51", n)
	}
}

func TestLimits_headers(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	resp, err := http.Get(w.url + "/api/v1/line?name=" + strings.Repeat("x", 200<<10))
	if err == nil { // otherwise the connection was closed before all was sent
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a long URL: got status %d, want 431", resp.StatusCode)
		}
	}
	keys := strings.Repeat("key="+base64Of(strings.Repeat("x", 512))+"&", 100)
	if status, _, text := w.request(http.MethodGet, "/api/v1/leases?"+keys); status != http.StatusOK {
		t.Errorf("the names of 100 locks: got status %d, want 200: %s", status, text)
	}
}
