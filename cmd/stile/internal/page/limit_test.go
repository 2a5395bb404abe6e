package page_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/cmd/stile/internal/page"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// The number of connections is limited: those beyond are told so.
func TestLimits_connections(t *testing.T) {
	t.Parallel()
	const limit = 4
	w := &world{T: t, st: memstore.New()}
	client := w.client("observer")
	p, err := page.Listen(page.Config{Address: "127.0.0.1:0", Store: "mem:", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	page.SetMaxConnections(p, limit)
	p.Serve(page.Source{Client: client, Observer: observe.New(client)})
	t.Cleanup(p.Close)

	address := strings.TrimPrefix(p.URL(), "http://")
	ask := func() (c net.Conn, status int, text string) {
		t.Helper()
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := fmt.Fprintf(c, "GET /api/v1/lines HTTP/1.1\r\nHost: %s\r\n\r\n", address); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return c, resp.StatusCode, string(body)
	}
	// Connections with a request before are closed when they have had none for a minute; others after ten seconds.
	var first net.Conn
	for i := range limit {
		c, status, text := ask()
		if status != http.StatusOK {
			t.Fatalf("connection %d of %d: got status %d, %s", i+1, limit, status, text)
		}
		first = cmp.Or(first, c)
	}
	over, status, text := ask()
	if status != http.StatusServiceUnavailable || !strings.Contains(text, "4 connections") {
		t.Errorf("one more: got status %d, %s; want 503", status, text)
	}
	if _, err := over.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("one more: got %v after the answer, want its end", err)
	}
	_ = first.Close()
	eventually(t, "room for a connection", func() bool {
		c, status, _ := ask()
		defer c.Close()
		return status == http.StatusOK
	})
}

// Connections beyond twice the limit are closed at once. Each counts until it is closed.
func TestLimits_listener(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const limit = 2
	l := page.LimitConnections(inner, limit)
	t.Cleanup(func() { _ = l.Close() })
	accepted := make(chan net.Conn, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var open []net.Conn
	for range 2 * limit {
		dial()
		open = append(open, <-accepted)
	}
	over := dial()
	_ = over.SetDeadline(time.Now().Add(patience))
	if _, err := over.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("beyond twice the limit: got %v, want the end of the connection", err)
	}
	if len(accepted) > 0 {
		t.Error("beyond twice the limit: the connection was accepted")
	}
	for range 2 { // the second time does not count
		_ = open[0].Close()
	}
	dial()
	<-accepted
	over = dial()
	_ = over.SetDeadline(time.Now().Add(patience))
	if _, err := over.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("beyond twice the limit again: got %v, want the end of the connection", err)
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
