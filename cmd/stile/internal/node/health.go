package node

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.uber.org/zap"
	"golang.org/x/net/netutil"
)

// health serves probes in plain HTTP. It replaces etcd's own listener for that, which is opened
// only after etcd has started and makes etcd panic if it cannot be opened.
type health struct {
	listener net.Listener
	hosts    []string // allowed hosts of requests; empty allows all
	server   *http.Server
}

// listenHealth returns nil if address is empty.
func listenHealth(address string) (*health, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return nil, fmt.Errorf("cannot listen on %s: %w; stop what uses it, or choose another address with --health",
			address, op.Err)
	} else if err != nil {
		return nil, err
	}
	h := &health{listener: l}
	if own := hostname(l.Addr().String()); isLoopback(own) {
		h.hosts = append(loopbackNames(own), hostname(address))
	}
	return h, nil
}

// healthConnections limits the connections: anybody who reaches the address may connect, and each takes one of the
// process's files. None stays without a request.
const healthConnections = 64

// serve starts to answer. Connections made before that wait.
func (h *health) serve(etcd *etcdserver.EtcdServer, web *web, log *zap.Logger) {
	if h != nil {
		h.serveWith(web.refusePages(h.hosts, newInfo(etcd, log).ServeHTTP))
	}
}

func (h *health) serveWith(handler http.Handler) {
	h.server = &http.Server{
		Handler:        handler,
		ReadTimeout:    10 * time.Second,
		WriteTimeout:   30 * time.Second,
		IdleTimeout:    30 * time.Second,
		MaxHeaderBytes: 16 << 10,
	}
	go func() { _ = h.server.Serve(netutil.LimitListener(h.listener, healthConnections)) }() // ends when close is called
}

// close stops it at once, even while requests are answered.
func (h *health) close() {
	switch {
	case h == nil:
	case h.server != nil:
		_ = h.server.Close()
	default:
		_ = h.listener.Close()
	}
}

func (h *health) url() string {
	if h == nil {
		return ""
	}
	return "http://" + h.listener.Addr().String()
}
