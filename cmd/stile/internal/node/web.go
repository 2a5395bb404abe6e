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

// web answers what comes over HTTP to the addresses for clients and is not gRPC: the JSON gateway and, with GET, health,
// metrics and the version. etcd has handlers for all that, but they answer web pages too, and WebSockets from anywhere,
// and show the command line at /debug/vars. These stand in their place.
//
// No gRPC request comes this way: etcd tells them apart by their protocol or, with TLS, as requests that no pattern here
// matches.
type web struct {
	refused *throttle // requests of web pages
	info    atomic.Pointer[http.ServeMux]
	gateway atomic.Pointer[gateway]
}

// handlers returns the handlers by their patterns, which etcd wants to have before it starts. Until open is called they
// answer that the server is starting.
func (w *web) handlers(withGateway bool) map[string]http.Handler {
	handlers := map[string]http.Handler{
		"GET /": w.refusePages(nil, func(rw http.ResponseWriter, r *http.Request) {
			if info := w.info.Load(); info != nil {
				info.ServeHTTP(rw, r)
			} else {
				notYet(rw)
			}
		}),
	}
	if withGateway {
		handlers["POST /v3/"] = w.refusePages(nil, func(rw http.ResponseWriter, r *http.Request) {
			if !isJSON(r.Header) {
				http.Error(rw, "stile serve: the request needs the header Content-Type: application/json; "+
					"with curl, add -H 'Content-Type: application/json'", http.StatusUnsupportedMediaType)
			} else if gateway := w.gateway.Load(); gateway != nil {
				gateway.mux.ServeHTTP(rw, r)
			} else {
				notYet(rw)
			}
		})
	}
	return handlers
}

func notYet(rw http.ResponseWriter) {
	http.Error(rw, "stile serve: the server is starting", http.StatusServiceUnavailable)
}

// open makes the handlers answer for a server. Calls through the gateway are subject to the options.
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

// close ends what is being answered through the gateway.
func (w *web) close() {
	if gateway := w.gateway.Load(); gateway != nil {
		gateway.close()
	}
}

// newInfo returns a handler that answers for health and metrics.
func newInfo(etcd *etcdserver.EtcdServer, log *zap.Logger) *http.ServeMux {
	mux := http.NewServeMux()
	etcdhttp.HandleHealth(log, mux, etcd)
	etcdhttp.HandleMetrics(mux)
	return mux
}

// refusePages refuses the requests of web pages, and passes on the others. If there are hosts a request must name one of
// them: a page can come from a host name that has been made to point at this machine, and then names that.
func (w *web) refusePages(hosts []string, next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch host := hostname(r.Host); {
		case isPage(r.Header):
			w.refused.log("from", hostname(r.RemoteAddr), "origin", shortened(cmp.Or(r.Header.Get("Origin"), "unknown")))
			http.Error(rw, "stile serve: web pages are refused, and this request has the Origin or Sec-Fetch-Site of one",
				http.StatusForbidden)
		case len(hosts) > 0 && !slices.Contains(hosts, host):
			w.refused.log("from", hostname(r.RemoteAddr), "host", shortened(host))
			http.Error(rw, "stile serve: the request must be for the host "+strings.Join(hosts, " or "), http.StatusMisdirectedRequest)
		default:
			next(rw, r)
		}
	})
}

// isPage reports whether a web page has made a browser send the request. Browsers send Origin with every request that can
// change something, from whatever page, and Sec-Fetch-Site with every request to loopback or over TLS; none there is a
// person who has typed the address. No page is served here, so one of the same site has got there by a trick. Programs send
// neither, but some, like Node's fetch, other headers that begin with Sec-Fetch.
func isPage(h http.Header) bool {
	return len(h["Origin"]) > 0 || slices.ContainsFunc(h["Sec-Fetch-Site"], func(site string) bool { return site != "none" })
}

// isJSON reports whether a request says that its body is JSON. No page of another site can say so without asking for
// permission first, which nobody gets: not even in an old browser, which sends nothing that isPage looks for.
func isJSON(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// hostname returns what stands before the port, if there is one.
func hostname(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// shortened returns the beginning of what a stranger has sent, for a log.
func shortened(s string) string {
	const enough = 100
	if len(s) <= enough {
		return s
	}
	return strings.ToValidUTF8(s[:enough], "") + "…"
}
