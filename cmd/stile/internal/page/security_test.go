package page_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/node"
	"github.com/stilelock/stile/cmd/stile/internal/node/testcert"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/cmd/stile/internal/page"
	"github.com/stilelock/stile/store/memstore"
)

func header(name string, values ...string) func(*http.Request) {
	return func(r *http.Request) { r.Header[name] = values }
}

func host(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }

func body(text string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Set("Content-Type", "application/json")
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	}
}

// A web page of another site cannot make a browser read or break anything.
func TestSecurity_foreignPages(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(w.url, "http://"))
	for _, tt := range []struct {
		what   string
		method string
		change []func(*http.Request)
		want   int
	}{
		{"a program", http.MethodGet, nil, 200},
		{"the page itself", http.MethodGet, []func(*http.Request){header("Origin", w.url), header("Sec-Fetch-Site", "same-origin")}, 200},
		{"a typed address", http.MethodGet, []func(*http.Request){header("Sec-Fetch-Site", "none")}, 200},
		{"localhost", http.MethodGet, []func(*http.Request){host("localhost:" + port), header("Origin", "http://localhost:"+port)}, 200},
		{"IPv6 loopback", http.MethodGet, []func(*http.Request){host("[::1]:" + port)}, 200},
		{"another origin", http.MethodGet, []func(*http.Request){header("Origin", "http://evil.example")}, 403},
		{"another port", http.MethodGet, []func(*http.Request){header("Origin", "http://127.0.0.1:1")}, 403},
		{"another loopback name", http.MethodGet, []func(*http.Request){header("Origin", "http://localhost:"+port)}, 403},
		{"another scheme", http.MethodGet, []func(*http.Request){header("Origin", "https"+strings.TrimPrefix(w.url, "http"))}, 403},
		{"a sandboxed frame", http.MethodGet, []func(*http.Request){header("Origin", "null")}, 403},
		{"an origin with a user", http.MethodGet, []func(*http.Request){header("Origin", "http://x@127.0.0.1:"+port)}, 403},
		{"a second origin", http.MethodGet, []func(*http.Request){header("Origin", w.url, "http://evil.example")}, 403},
		{"another site", http.MethodGet, []func(*http.Request){header("Sec-Fetch-Site", "cross-site")}, 403},
		{"the same site", http.MethodGet, []func(*http.Request){header("Sec-Fetch-Site", "same-site")}, 403},
		{"DNS rebinding", http.MethodGet, []func(*http.Request){host("evil.example:" + port)}, 421},
		{"DNS rebinding with its origin", http.MethodGet, []func(*http.Request){host("evil.example:" + port), header("Origin", "http://evil.example:"+port)}, 421},
		{"a name that begins alike", http.MethodGet, []func(*http.Request){host("localhost.evil.example")}, 421},
		{"a preflight request", http.MethodOptions, []func(*http.Request){header("Origin", w.url), header("Access-Control-Request-Method", "POST")}, 405},
		{"a form", http.MethodPost, []func(*http.Request){header("Content-Type", "text/plain")}, 405},
		{"HEAD", http.MethodHead, nil, 405},
		{"PUT", http.MethodPut, nil, 405},
		{"DELETE", http.MethodDelete, nil, 405},
	} {
		for _, path := range []string{"/", "/static/app.js", "/api/v1/lines", "/api/v1/events", "/metrics", "/openapi.json"} {
			if tt.want == 200 && path == "/api/v1/events" {
				continue // never ends
			}
			status, h, text := w.request(tt.method, path, tt.change...)
			if status != tt.want {
				t.Errorf("%s: %s: got status %d, want %d: %s", tt.what, path, status, tt.want, text)
			}
			if got := h.Get("Allow"); (got == http.MethodGet) != (status == http.StatusMethodNotAllowed) {
				t.Errorf("%s: %s: got status %d and the header Allow: %q", tt.what, path, status, got)
			}
			for name := range h {
				if strings.HasPrefix(name, "Access-Control-") || name == "Set-Cookie" {
					t.Errorf("%s: %s: the answer has the header %s", tt.what, path, name)
				}
			}
			if csp := h.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'; script-src 'self';") {
				t.Errorf("%s: %s: got the content security policy %q", tt.what, path, csp)
			}
		}
	}
	status, _, _ := w.request(http.MethodPost, "/api/v1/break", body(`{}`), header("Content-Type", "text/plain"))
	if status != http.StatusUnsupportedMediaType {
		t.Errorf("POST of text: got status %d, want 415", status)
	}
	status, _, _ = w.request(http.MethodPost, "/api/v1/break", body(`{}`), header("Origin", "http://evil.example"))
	if status != http.StatusForbidden {
		t.Errorf("POST from another page: got status %d, want 403", status)
	}
}

// The path of a break takes no other method than POST, and a link to it breaks nothing.
func TestSecurity_methodOfBreak(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodOptions} {
		if status, h, text := w.request(method, "/api/v1/break"); status != http.StatusMethodNotAllowed || h.Get("Allow") != http.MethodPost {
			t.Errorf("%s: got status %d and Allow: %q, want 405 and POST: %s", method, status, h.Get("Allow"), text)
		}
	}
}

// Errors are problems with a sentence.
func TestSecurity_errorsAreProblems(t *testing.T) {
	t.Parallel()
	w := start(t, func(c *page.Config) { c.Tokens = tokens(t) })
	for path, want := range map[string]int{
		"/nothing": 404, "/api/v1/nothing": 404, "/api/v1/line": 400, "/api/v1/line?key=!": 400, "/api/v1/line?name=a&key=YQ": 400,
		"/api/v1/lines?limit=1001": 422, "/api/v1/lines?limit=x": 422, "/api/v1/lines?after=!": 400, "/api/v1/leases": 422,
		"/api/v1/leases?" + strings.Repeat("key=YQ&", 101): 422,
	} {
		w.token = readToken
		status, h, text := w.request(http.MethodGet, path)
		var problem struct {
			Title, Detail string
			Status        int
		}
		if err := json.Unmarshal([]byte(text), &problem); err != nil || status != want || problem.Status != want || problem.Title == "" ||
			problem.Detail == "" || h.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: got status %d, want %d, and the problem %+v (%v, %s)", path, status, want, problem, err, h.Get("Content-Type"))
		}
	}
}

// The detail of an error says which part of the input is wrong, and what it must be.
func TestSecurity_errorsNameTheInput(t *testing.T) {
	t.Parallel()
	w := start(t, func(c *page.Config) { c.Tokens, c.AllowBreak = tokens(t), true })
	w.token = breakToken
	for _, tt := range []struct{ path, body, want string }{
		{"lines?limit=1001", "", "limit: expected number <= 1000"},
		{"lines?limit=x", "", "limit: invalid integer"},
		{"leases", "", "key: required query parameter is missing"},
		{"break", `{"name":"a","token":"x","reason":""}`, "reason: expected length >= 1; token: expected string to be decimal number"},
		{"break", `{"name":"a","token":1,"reason":"x"}`, "token: expected string"},
		{"break", `{"name":"a","token":"99999999999999999999","reason":"x"}`, "token: it is larger than any token"},
		{"break", `{"name":"a","reason":"x"}`, "the body: expected required property token to be present"},
		{"break", `{`, "the body: unexpected end of JSON input"},
	} {
		method, change := http.MethodGet, []func(*http.Request){}
		if tt.body != "" {
			method, change = http.MethodPost, append(change, body(tt.body))
		}
		_, _, text := w.request(method, "/api/v1/"+tt.path, change...)
		var problem struct{ Detail string }
		if err := json.Unmarshal([]byte(text), &problem); err != nil || problem.Detail != tt.want {
			t.Errorf("%s %s: got the detail %q, want %q", tt.path, tt.body, problem.Detail, tt.want)
		}
	}
}

// With tokens, everything that holds data needs one.
func TestSecurity_tokens(t *testing.T) {
	t.Parallel()
	w := start(t, func(c *page.Config) { c.Tokens, c.AllowBreak = tokens(t), true })
	for _, path := range []string{
		"/api/v1/server", "/api/v1/lines", "/api/v1/line?name=a", "/api/v1/history?name=a", "/api/v1/events", "/api/v1/leases?key=YQ",
		"/api/v1/waits", "/api/v1/blame", "/metrics", "/api/v1/nothing", "/nothing",
	} {
		for _, value := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Basic " + readToken, readToken, "Bearer " + readToken + "x", "Bearer " + readToken[1:]} {
			status, h, text := w.request(http.MethodGet, path, header("Authorization", value))
			if status != http.StatusUnauthorized || h.Get("WWW-Authenticate") == "" || strings.Contains(text, readToken) {
				t.Errorf("%s with %q: got status %d, want 401: %s", path, value, status, text)
			}
		}
	}
	for token, role := range map[string]string{readToken: "read", breakToken: "break"} {
		w.token = token
		var server struct {
			Role       string
			AllowBreak bool `json:"allow_break"`
		}
		if w.get("server", &server); server.Role != role || !server.AllowBreak {
			t.Errorf("server: got %+v, want the role %s", server, role)
		}
		if status, _, _ := w.request(http.MethodGet, "/metrics"); status != http.StatusOK {
			t.Errorf("metrics with the role %s: got status %d", role, status)
		}
		w.events("", "").await("status")
	}
	w.token = ""
	for _, path := range []string{"//api/v1/lines", "/static/../api/v1/lines", "/./api/v1/lines", "/%61pi/v1/lines"} {
		if status, _, text := w.request(http.MethodGet, path); status != http.StatusUnauthorized {
			t.Errorf("%s: got status %d, want 401: %s", path, status, text)
		}
	}
}

func TestReadTokens_refusesBadFiles(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdefSECRET"
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"readable": {"read " + secret, 0o604, "other users"},
		"writable": {"read " + secret, 0o602, "other users"},
		"empty":    {"\n# nothing\n", 0o600, "has no token"},
		"role":     {"write " + secret, 0o600, "line 1: the first word must be the role"},
		"words":    {"read " + secret + " x", 0o600, "line 1: want two words"},
		"swapped":  {secret + " read", 0o600, "line 1: the first word must be the role"},
		"short":    {"read SECRET", 0o600, "line 1: the token is shorter than 16"},
		"twice":    {"read " + secret + "\nbreak " + secret, 0o600, "lines 1 and 2 have the same token"},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, tt.mode); err != nil {
			t.Fatal(err)
		}
		_, err := page.ReadTokens(file)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "--page-tokens") || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: got %v, want an error with %q and no secret", name, err, tt.want)
		}
	}
	if _, err := page.ReadTokens(filepath.Join(dir, "missing")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("missing: got %v", err)
	}
}

// certificates returns a configuration of TLS, and that of a client with a certificate.
func certificates(t *testing.T, clientCA bool, hosts ...string) (server, client *tls.Config) {
	t.Helper()
	ca := testcert.NewAuthority(t)
	files := ca.Issue("server", testcert.Spec{Hosts: hosts})
	spec := node.TLS{Cert: files.Cert, Key: files.Key}
	if clientCA {
		spec.ClientCA = ca.File
	}
	server, err := spec.Server()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	own := ca.Issue("client", testcert.Spec{})
	pair, err := tls.LoadX509KeyPair(own.Cert, own.Key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return server, &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

// An error of listening says what to do about it.
func TestListen_saysWhatToDo(t *testing.T) {
	t.Parallel()
	first, err := page.Listen(page.Config{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	address := strings.TrimPrefix(first.URL(), "http://")
	for _, tt := range []struct {
		cfg  page.Config
		want string
	}{
		{page.Config{Address: address}, "stop the program that uses it"},
		{page.Config{Socket: filepath.Join(t.TempDir(), "none", "s")}, "create its directory"},
		{page.Config{Socket: "/" + strings.Repeat("x", 200)}, "choose another"},
	} {
		p, err := page.Listen(tt.cfg)
		if err == nil {
			p.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Count(err.Error(), "stop the program") != strings.Count(tt.want, "stop the program") {
			t.Errorf("%+v: got %v, want %q", tt.cfg, err, tt.want)
		}
	}
}

// Beyond the loopback interface the page needs TLS, and tokens or client certificates.
func TestSecurity_refusesToShowLocksToEverybody(t *testing.T) {
	t.Parallel()
	plain, _ := certificates(t, false, "127.0.0.1")
	mutual, _ := certificates(t, true, "127.0.0.1")
	all, readers := tokens(t), tokensOf(t, "read "+readToken)
	users := func() bool { return true }
	socket := filepath.Join(t.TempDir(), "s")
	for _, tt := range []struct {
		what string
		cfg  page.Config
		want string // part of the error; "" for none
	}{
		{"loopback", page.Config{Address: "127.0.0.1:0"}, ""},
		{"localhost", page.Config{Address: "localhost:0"}, ""},
		{"socket", page.Config{Socket: socket}, ""},
		{"TLS and tokens", page.Config{Address: "0.0.0.0:0", TLS: plain, Tokens: all}, ""},
		{"client certificates", page.Config{Address: "0.0.0.0:0", TLS: mutual}, ""},
		{"users and tokens", page.Config{Address: "127.0.0.1:0", Restricted: users, Tokens: all}, ""},
		{"break", page.Config{Address: "127.0.0.1:0", AllowBreak: true, Tokens: all}, ""},
		{"nothing", page.Config{}, "no address"},
		{"everywhere without TLS", page.Config{Address: "0.0.0.0:0"}, "without TLS"},
		{"everywhere without TLS, with tokens", page.Config{Address: "0.0.0.0:0", Tokens: all}, "without TLS"},
		{"IPv6 without TLS", page.Config{Address: "[::]:0", Tokens: all}, "without TLS"},
		{"no host", page.Config{Address: ":0", Tokens: all}, "must be an IP address"},
		{"a name", page.Config{Address: "example.com:0", Tokens: all}, "must be an IP address"},
		{"no port", page.Config{Address: "127.0.0.1"}, "host:port"},
		{"TLS for everybody", page.Config{Address: "0.0.0.0:0", TLS: plain}, "for everybody"},
		{"users", page.Config{Address: "127.0.0.1:0", Restricted: users}, "--page-tokens"},
		{"users, on a socket", page.Config{Socket: socket, Restricted: users}, "--page-tokens"},
		{"users, with client certificates", page.Config{Address: "127.0.0.1:0", Restricted: users, TLS: mutual}, "--page-tokens"},
		{"client certificates, on a socket too", page.Config{Address: "127.0.0.1:0", TLS: mutual, Socket: socket}, "--page-tokens"},
		{"break without tokens", page.Config{Address: "127.0.0.1:0", AllowBreak: true}, "--page-tokens"},
		{"break without a token of that role", page.Config{Address: "127.0.0.1:0", AllowBreak: true, Tokens: readers}, "no token of the role break"},
	} {
		p, err := page.Listen(tt.cfg)
		if err == nil {
			p.Close()
		}
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", tt.what, err, tt.want)
		}
	}
}

// If users are required only later, the page shows nothing any more without a token.
func TestSecurity_usersRequiredLater(t *testing.T) {
	t.Parallel()
	required := make(chan struct{})
	w := start(t, func(c *page.Config) {
		c.Restricted = func() bool {
			select {
			case <-required:
				return true
			default:
				return false
			}
		}
	})
	if status, _, _ := w.request(http.MethodGet, "/api/v1/lines"); status != http.StatusOK {
		t.Errorf("before: got status %d, want 200", status)
	}
	close(required)
	if status, _, text := w.request(http.MethodGet, "/api/v1/lines"); status != http.StatusUnauthorized || !strings.Contains(text, "--page-tokens") {
		t.Errorf("after: got status %d, want 401: %s", status, text)
	}
}

func TestSecurity_TLS(t *testing.T) {
	t.Parallel()
	server, own := certificates(t, true, "127.0.0.1", "locks.example.com")
	w := start(t, func(c *page.Config) { c.TLS = server })
	if !strings.HasPrefix(w.url, "https://127.0.0.1:") {
		t.Fatalf("got the address %s", w.url)
	}
	get := func(config *tls.Config, host string) (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/api/v1/lines", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		return resp.StatusCode, nil
	}
	for host, want := range map[string]int{"": 200, "locks.example.com": 200, "LOCKS.example.com:443": 200, "evil.example": 421} {
		if status, err := get(own, host); err != nil || status != want {
			t.Errorf("host %q: got status %d (%v), want %d", host, status, err, want)
		}
	}
	without := own.Clone()
	without.Certificates = nil
	if status, err := get(without, ""); err == nil {
		t.Errorf("without a certificate: got status %d, want an error", status)
	}
	r, err := http.Get("http://" + strings.TrimPrefix(w.url, "https://") + "/")
	if err == nil {
		defer r.Body.Close()
		if r.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP: got status %d, want 400", r.StatusCode)
		}
	}
}

// At all addresses, the page has the names of its certificate and no others, and says one of them.
func TestSecurity_namesAtAllAddresses(t *testing.T) {
	t.Parallel()
	server, own := certificates(t, false, "*.wild.example", "locks.example.com", "127.0.0.1")
	p, err := page.Listen(page.Config{Address: "0.0.0.0:0", TLS: server, Tokens: tokens(t), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Serve(page.Source{Client: client, Observer: observe.New(client)})
	port, ok := strings.CutPrefix(p.URL(), "https://locks.example.com:")
	if !ok {
		t.Fatalf("got the address %s, want the name in the certificate", p.URL())
	}
	transport := &http.Transport{TLSClientConfig: own, DisableKeepAlives: true}
	for host, want := range map[string]int{"locks.example.com": 200, "a.wild.example": 200, "127.0.0.1": 200, "0.0.0.0": 421, "localhost": 421} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1:"+port+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != want || strings.Contains(string(text), "::") {
			t.Errorf("host %s: got status %d, want %d: %.300s", host, resp.StatusCode, want, text)
		}
	}
}

func TestPage_socket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "page")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "page.sock")
	if err := os.WriteFile(path, nil, 0o600); err != nil { // as if left behind
		t.Fatal(err)
	}
	w := start(t, func(c *page.Config) { c.Address, c.Socket = "", path })
	if w.page.URL() != "" || w.page.Socket() != path {
		t.Errorf("got the address %q and the socket %q", w.page.URL(), w.page.Socket())
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	for origin, want := range map[string]int{"": 200, "https://locks.example.com": 200, "http://evil.example": 403} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://locks.example.com/api/v1/lines", nil)
		if err != nil {
			t.Fatal(err)
		}
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("origin %q: got status %d, want %d", origin, resp.StatusCode, want)
		}
	}
	client.CloseIdleConnections()
	w.page.Close()
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is still there after Close")
	}
}

// breakBody is a request to break an entry. Its reason tries to forge a line of the log.
func breakBody(name string, token uint64) string {
	return fmt.Sprintf(`{"name":%q,"token":"%d","reason":"stuck\nlevel=ERROR"}`, name, token)
}

// Breaking needs the flag, the role and the token, and is logged.
func TestBreak_needsFlagRoleAndToken(t *testing.T) {
	t.Parallel()
	request := func(h *stile.Hold) func(*http.Request) { return body(breakBody("a", h.Token())) }
	off := start(t, func(c *page.Config) { c.Tokens = tokens(t) })
	h := off.lock(off.client("ann"), "a")
	off.token = breakToken
	if status, _, text := off.request(http.MethodPost, "/api/v1/break", request(h)); status != http.StatusForbidden || !strings.Contains(text, "--allow-break") {
		t.Errorf("without --allow-break: got status %d, want 403: %s", status, text)
	}
	if h.Context().Err() != nil {
		t.Error("the hold was broken without --allow-break")
	}

	w := start(t, func(c *page.Config) { c.Tokens, c.AllowBreak = tokens(t), true })
	w.token = readToken
	w.awaitLines(0)
	h = w.lock(w.client("ann"), "a")
	w.awaitLines(1)
	for token, want := range map[string]int{"": 401, "wrong": 401, readToken: 403} {
		w.token = token
		if status, _, text := w.request(http.MethodPost, "/api/v1/break", request(h)); status != want {
			t.Errorf("with the token %q: got status %d, want %d: %s", token, status, want, text)
		}
	}
	w.token = breakToken
	for text, want := range map[string]int{
		`{"name":"a","token":"1","reason":"x"}`:                                   404,
		fmt.Sprintf(`{"name":"b","token":"%d","reason":"x"}`, h.Token()):          404,
		fmt.Sprintf(`{"name":"a","token":"%d"}`, h.Token()):                       422,
		fmt.Sprintf(`{"name":"a","token":"%d","reason":""}`, h.Token()):           422,
		fmt.Sprintf(`{"name":"a","token":%d,"reason":"x"}`, h.Token()):            422,
		fmt.Sprintf(`{"token":"%d","reason":"x"}`, h.Token()):                     400,
		`{"name":"a","token":"-1","reason":"x"}`:                                  422,
		`{"name":"a","token":"99999999999999999999","reason":"x"}`:                422,
		`{"name":"a","reason":"x"}`:                                               422,
		`nonsense`:                                                                400,
		``:                                                                        400,
		`{"name":"` + strings.Repeat("x", 70_000) + `","token":"1","reason":"x"}`: 413,
	} {
		if status, _, answer := w.request(http.MethodPost, "/api/v1/break", body(text)); status != want {
			t.Errorf("%.80s: got status %d, want %d: %s", text, status, want, answer)
		}
	}
	if h.Context().Err() != nil {
		t.Fatal("the hold was broken")
	}

	status, _, text := w.request(http.MethodPost, "/api/v1/break", request(h))
	var broken struct{ Name, Key, Token string }
	if err := json.Unmarshal([]byte(text), &broken); err != nil || status != http.StatusOK || broken.Name != "a" || broken.Key != "YQ" || broken.Token != fmt.Sprint(h.Token()) {
		t.Errorf("break: got status %d and %s (%v)", status, text, err)
	}
	select {
	case <-h.Lost():
	case <-t.Context().Done():
	}
	w.token = readToken
	eventually(t, "an event with its cause", func() bool {
		var history struct{ Events []page.Event }
		w.get("history?name=a", &history)
		return len(history.Events) == 2 && history.Events[1].Cause == "broken"
	})
	log := w.log.String()
	audit := ""
	for line := range strings.Lines(log) {
		if strings.Contains(line, "result=removed") {
			audit += line
		}
	}
	for _, part := range []string{`lock=a`, fmt.Sprintf("token=%d", h.Token()), `reason="stuck\nlevel=ERROR"`, "role=break", "tokens_line=4", "from=127.0.0.1:", "level=WARN"} {
		if strings.Count(audit, "\n") != 1 || !strings.Contains(audit, part) {
			t.Errorf("the log has no line with %s: %s", part, audit)
		}
	}
	if strings.Contains(log, readToken) || strings.Contains(log, breakToken) || strings.Contains(log, "wrong") {
		t.Errorf("a secret is in the log: %s", log)
	}
}
