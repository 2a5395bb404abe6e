package node_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/cmd/stile/internal/node"
	"github.com/stilelock/stile/cmd/stile/internal/node/testcert"
)

// pageRequest is a request that a browser sends for a web page.
type pageRequest struct {
	method, path, headers, body string
}

const (
	deleteAll = `{"key":"AA==","range_end":"AA=="}`
	watchAll  = `{"create_request":{"key":"AA==","range_end":"AA=="}}`
	upgrade   = "Connection: Upgrade|Upgrade: websocket|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
)

// pageRequests are requests that an attacker's page can cause, as sent by the browsers of 2026, by
// older ones, and by those with some of their headers turned off.
var pageRequests = map[string]pageRequest{
	"Chrome, fetch no-cors": {
		"POST", "/v3/kv/deleterange",
		"Origin: https://evil.example|Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: no-cors|Sec-Fetch-Dest: empty|Content-Type: text/plain;charset=UTF-8|Referer: https://evil.example/", deleteAll,
	},
	"Chrome, fetch no-cors of a Blob without a type": {
		"POST", "/v3/kv/deleterange",
		"Origin: https://evil.example|Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: no-cors|Sec-Fetch-Dest: empty", deleteAll,
	},
	"Chrome, fetch from a sandboxed frame": {
		"POST", "/v3/kv/deleterange",
		"Origin: null|Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: no-cors|Content-Type: text/plain", deleteAll,
	},
	"Firefox, form with text/plain": {
		"POST", "/v3/kv/deleterange",
		"Origin: https://evil.example|Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: navigate|Sec-Fetch-Dest: document|Sec-Fetch-User: ?1|Content-Type: text/plain|Upgrade-Insecure-Requests: 1", deleteAll,
	},
	"Firefox, form with no-referrer": {
		"POST", "/v3/kv/deleterange",
		"Origin: null|Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: navigate|Content-Type: application/x-www-form-urlencoded", deleteAll,
	},
	"Safari of before Sec-Fetch, form": {
		"POST", "/v3/kv/deleterange",
		"Origin: https://evil.example|Content-Type: multipart/form-data; boundary=----WebKitFormBoundaryA", deleteAll,
	},
	"a browser without Origin, form": {
		"POST", "/v3/kv/deleterange", "Content-Type: text/plain", deleteAll,
	},
	"a browser without Origin, form that names JSON": {
		"POST", "/v3/kv/deleterange", "Content-Type: text/plain; application/json", deleteAll,
	},
	"a browser without Origin, urlencoded": {
		"POST", "/v3/kv/deleterange", "Content-Type: application/x-www-form-urlencoded", deleteAll,
	},
	"a browser without Origin, no Content-Type": {
		"POST", "/v3/kv/deleterange", "", deleteAll,
	},
	"sendBeacon": {
		"POST", "/v3/kv/deleterange",
		"Origin: https://evil.example|Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: no-cors|Content-Type: application/json", deleteAll,
	},
	"a page of another port of this machine": {
		"POST", "/v3/kv/deleterange",
		"Origin: http://127.0.0.1:8080|Sec-Fetch-Site: same-site|Sec-Fetch-Mode: cors|Content-Type: application/json", deleteAll,
	},
	"a page with DNS rebinding": {
		"POST", "/v3/kv/deleterange",
		"Host: evil.example:2379|Origin: http://evil.example:2379|Sec-Fetch-Site: same-origin|Content-Type: application/json", deleteAll,
	},
	"a page of this server's address": {
		"POST", "/v3/kv/deleterange", "Origin: http://$HOST|Sec-Fetch-Site: same-origin|Content-Type: application/json", deleteAll,
	},
	"Sec-Fetch-Site alone": {
		"POST", "/v3/kv/deleterange", "Sec-Fetch-Site: same-site|Content-Type: application/json", deleteAll,
	},
	"by the old path": {
		"POST", "/v3beta/kv/deleterange", "Origin: https://evil.example|Content-Type: text/plain", deleteAll,
	},
	"by a path with dots": {
		"POST", "/v3/kv/../kv/deleterange", "Origin: https://evil.example|Content-Type: text/plain", deleteAll,
	},
	"posing as gRPC": {
		"POST", "/etcdserverpb.KV/DeleteRange",
		"Origin: https://evil.example|Content-Type: text/plain;application/grpc", "\x00\x00\x00\x00\x06\x0a\x01\x00\x12\x01\x00",
	},
	"WebSocket": {
		"GET", "/v3/watch", "Origin: https://evil.example|Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: websocket|" + upgrade, watchAll,
	},
	"WebSocket with a method": {
		"GET", "/v3/kv/deleterange?method=POST", "Origin: https://evil.example|" + upgrade, deleteAll,
	},
	"WebSocket without Origin":         {"GET", "/v3/watch", upgrade, watchAll},
	"WebSocket, POST":                  {"POST", "/v3/watch", "Origin: null|" + upgrade, watchAll},
	"WebSocket, POST without Origin":   {"POST", "/v3/watch", upgrade, watchAll},
	"EventSource":                      {"GET", "/v3/watch", "Origin: https://evil.example|Sec-Fetch-Site: cross-site|Accept: text/event-stream", ""},
	"a preflight":                      {"OPTIONS", "/v3/kv/put", "Origin: https://evil.example|Access-Control-Request-Method: POST|Access-Control-Request-Headers: content-type", ""},
	"a preflight to a private network": {"OPTIONS", "/v3/kv/put", "Origin: https://evil.example|Access-Control-Request-Method: POST|Access-Control-Request-Private-Network: true", ""},
	"img":                              {"GET", "/metrics", "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: no-cors|Sec-Fetch-Dest: image", ""},
	"script":                           {"GET", "/version", "Sec-Fetch-Site: same-site|Sec-Fetch-Mode: no-cors|Sec-Fetch-Dest: script", ""},
	"fetch of health":                  {"GET", "/health", "Origin: https://evil.example|Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: cors", ""},
	"fetch of readyz":                  {"GET", "/readyz", "Origin: null", ""},
	"GET with DNS rebinding":           {"GET", "/metrics", "Host: evil.example:2379|Sec-Fetch-Site: same-origin", ""},
	"HEAD":                             {"HEAD", "/metrics", "Origin: https://evil.example", ""},
}

// send sends a request to the server at base, and returns the reply. An accepted upgrade has no
// body. On a busy machine a connection can exceed the server's timeouts, so there are five attempts.
func (r pageRequest) send(t *testing.T, web *http.Client, base string) (status int, header http.Header, body string) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		var err error
		if status, header, body, err = r.sendOnce(t.Context(), web, base); err == nil {
			return status, header, body
		}
		if closed := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); !closed || attempt == 5 {
			t.Fatal(err)
		}
	}
}

func (r pageRequest) sendOnce(ctx context.Context, web *http.Client, base string) (status int, header http.Header, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, r.method, base+r.path, strings.NewReader(r.body))
	if err != nil {
		return 0, nil, "", err
	}
	_, host, _ := strings.Cut(base, "://")
	for header := range strings.SplitSeq(strings.ReplaceAll(r.headers, "$HOST", host), "|") {
		name, value, _ := strings.Cut(header, ": ")
		switch name {
		case "":
		case "Host":
			req.Host = value
		default:
			req.Header.Set(name, value)
		}
	}
	resp, err := web.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.StatusCode, resp.Header, "", nil
	}
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(text), err
}

// webClient returns an HTTP client that follows no redirects.
func webClient(t *testing.T, config *tls.Config, http2 bool) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: http2, DisableKeepAlives: true}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// overHTTP runs a test on a plain server, and on one with TLS and client certificates, over HTTP/1
// and HTTP/2.
func overHTTP(t *testing.T, test func(t *testing.T, web *http.Client, base string, cli *clientv3.Client)) {
	t.Helper()
	ca := testcert.NewAuthority(t)
	own := ca.Issue("server", testcert.Spec{Hosts: loopbackHosts})
	browser := ca.Issue("browser", testcert.Spec{})
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		n := start(t, t.TempDir())
		test(t, webClient(t, nil, false), strings.Replace(n.URL(), "etcd", "http", 1), client(t, n.URL()))
	})
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS, HTTP/2 %v", http2), func(t *testing.T) {
			t.Parallel()
			n := startWith(t, node.Config{TLS: node.TLS{Cert: own.Cert, Key: own.Key, ClientCA: ca.File}})
			test(t, webClient(t, ca.Client(&browser), http2), strings.Replace(n.URL(), "etcds", "https", 1),
				secureClient(t, n, ca.Client(&browser)))
		})
	}
}

func TestWeb_refusesPages(t *testing.T) {
	t.Parallel()
	overHTTP(t, func(t *testing.T, web *http.Client, base string, cli *clientv3.Client) {
		put, err := cli.Put(t.Context(), "jobs/1f", "secret")
		if err != nil {
			t.Fatal(err)
		}
		for name, r := range pageRequests {
			if strings.Contains(r.headers, "Upgrade: websocket") && strings.Contains(t.Name(), "HTTP/2 true") {
				continue // HTTP/2 has no such header
			}
			status, header, body := r.send(t, web, base)
			wants := []int{http.StatusForbidden}
			switch {
			case strings.Contains(r.headers, "Host: "): // refused by name, unless TLS refuses the host
				wants = append(wants, http.StatusMisdirectedRequest)
			case strings.Contains(r.path, "/../"):
				wants = []int{http.StatusTemporaryRedirect}
			case r.method == http.MethodOptions:
				wants = []int{http.StatusOK}
			case r.path == "/etcdserverpb.KV/DeleteRange":
				wants = []int{http.StatusUnsupportedMediaType, http.StatusNotFound}
			case !strings.Contains(r.headers, "Origin: ") && !strings.Contains(r.headers, "Sec-Fetch-Site: "):
				wants = []int{http.StatusUnsupportedMediaType}
				if r.method == http.MethodGet {
					wants = []int{http.StatusNotFound}
				}
			}
			if !slices.Contains(wants, status) {
				t.Errorf("%s: got %d %s, want %v", name, status, body, wants)
			}
			if allowed := header.Get("Access-Control-Allow-Origin"); allowed != "" {
				t.Errorf("%s: %s may read the reply", name, allowed)
			}
			if strings.Contains(body, "c2VjcmV0") || strings.Contains(body, "etcd_server") {
				t.Errorf("%s: the reply contains data: %.200s", name, body)
			}
		}
		if got, err := cli.Get(t.Context(), "jobs/1f"); err != nil || got.Count != 1 || got.Header.Revision != put.Header.Revision {
			t.Errorf("afterwards: got %v, %v; want nothing changed since revision %d", got, err, put.Header.Revision)
		}
	})
}

// Requests that are not from web pages are answered.
func TestWeb_answersProgramsAndUsers(t *testing.T) {
	t.Parallel()
	overHTTP(t, func(t *testing.T, web *http.Client, base string, cli *clientv3.Client) {
		for name, r := range map[string]pageRequest{
			"curl":                     {"POST", "/v3/kv/put", "Content-Type: application/json|User-Agent: curl/8.5.0|Accept: */*", `{"key":"YQ=="}`},
			"with a charset":           {"POST", "/v3/kv/put", "Content-Type: application/json; charset=utf-8", `{"key":"YQ=="}`},
			"in capitals":              {"POST", "/v3/kv/put", "Content-Type: Application/JSON", `{"key":"YQ=="}`},
			"Node's fetch":             {"POST", "/v3/kv/put", "Content-Type: application/json|Sec-Fetch-Mode: cors|Accept-Language: *", `{"key":"YQ=="}`},
			"by the old path":          {"POST", "/v3beta/kv/put", "Content-Type: application/json", `{"key":"YQ=="}`},
			"a lock":                   {"POST", "/v3/lock/lock", "Content-Type: application/json", `{"name":"ZGVtbw=="}`},
			"a probe":                  {"GET", "/health", "User-Agent: kube-probe/1.36", ""},
			"Prometheus":               {"GET", "/metrics", "Accept: application/openmetrics-text", ""},
			"version":                  {"GET", "/version", "", ""},
			"readyz":                   {"GET", "/readyz", "", ""},
			"HEAD":                     {"HEAD", "/metrics", "", ""},
			"a user, by the address":   {"GET", "/metrics", "Sec-Fetch-Site: none|Sec-Fetch-Mode: navigate|Sec-Fetch-Dest: document|Sec-Fetch-User: ?1", ""},
			"by another loopback name": {"GET", "/health", "Host: localhost:2379", ""},
		} {
			if status, _, body := r.send(t, web, base); status != http.StatusOK {
				t.Errorf("%s: got %d %s, want 200", name, status, body)
			}
		}
		got, err := cli.Get(t.Context(), "a")
		if err != nil || got.Count != 1 {
			t.Errorf("after putting a: got %v, %v; want one key", got, err)
		}
	})
}

func TestGateway_namesMissingHeader(t *testing.T) {
	t.Parallel()
	n := start(t, t.TempDir())
	_, _, body := pageRequest{"POST", "/v3/lock/lock", "Content-Type: application/x-www-form-urlencoded", `{"name":"ZGVtbw=="}`}.
		send(t, webClient(t, nil, false), strings.Replace(n.URL(), "etcd", "http", 1))
	if !strings.Contains(body, "curl") || !strings.Contains(body, "-H 'Content-Type: application/json'") {
		t.Errorf("got %s, want advice for curl -d", body)
	}
}

func TestWeb_hidesDebugPages(t *testing.T) {
	t.Parallel()
	overHTTP(t, func(t *testing.T, web *http.Client, base string, _ *clientv3.Client) {
		for _, path := range []string{"/debug/vars", "/debug/vars/", "/debug/pprof/", "/debug/requests"} {
			for _, method := range []string{"GET", "HEAD", "POST"} {
				status, _, body := pageRequest{method, path, "", ""}.send(t, web, base)
				if status == http.StatusOK || strings.Contains(body, "cmdline") {
					t.Errorf("%s %s: got %d %.200s, want it refused", method, path, status, body)
				}
			}
		}
	})
}

// A body is not read without end: its sender has not logged in yet.
func TestGateway_limitsBody(t *testing.T) {
	t.Parallel()
	n := start(t, t.TempDir())
	var sent atomic.Int64
	text := readerFunc(func(b []byte) (int, error) {
		if sent.Add(int64(len(b))) > 256<<20 {
			return 0, io.EOF
		}
		for i := range b {
			b[i] = 'A'
		}
		return len(b), nil
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, strings.Replace(n.URL(), "etcd", "http", 1)+"/v3/kv/put",
		io.MultiReader(strings.NewReader(`{"key":"`), text))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := webClient(t, nil, false).Do(req)
	if err == nil { // otherwise the connection was closed before the answer was read
		defer resp.Body.Close()
		if resp.StatusCode/100 != 4 {
			t.Errorf("got status %d, want a refusal", resp.StatusCode)
		}
	}
	if sent.Load() > 128<<20 {
		t.Errorf("the server has read %d bytes", sent.Load())
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestHealth_refusesPages(t *testing.T) {
	t.Parallel()
	n := startWith(t, node.Config{Health: "localhost:0"})
	web := webClient(t, nil, false)
	for headers, want := range map[string]int{
		"":                                  http.StatusOK,
		"Host: localhost:1":                 http.StatusOK,
		"Host: 127.0.0.1":                   http.StatusOK,
		"Host: [::1]:2381":                  http.StatusOK,
		"Sec-Fetch-Site: none":              http.StatusOK,
		"Origin: https://evil.example":      http.StatusForbidden,
		"Sec-Fetch-Site: cross-site":        http.StatusForbidden,
		"Host: evil.example:2381":           http.StatusMisdirectedRequest,
		"Host: 127.0.0.1.evil.example:2381": http.StatusMisdirectedRequest,
		"Host: 0.0.0.0:2381":                http.StatusMisdirectedRequest,
	} {
		for _, path := range []string{"/health", "/metrics"} {
			if status, _, body := (pageRequest{"GET", path, headers, ""}).send(t, web, n.HealthURL()); status != want {
				t.Errorf("%s %q: got %d %.200s, want %d", path, headers, status, body, want)
			}
		}
	}
}
