package page

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// contentSecurityPolicy lets the page use its own files and nothing else.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

// secure refuses what a request must not do, before any handler sees it:
//
//   - any method but GET, and POST of JSON to break
//   - requests of other web pages, by Origin and Sec-Fetch-Site
//   - requests that name another host: a web page whose host name resolves to this machine (DNS
//     rebinding) names its own host
//   - requests for data without a token, where one is needed
//   - requests beyond the limit of connections
//
// No response has a CORS header, so that no other page can read it.
func (p *Page) secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentSecurityPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cache-Control", "no-store")
		defer p.recoverPanic(w)
		connection := connectionOf(r.Context())
		defer connection.begin()()
		if err := p.admit(r); err != nil {
			if err.status == http.StatusMethodNotAllowed {
				h.Set("Allow", allowedMethod(r))
			}
			err.write(w)
			return
		}
		grant, err := p.authorize(r)
		if err != nil {
			err.write(w)
			return
		}
		if p.cfg.Tokens == nil || grant.role != "" { // not only a file of the page
			other, ok := connection.prove()
			if !ok {
				h.Set("Connection", "close")
				refuseForNow(w, fmt.Sprintf("there are %d connections with a request already; close some, or try again later", p.connections.maxProven))
				return
			}
			if other != nil {
				_ = other.Close()
			}
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
		grant.from = r.RemoteAddr
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), grantKey{}, grant)))
	})
}

// admit refuses requests of other web pages, and those that could not be the page's own.
func (p *Page) admit(r *http.Request) *refusal {
	switch {
	case r.Method != allowedMethod(r):
		return &refusal{http.StatusMethodNotAllowed, "only GET is allowed, and POST to " + breakPath}
	case !p.isOwnHost(r):
		return &refusal{http.StatusMisdirectedRequest, fmt.Sprintf("the request is for the host %q; the page's hosts are %s",
			shortened(hostname(r.Host)), strings.Join(p.hostNames(), ", "))}
	case slices.ContainsFunc(r.Header["Origin"], func(o string) bool { return !isOwnOrigin(r, o) }):
		return &refusal{http.StatusForbidden, "requests of other web pages are refused; this one has the Origin of another page"}
	case slices.ContainsFunc(r.Header["Sec-Fetch-Site"], func(s string) bool { return s != "same-origin" && s != "none" }):
		return &refusal{http.StatusForbidden, "requests of other web pages are refused, and links on them; type the address, or use a bookmark"}
	case r.Method == http.MethodPost && !isJSON(r.Header):
		return &refusal{http.StatusUnsupportedMediaType, "the request needs the header Content-Type: application/json"}
	default:
		return nil
	}
}

// allowedMethod returns the method that a path has.
func allowedMethod(r *http.Request) string {
	if r.URL.Path == breakPath {
		return http.MethodPost
	}
	return http.MethodGet
}

// isOwnHost reports whether the request names a host of the page. Web pages cannot reach a unix socket.
func (p *Page) isOwnHost(r *http.Request) bool {
	host := hostname(r.Host)
	if isSocket(r) || slices.Contains(p.hosts, host) {
		return true
	}
	leaf := p.leaf.Load()
	return leaf != nil && leaf.VerifyHostname(host) == nil
}

// hostNames returns the hosts that requests may name.
func (p *Page) hostNames() []string {
	names := slices.Clone(p.hosts)
	if leaf := p.leaf.Load(); leaf != nil {
		names = append(names, leaf.DNSNames...)
		for _, ip := range leaf.IPAddresses {
			names = append(names, ip.String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// isOwnOrigin reports whether an Origin header is that of the page itself.
func isOwnOrigin(r *http.Request, origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || u.Host != r.Host || u.Path != "" || u.User != nil {
		return false
	}
	if isSocket(r) { // behind a proxy, which may use TLS
		return u.Scheme == "http" || u.Scheme == "https"
	}
	return u.Scheme == "https" == (r.TLS != nil) && (u.Scheme == "http" || u.Scheme == "https")
}

// isJSON reports whether a request declares a JSON body. A page of another site may declare that only
// after a preflight request, which is always refused. That protects also in old browsers, which send
// neither Origin nor Sec-Fetch-Site.
func isJSON(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

func isSocket(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() == "unix"
}

// A grant says what a request may do.
type grant struct {
	role Role   // empty if the request has no token, and needs none for reading
	line int    // of the token in its file
	from string // the address of the client
}

type grantKey struct{}

func grantOf(ctx context.Context) grant { g, _ := ctx.Value(grantKey{}).(grant); return g }

// authorize refuses requests for data without a token, where one is needed. The page's own files, and the
// description of the API, hold no data.
func (p *Page) authorize(r *http.Request) (grant, *refusal) {
	if path := r.URL.Path; path == "/" || path == "/openapi.json" || strings.HasPrefix(path, "/static/") {
		return grant{}, nil
	}
	if p.cfg.Tokens == nil {
		if p.cfg.restricted() {
			return grant{}, &refusal{http.StatusUnauthorized, "the store requires users now; restart stile serve with --page-tokens"}
		}
		return grant{}, nil
	}
	text, ok := bearer(r.Header)
	if !ok {
		return grant{}, &refusal{http.StatusUnauthorized, "a token is needed, in the header Authorization: Bearer TOKEN"}
	}
	g, ok := p.cfg.Tokens.find(text)
	if !ok {
		return grant{}, &refusal{http.StatusUnauthorized, "the token in the header Authorization is not one of --page-tokens"}
	}
	return g, nil
}

// bearer returns the token in the header Authorization.
func bearer(h http.Header) (string, bool) {
	scheme, token, ok := strings.Cut(h.Get("Authorization"), " ")
	return token, ok && strings.EqualFold(scheme, "Bearer")
}

// A refusal is an answer to a request that may not be made.
type refusal struct {
	status int
	detail string
}

func (e *refusal) write(w http.ResponseWriter) {
	if e.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="stile"`)
	}
	refuse(w, e.status, e.detail)
}

// refuse answers with a problem (RFC 9457).
func refuse(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	text, _ := json.Marshal(&huma.ErrorModel{Status: status, Title: http.StatusText(status), Detail: detail}) // has no errors
	_, _ = w.Write(append(text, '\n'))                                                                        // the client may be gone
}

// refuseForNow answers a request that may be made again soon.
func refuseForNow(w http.ResponseWriter, detail string) {
	w.Header().Set("Retry-After", "1") // seconds
	refuse(w, http.StatusServiceUnavailable, detail)
}

// recoverPanic answers a request whose handler has panicked, so that the log has one line of it.
func (p *Page) recoverPanic(w http.ResponseWriter) {
	switch cause := recover(); cause {
	case nil:
	case http.ErrAbortHandler:
		panic(cause)
	default:
		p.cfg.Logger.Error("request handler panicked", "cause", cause)
		refuse(w, http.StatusInternalServerError, "stile has failed to answer this request; its log has the reason")
	}
}

// certificate is the certificate that was last presented to a client.
type certificate = x509.Certificate

// rememberCertificate returns a configuration that keeps the certificate that was last presented: it names
// the hosts of the page. It may be renewed while the page is served.
func (p *Page) rememberCertificate(c *tls.Config) *tls.Config {
	c = c.Clone()
	get := c.GetCertificate
	c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := get(hello)
		if err == nil {
			p.leaf.Store(cert.Leaf)
		}
		return cert, err
	}
	return c
}

// hostname returns an address without its port, if it has one.
func hostname(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
}

// shortened truncates text that a client chose.
func shortened(s string) string {
	const maxBytes = 100
	if len(s) <= maxBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxBytes], "") + "…"
}
