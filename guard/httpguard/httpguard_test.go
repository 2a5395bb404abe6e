package httpguard_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/httpguard"
)

// server is a guarded handler that appends the body of each PUT to written.
type server struct {
	guard   *httpguard.Guard
	handler http.Handler
	mu      sync.Mutex
	written []string
	inside  func(r *http.Request) // called within the handler
}

// newServer guards /NAME with the lock NAME.
func newServer() *server {
	s := &server{inside: func(*http.Request) {}}
	s.guard = &httpguard.Guard{Tokens: &guard.Forgetful{}, Lock: func(r *http.Request) string {
		if r.Method == http.MethodGet {
			return ""
		}
		return strings.TrimPrefix(r.URL.Path, "/")
	}}
	s.handler = s.guard.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s.inside(r)
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.written = append(s.written, string(body))
	}))
	return s
}

func put(ctx context.Context, name string, token uint64, body string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPut, "/x", strings.NewReader(body))
	r.URL.Path = "/" + name
	httpguard.SetHeaders(r.Header, name, token)
	return r
}

func (s *server) do(r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w.Result()
}

// status is the status of the response of do.
func (s *server) status(r *http.Request) int {
	resp := s.do(r)
	defer resp.Body.Close()
	return resp.StatusCode
}

func (s *server) expectWritten(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.Join(s.written, " ") != strings.Join(want, " ") {
		t.Errorf("written: got %q, want %q", s.written, want)
	}
}

// Promise: P2
func TestGuard_refusesStaleHolders(t *testing.T) {
	t.Parallel()
	s := newServer()
	const name = `orders/42 "世"` + "\u202e%"
	for _, r := range []struct {
		token  uint64
		status int
	}{{5, 200}, {6, 200}, {5, 409}, {6, 200}} {
		resp := s.do(put(t.Context(), name, r.token, "x"))
		if resp.StatusCode != r.status {
			t.Errorf("token %d: got status %d, want %d", r.token, resp.StatusCode, r.status)
		}
		defer resp.Body.Close()
		stale, ok := errors.AsType[*guard.StaleError](httpguard.CheckResponse(resp))
		if ok != (r.status == 409) || ok && *stale != (guard.StaleError{Resource: name, Token: 5, Newest: 6}) {
			t.Errorf("token %d: CheckResponse: got %+v, %v", r.token, stale, ok)
		}
	}
	s.expectWritten(t, "x", "x", "x")
}

// A handler is paused after its token was compared. The request of the next holder waits, so that its
// write is the last.
// Promise: P2
func TestGuard_handlerPaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.inside = func(r *http.Request) {
			if r.Header.Get(httpguard.TokenHeader) == "5" {
				time.Sleep(time.Hour)
			}
		}
		done := make(chan int)
		send := func(ctx context.Context, name string, token uint64, body string) {
			go func() { done <- s.status(put(ctx, name, token, body)) }()
			synctest.Wait()
		}
		send(t.Context(), "a", 5, "paused")
		send(t.Context(), "b", 6, "other")
		<-done // requests of other locks do not wait
		gone, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		send(gone, "a", 7, "gone")
		if status := <-done; status != 503 {
			t.Errorf("a request whose context ended: got status %d, want 503", status)
		}
		s.expectWritten(t, "other")
		send(t.Context(), "a", 6, "next")
		if a, b := <-done, <-done; a != 200 || b != 200 {
			t.Errorf("got status %d and %d, want 200", a, b)
		}
		s.expectWritten(t, "other", "paused", "next")
	})
}

func TestGuard_otherRefusals(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		change func(r *http.Request)
		status int
		text   string
	}{
		"no headers":       {func(r *http.Request) { clear(r.Header) }, 428, "lacks the header"},
		"no token":         {func(r *http.Request) { r.Header.Del(httpguard.TokenHeader) }, 428, "lacks the header"},
		"two tokens":       {func(r *http.Request) { r.Header.Add(httpguard.TokenHeader, "7") }, 400, "twice"},
		"token zero":       {func(r *http.Request) { r.Header.Set(httpguard.TokenHeader, "0") }, 400, "not a fencing token"},
		"no number":        {func(r *http.Request) { r.Header.Set(httpguard.TokenHeader, "x") }, 400, "no number"},
		"negative":         {func(r *http.Request) { r.Header.Set(httpguard.TokenHeader, "-1") }, 400, "no number"},
		"too large":        {func(r *http.Request) { r.Header.Set(httpguard.TokenHeader, "18446744073709551615") }, 400, "not a fencing token"},
		"malformed name":   {func(r *http.Request) { r.Header.Set(httpguard.NameHeader, "%zz") }, 400, "escape"},
		"of another lock":  {func(r *http.Request) { r.Header.Set(httpguard.NameHeader, "b") }, 400, `under the lock "b", but needs "a"`},
		"Tokens that fail": {func(r *http.Request) { r.URL.Path = "/broken"; httpguard.SetHeaders(r.Header, "broken", 5) }, 503, "could not be compared"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newServer()
			s.guard.Tokens = broken{s.guard.Tokens}
			var reported error
			s.guard.OnError = func(_ *http.Request, err error) { reported = err }
			r := put(t.Context(), "a", 5, "x")
			c.change(r)
			resp := s.do(r)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			var p struct {
				Title, Detail, Resource string
				Status                  int
			}
			if err := json.Unmarshal(body, &p); err != nil || p.Status != c.status || resp.StatusCode != c.status || p.Title == "" || p.Resource == "" {
				t.Errorf("got status %d and %s, want a problem with status %d", resp.StatusCode, body, c.status)
			}
			if !strings.Contains(p.Detail, c.text) || strings.Contains(string(body), "secret") {
				t.Errorf("got detail %q, want %q in it", p.Detail, c.text)
			}
			if (reported != nil) != (c.status == 503) || errors.Is(httpguard.CheckResponse(resp), guard.ErrStale) {
				t.Errorf("OnError got %v", reported)
			}
			s.expectWritten(t)
		})
	}
}

// broken fails for one resource.
type broken struct{ guard.Tokens }

func (b broken) Raise(ctx context.Context, resource string, token uint64) error {
	if resource == "broken" {
		return errors.New("the secret disk is full")
	}
	return b.Tokens.Raise(ctx, resource, token)
}

func TestGuard_unguardedRequests(t *testing.T) {
	t.Parallel()
	s := newServer()
	if status := s.status(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/a", nil)); status != 200 {
		t.Errorf("got status %d, want 200", status)
	}
}

// A conflict that is none of the guard's keeps its body.
func TestCheckResponse_otherConflict(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"text/plain", "application/problem+json"} {
		for _, body := range []string{"", "{}", "no JSON", strings.Repeat("long ", 1<<17)} {
			resp := &http.Response{
				StatusCode: 409, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(strings.NewReader(body)),
			}
			if err := httpguard.CheckResponse(resp); err != nil {
				t.Errorf("%s: got %v, want nil", contentType, err)
			}
			if got, err := io.ReadAll(resp.Body); err != nil || string(got) != body {
				t.Errorf("%s: got a body of %d bytes, %v, want %d", contentType, len(got), err, len(body))
			}
		}
	}
}

// Over a real connection: the headers arrive, and the client learns of the refusal.
func TestGuard_server(t *testing.T) {
	t.Parallel()
	s := newServer()
	hs := httptest.NewServer(s.handler)
	defer hs.Close()
	send := func(token uint64) error {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, hs.URL+"/orders%2F42", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		httpguard.SetHeaders(r.Header, "orders/42", token)
		resp, err := hs.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return httpguard.CheckResponse(resp)
	}
	if err := send(6); err != nil {
		t.Error(err)
	}
	if err := send(5); !errors.Is(err, guard.ErrStale) {
		t.Errorf("got %v, want ErrStale", err)
	}
}
