package node

import (
	"cmp"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// web serves the HTTP requests to the addresses for clients that are not gRPC: the JSON gateway
// and, with GET, health, metrics and the version. etcd has handlers for these, but they also answer
// requests of web pages and WebSockets from any origin, and show the command line at /debug/vars.
// The handlers here replace them.
//
// gRPC requests never get here: etcd recognizes them by their protocol or, with TLS, as requests
// that match no pattern here.
type web struct {
	refused *throttle // logs refused requests of web pages
	info    atomic.Pointer[http.ServeMux]
	gateway atomic.Pointer[gateway]
}

// handlers returns the handlers by pattern, which etcd needs before it starts. Until open is called
// they answer that the server is starting.
func (w *web) handlers(withGateway bool) map[string]http.Handler {
	handlers := map[string]http.Handler{
		"GET /": w.refusePages(nil, func(rw http.ResponseWriter, r *http.Request) {
			if info := w.info.Load(); info != nil {
				info.ServeHTTP(rw, r)
			} else {
				answerStarting(rw)
			}
		}),
	}
	if withGateway {
		handlers["POST /v3/"] = w.refusePages(nil, func(rw http.ResponseWriter, r *http.Request) {
			if !isJSON(r.Header) {
				http.Error(rw, "stile serve: the request needs the header Content-Type: application/json; "+
					"with curl, add -H 'Content-Type: application/json'", http.StatusUnsupportedMediaType)
			} else if gateway := w.gateway.Load(); gateway != nil {
				r.Body = http.MaxBytesReader(rw, r.Body, maxBody)
				gateway.mux.ServeHTTP(rw, r)
			} else {
				answerStarting(rw)
			}
		})
	}
	return handlers
}

// maxBody limits the body of a request through the gateway, which reads it whole before it authenticates the client.
// etcd accepts requests of 1.5 MB, and base64 makes them a third longer.
const maxBody = 4 << 20

func answerStarting(rw http.ResponseWriter) {
	http.Error(rw, "stile serve: the server is starting", http.StatusServiceUnavailable)
}

// open connects the handlers to a server. options apply to calls through the gateway.
func (w *web) open(etcd *etcdserver.EtcdServer, log *zap.Logger, withGateway bool, options []grpc.ServerOption) error {
	if withGateway {
		gateway, err := newGateway(etcd, options)
		if err != nil {
			return err
		}
		w.gateway.Store(gateway)
	}
	info := newInfo(etcd, log)
	etcdhttp.HandleVersion(info, etcd)
	w.info.Store(info)
	return nil
}

// close cancels the calls through the gateway.
func (w *web) close() {
	if gateway := w.gateway.Load(); gateway != nil {
		gateway.close()
	}
}

// newInfo returns a handler for health and metrics.
func newInfo(etcd *etcdserver.EtcdServer, log *zap.Logger) *http.ServeMux {
	mux := http.NewServeMux()
	etcdhttp.HandleHealth(log, mux, etcd)
	etcdhttp.HandleMetrics(mux)
	return mux
}

// refusePages refuses requests of web pages, and forwards others to next. If hosts is not empty, a
// request must name one of them: a web page whose host name resolves to this machine (DNS
// rebinding) names its own host.
func (w *web) refusePages(hosts []string, next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch host := hostname(r.Host); {
		case isPage(r.Header):
			w.refused.log("from", hostname(r.RemoteAddr), "origin", shortened(cmp.Or(r.Header.Get("Origin"), "unknown")))
			http.Error(rw, "stile serve: requests of web pages are refused; this one has an Origin or Sec-Fetch-Site header of a page",
				http.StatusForbidden)
		case len(hosts) > 0 && !slices.Contains(hosts, host):
			w.refused.log("from", hostname(r.RemoteAddr), "host", shortened(host))
			http.Error(rw, "stile serve: the request must be for the host "+strings.Join(hosts, " or "), http.StatusMisdirectedRequest)
		default:
			next(rw, r)
		}
	})
}

// isPage reports whether a web page made a browser send the request. Browsers send Origin with
// every request from a page that can change something, and Sec-Fetch-Site with every request to
// loopback or over TLS; its value is none if the user typed the address. As no page is served here,
// a request of the same site is an attack too. Programs send neither header, although some, like
// Node's fetch, send others that begin with Sec-Fetch.
func isPage(h http.Header) bool {
	return len(h["Origin"]) > 0 || slices.ContainsFunc(h["Sec-Fetch-Site"], func(site string) bool { return site != "none" })
}

// isJSON reports whether a request declares a JSON body. A page of another site may declare that
// only after a preflight request, which is always refused. That protects also in old browsers,
// which do not send the headers that isPage checks.
func isJSON(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// hostname returns address without its port, if it has one.
func hostname(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// shortened truncates text that a client chose, for the log.
func shortened(s string) string {
	const maxBytes = 100
	if len(s) <= maxBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxBytes], "") + "…"
}
