package page_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The number of connections is limited: those beyond are told so, and many more are just closed.
func TestLimits_connections(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	address := strings.TrimPrefix(w.url, "http://")
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ask := func(c net.Conn) (*http.Response, error) {
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := fmt.Fprintf(c, "GET /api/v1/lines HTTP/1.1\r\nHost: %s\r\n\r\n", address); err != nil {
			return nil, err
		}
		return http.ReadResponse(bufio.NewReader(c), nil)
	}
	var all []net.Conn
	for range 256 {
		all = append(all, dial())
	}
	resp, err := ask(all[255])
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("the last one that is allowed: got %v, %v", resp, err)
	}
	resp.Body.Close()
	over := dial()
	resp, err = ask(over)
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("one more: got %v, %v; want 503", resp, err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); !strings.Contains(string(text), "256 connections") {
		t.Errorf("one more: got %s", text)
	}
	if _, err := over.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("one more: got %v after the answer, want its end", err)
	}
	// Silent connections are closed after a while, so it may take more than 256 on a busy machine.
	eventually(t, "beyond twice the limit, a connection without an answer", func() bool {
		for range 256 {
			all = append(all, dial())
		}
		resp, err := ask(dial())
		if err == nil {
			resp.Body.Close()
		}
		return err != nil
	})
	for _, c := range all {
		_ = c.Close()
	}
	eventually(t, "room for a connection", func() bool {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		resp, err := ask(c)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
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
