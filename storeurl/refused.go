package storeurl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// refusalDelay is the time after which Open checks whether the hosts accept connections. A store
// usually opens faster, so that its servers are spared the check.
const refusalDelay = 100 * time.Millisecond

// refusals is the error of hosts that refuse connections.
type refusals struct {
	hosts []string
	errs  []error // for each host; nil for a host that may still answer
}

// Error lists the hosts that refuse connections, each with the reason.
func (r *refusals) Error() string {
	var texts []string
	for i, err := range r.errs {
		if err != nil {
			texts = append(texts, r.hosts[i]+": "+err.Error())
		}
	}
	scope := ""
	if len(texts) < len(r.hosts) {
		scope = fmt.Sprintf(" to %d of %d hosts", len(texts), len(r.hosts))
	}
	return "cannot connect" + scope + ": " + strings.Join(texts, "; ")
}

// Unwrap returns the hosts' errors.
func (r *refusals) Unwrap() []error {
	return slices.DeleteFunc(slices.Clone(r.errs), func(err error) bool { return err == nil })
}

// whileReachable returns a context that ends, with [refusals] as its cause, when so many hosts of t
// refuse connections that Open cannot succeed. The clients of etcd, ZooKeeper and Redlock would
// retry until their timeout, because servers restart. But the caller of Open should learn at once
// that there is no server.
func whileReachable(ctx context.Context, t target) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := func() { cancel(nil) }
	needed := schemes()[t.scheme].needed
	if needed == nil {
		return ctx, stop
	}
	refused := &refusals{t.endpoints, make([]error, len(t.endpoints))}
	mayAnswer := len(t.endpoints)
	var mu sync.Mutex
	timer := time.AfterFunc(refusalDelay, func() {
		for i, endpoint := range t.endpoints {
			go func() {
				conn, err := dial(ctx, endpoint)
				if err == nil {
					conn.Close()
				}
				if !isRefusal(err) || hasProxy(endpoint) {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				refused.errs[i] = err
				mayAnswer--
				if mayAnswer < needed(len(t.endpoints)) {
					cancel(&refusals{refused.hosts, slices.Clone(refused.errs)}) // only the first call has an effect
				}
			}()
		}
	})
	return ctx, func() {
		timer.Stop()
		stop()
	}
}

// isRefusal reports whether a failed connection attempt would most likely fail again.
func isRefusal(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		return name.IsNotFound
	}
	timeout, ok := err.(interface{ Timeout() bool })
	return !ok || !timeout.Timeout()
}

// hasProxy reports whether the etcd client connects through a proxy, as gRPC does if the
// environment names one.
func hasProxy(endpoint string) bool {
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "https", Host: endpoint}})
	return proxy != nil || err != nil
}
