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

// refusalDelay is how long opening may take before it is checked whether there is anything to connect to. Usually a store
// is open by then, and the check costs its servers nothing.
const refusalDelay = 100 * time.Millisecond

// refusals is why no connections to some hosts of a store can be made.
type refusals struct {
	hosts []string
	errs  []error // for each host; nil for one that may answer yet
}

// Error says it for each host.
func (r *refusals) Error() string {
	var texts []string
	for i, err := range r.errs {
		if err != nil {
			texts = append(texts, r.hosts[i]+": "+err.Error())
		}
	}
	whereto := ""
	if len(texts) < len(r.hosts) {
		whereto = fmt.Sprintf(" to %d of %d hosts", len(texts), len(r.hosts))
	}
	return "cannot connect" + whereto + ": " + strings.Join(texts, "; ")
}

// Unwrap returns the reasons.
func (r *refusals) Unwrap() []error {
	return slices.DeleteFunc(slices.Clone(r.errs), func(err error) bool { return err == nil })
}

// whileReachable returns a context that ends, with [refusals] as its cause, if so many hosts of t refuse connections that
// opening it cannot succeed. The clients of etcd and ZooKeeper, and that of Redlock, would try again until their time is
// up: servers are restarted. But whoever opens a store had better learn at once that there is none.
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
					cancel(&refusals{refused.hosts, slices.Clone(refused.errs)}) // the first call counts
				}
			}()
		}
	})
	return ctx, func() {
		timer.Stop()
		stop()
	}
}

// isRefusal reports whether an error of connecting is one that another attempt would most likely have too.
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

// hasProxy reports whether the etcd client reaches an endpoint by way of a proxy, as gRPC does if the environment says so.
func hasProxy(endpoint string) bool {
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "https", Host: endpoint}})
	return proxy != nil || err != nil
}
