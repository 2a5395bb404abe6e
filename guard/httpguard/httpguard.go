// Package httpguard is a guard for what the handlers of net/http change.
//
// The client sends the lock's name and the token of its hold in two headers: [SetHeaders]. On the
// server a [Guard] refuses requests with a token that is smaller than one seen before, with status 409.
// The requests of one lock are handled one after the other, each after its token was compared. So a
// handler that is paused blocks later ones, and cannot write after them.
//
// It is an order guard for exclusive holds, with the limits that package guard names. It protects the
// resource on three conditions:
//
//   - Only this process changes the resource. If several processes do, compare in the transaction that
//     makes the change: with [FromRequest] and package sqlguard.
//   - All requests of a lock go through one [Guard].
//   - A handler changes nothing after it has returned. [http.TimeoutHandler] returns before its handler
//     does, so it must be around the guard, not inside it.
//
// A client that is stopped in the middle of its request blocks later ones too, as long as the handler waits for
// the rest of the body. Limit that by ReadTimeout of [http.Server].
//
// The headers are no authentication. A client that may send requests may send any token, and a very
// large one shuts all holders out.
package httpguard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/stilelock/stile/guard"
)

// The headers. The name is escaped as in the path of a URL.
const (
	NameHeader  = "Stile-Lock"
	TokenHeader = "Stile-Token"
)

// SetHeaders sets the headers for a request that is made under a hold.
func SetHeaders(h http.Header, name string, token uint64) {
	h.Set(NameHeader, url.PathEscape(name))
	h.Set(TokenHeader, strconv.FormatUint(token, 10))
}

// ErrNoHeaders means that a request does not have both headers.
var ErrNoHeaders = errors.New("the request lacks the header " + NameHeader + " or " + TokenHeader)

// FromRequest returns the lock's name and the token that a request was made with. The error matches
// [ErrNoHeaders] if a header is missing, and [guard.ErrBadToken] if no hold can have the token. It matches
// neither if a header is there twice, or the name is not escaped correctly.
func FromRequest(r *http.Request) (name string, token uint64, err error) {
	names, tokens := r.Header.Values(NameHeader), r.Header.Values(TokenHeader)
	switch {
	case len(names) == 0 || len(tokens) == 0:
		return "", 0, ErrNoHeaders
	case len(names) > 1 || len(tokens) > 1:
		return "", 0, errors.New("the request has a header twice: " + NameHeader + " or " + TokenHeader)
	}
	if name, err = url.PathUnescape(names[0]); err != nil {
		return "", 0, fmt.Errorf("header %s: %w", NameHeader, err)
	}
	if token, err = strconv.ParseUint(tokens[0], 10, 64); err != nil {
		return "", 0, fmt.Errorf("header %s: %q is no number: %w", TokenHeader, tokens[0], guard.ErrBadToken)
	}
	return name, token, guard.CheckToken(name, token)
}

// A Guard wraps handlers. Its fields must not change once it is used. It is safe for concurrent use. Two
// Guards do not wait for each other's requests: use one for all handlers that change what a lock protects.
type Guard struct {
	// Tokens remembers the largest tokens. Use one that outlives the process.
	Tokens guard.Tokens
	// Lock returns the name of the lock that a request has to be made under; "" means that it needs
	// none, as one that only reads. The name must not come from the headers: a client could then choose
	// a lock that nobody uses.
	Lock func(*http.Request) string
	// OnError, if it is set, is called when Tokens fails. The client gets status 503 without a reason.
	OnError func(*http.Request, error)

	mu      sync.Mutex
	running map[string]*requestLock // by the name of the lock
}

// A requestLock lets one request at a time run.
type requestLock struct {
	busy  chan struct{} // holds one value while a request runs
	users int           // requests that run or wait; guarded by the guard's mutex
}

// Wrap returns a handler that runs next for requests that are not stale. It answers others with a
// problem as in RFC 9457:
//
//	400  the headers are malformed, or name another lock
//	409  the token is stale; see [CheckResponse]
//	428  the headers are missing
//	503  Tokens failed, or the request's context ended while another request was running
func (g *Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock := g.Lock(r)
		if lock == "" {
			next.ServeHTTP(w, r)
			return
		}
		name, token, err := FromRequest(r)
		switch {
		case errors.Is(err, ErrNoHeaders):
			problem{Status: http.StatusPreconditionRequired, Detail: err.Error(), Resource: lock}.write(w)
			return
		case err != nil:
			problem{Status: http.StatusBadRequest, Detail: err.Error(), Resource: lock}.write(w)
			return
		case name != lock:
			detail := fmt.Sprintf("the request is made under the lock %q, but needs %q", name, lock)
			problem{Status: http.StatusBadRequest, Detail: detail, Resource: lock}.write(w)
			return
		}
		leave, err := g.enter(r.Context(), lock)
		if err != nil { // the client has gone, or a time limit of the server's has passed
			detail := "another request under the lock is still running: " + err.Error()
			problem{Status: http.StatusServiceUnavailable, Detail: detail, Resource: lock}.write(w)
			return
		}
		defer leave()
		err = g.Tokens.Raise(r.Context(), lock, token)
		if stale, ok := errors.AsType[*guard.StaleError](err); ok {
			problem{
				Type: staleType, Status: http.StatusConflict, Detail: stale.Error(),
				Resource: lock, Token: stale.Token, Newest: stale.Newest,
			}.write(w)
			return
		}
		if err != nil {
			if g.OnError != nil {
				g.OnError(r, err)
			}
			problem{Status: http.StatusServiceUnavailable, Detail: "the token could not be compared", Resource: lock}.write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// enter waits until no other request of the lock is running. The caller must call leave.
func (g *Guard) enter(ctx context.Context, lock string) (leave func(), err error) {
	g.mu.Lock()
	t := g.running[lock]
	if t == nil {
		t = &requestLock{busy: make(chan struct{}, 1)}
		if g.running == nil {
			g.running = make(map[string]*requestLock)
		}
		g.running[lock] = t
	}
	t.users++
	g.mu.Unlock()
	done := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(g.running, lock)
		}
	}
	select {
	case t.busy <- struct{}{}:
		return func() { <-t.busy; done() }, nil
	case <-ctx.Done():
		done()
		return nil, ctx.Err()
	}
}

// staleType identifies the problem of a stale token.
const staleType = "urn:stile:stale-token"

// problem is the body of a refusal. Tokens are strings: not all JSON readers have 63-bit numbers.
type problem struct {
	Type     string `json:"type,omitempty"`
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail"`
	Resource string `json:"resource,omitempty"`
	Token    uint64 `json:"token,string,omitempty"`
	Newest   uint64 `json:"newest,string,omitempty"`
}

const problemMediaType = "application/problem+json"

func (p problem) write(w http.ResponseWriter) {
	p.Title = http.StatusText(p.Status)
	if p.Type == staleType {
		p.Title = "Stale fencing token"
	}
	w.Header().Set("Content-Type", problemMediaType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client may have gone
}

// unread is a body with a part that was read before.
type unread struct {
	io.Reader
	io.Closer
}

// maxProblem is the maximum size of a body that CheckResponse reads.
const maxProblem = 64 << 10

// CheckResponse returns a [*guard.StaleError] if a server has refused the request because of its token:
// the lock is lost. Then it has read the body, and the caller still has to close it. For all other
// responses it returns nil, and the body is unread.
func CheckResponse(resp *http.Response) error {
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusConflict || mediaType != problemMediaType {
		return nil
	}
	body, failed := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	var p problem
	if failed == nil && json.Unmarshal(body, &p) == nil && p.Type == staleType {
		return &guard.StaleError{Resource: p.Resource, Token: p.Token, Newest: p.Newest}
	}
	rest := resp.Body // its next Read fails too, if this one has
	resp.Body = unread{io.MultiReader(bytes.NewReader(body), rest), rest}
	return nil
}
