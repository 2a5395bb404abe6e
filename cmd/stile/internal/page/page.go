// Package page serves the locks of a store over HTTP: a page for browsers, an API that reads, and metrics.
//
// Names, owners and everything else in the store are hostile input, and so is every request: other users
// and web pages can reach the loopback interface. See security.go for what is refused.
package page

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
)

// DefaultAddress is where the page of an existing store is served if nothing else is said.
const DefaultAddress = "127.0.0.1:7845"

// Config configures a page. It listens at Address, at Socket, or at both.
type Config struct {
	// Address is the host:port to listen at; empty for none. The host is an IP address or localhost. Port 0
	// selects a free port.
	Address string
	// Socket is the absolute path of a unix socket; empty for none. The caller has checked that no server
	// listens there. Its directory and the umask decide which users can connect.
	Socket string
	// TLS has the certificate for Address, and the authorities of clients' certificates if they are required.
	// Nil means plain HTTP, which is allowed on the loopback interface only.
	TLS *tls.Config
	// Tokens are required for reading and breaking. Nil means that none are required.
	Tokens *Tokens
	// Restricted reports whether the store admits only some users. Then nothing is shown without a token. It
	// is called for each request; nil means that it never does.
	Restricted func() bool
	// AllowBreak allows requests with a token of the role break to break locks.
	AllowBreak bool
	// Store names the store, without secrets.
	Store string
	// Version is the version of stile.
	Version string
	// Logger gets a line for each attempt to break a lock, and for the beginning and the end of an outage of the
	// store.
	Logger *slog.Logger
}

// A Page serves the API, the page and metrics. It must be closed.
type Page struct {
	cfg       Config
	hosts     []string // allowed hosts of requests to Address; with TLS also those of the certificate
	listeners []net.Listener
	server    *http.Server
	ending    context.Context // ends when Close is called
	end       context.CancelFunc
	serving   sync.WaitGroup
	leaf      atomic.Pointer[certificate]

	// Set by Serve.
	client   *stile.Client
	observer *observe.Observer
	metrics  http.Handler
	waits    cached[waitsBody]
	blame    cached[allBlame]
	readers  chan struct{} // a value for each reader of events

	connections connections
	answers     answers
	timeouts    timeouts
}

// timeouts limit how long a connection may be without a complete request.
type timeouts struct{ header, idle time.Duration }

// Limits of what clients can use.
const (
	maxProven      = 256       // connections with requests that were allowed
	maxUnproven    = 64        // other connections
	maxReaders     = 64        // of events
	maxHeaderBytes = 128 << 10 // the names of 100 locks in one URL
	maxBodyBytes   = 64 << 10  // of a break
	headerTimeout  = 10 * time.Second
	requestTimeout = 30 * time.Second // except for events
	idleTimeout    = time.Minute
)

// Listen checks the configuration and listens. Connections wait until Serve is called.
func Listen(cfg Config) (*Page, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	p := newPage(cfg)
	if cfg.TLS != nil {
		p.cfg.TLS = p.rememberCertificate(cfg.TLS)
		if _, err := p.cfg.TLS.GetCertificate(new(tls.ClientHelloInfo)); err != nil {
			return nil, err
		}
	}
	if cfg.Address != "" {
		l, err := net.Listen("tcp", cfg.Address)
		if err != nil {
			return nil, listenError("--page", cfg.Address, err)
		}
		host, _, _ := net.SplitHostPort(cfg.Address) // checked
		if !isUnspecified(host) {                    // otherwise the certificate has the names
			p.hosts = []string{host, hostname(l.Addr().String())}
		}
		if isLoopback(host) {
			p.hosts = append(p.hosts, "localhost", "127.0.0.1", "::1")
		}
		p.listeners = append(p.listeners, l)
	}
	if cfg.Socket != "" {
		_ = os.Remove(cfg.Socket) // left behind by a server that was killed
		l, err := net.Listen("unix", cfg.Socket)
		if err != nil {
			p.Close()
			return nil, listenError("--page-socket", cfg.Socket, err)
		}
		p.listeners = append(p.listeners, l)
	}
	return p, nil
}

func newPage(cfg Config) *Page {
	p := &Page{
		cfg: cfg, readers: make(chan struct{}, maxReaders),
		connections: connections{maxProven: maxProven, maxUnproven: maxUnproven},
		answers:     answers{places: make(chan struct{}, maxAtOnce), maxBytes: maxUnsentBytes},
		timeouts:    timeouts{header: headerTimeout, idle: idleTimeout},
	}
	p.ending, p.end = context.WithCancel(context.Background())
	return p
}

func listenError(flag, address string, err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	advice := "choose another address"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		advice = "stop the program that uses it, or choose another address"
	case errors.Is(err, fs.ErrNotExist):
		advice = "create its directory"
	}
	return fmt.Errorf("%s: cannot listen at %s: %w; %s", flag, address, err, advice)
}

// check refuses configurations that would show the locks to everybody.
func (c Config) check() error {
	if c.Address == "" && c.Socket == "" {
		return errors.New("no address for the page: name one with --page or --page-socket")
	}
	if c.AllowBreak && c.Tokens == nil {
		return errors.New("--allow-break needs --page-tokens: breaking a lock needs a token of the role break")
	}
	if c.AllowBreak && !c.Tokens.allowBreak() {
		return errors.New("--allow-break: the file of --page-tokens has no token of the role break; add a line \"break TOKEN\"")
	}
	if c.Address != "" {
		if err := c.checkAddress(); err != nil {
			return err
		}
	}
	switch {
	case c.Tokens == nil && c.restricted():
		return errors.New("the page needs --page-tokens: the store admits only some users, and the page would show its locks to others")
	case c.Tokens == nil && c.Socket != "" && c.requiresCertificates():
		return errors.New("--page-socket needs --page-tokens: clients of the socket have no certificate, which --tls-client-ca requires")
	default:
		return nil
	}
}

func (c Config) checkAddress() error {
	host, _, err := net.SplitHostPort(c.Address)
	if err != nil {
		return fmt.Errorf("invalid address %q for --page: it must be host:port, such as %s", c.Address, DefaultAddress)
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
		return fmt.Errorf("invalid address %q for --page: the host must be an IP address or localhost; "+
			"0.0.0.0 and [::] mean every address of this machine", c.Address)
	}
	switch {
	case isLoopback(host):
		return nil
	case c.TLS == nil:
		return fmt.Errorf("refusing to serve the page on %q without TLS: it is not a loopback address; "+
			"give --tls-cert and --tls-key, and --page-tokens or --tls-client-ca", c.Address)
	case c.Tokens == nil && !c.requiresCertificates():
		return fmt.Errorf("refusing to serve the page on %q for everybody: it is not a loopback address; "+
			"give --page-tokens or --tls-client-ca", c.Address)
	default:
		return nil
	}
}

func (c Config) restricted() bool { return c.Restricted != nil && c.Restricted() }

// requiresCertificates reports whether clients of Address need a certificate.
func (c Config) requiresCertificates() bool {
	return c.TLS != nil && c.TLS.ClientAuth == tls.RequireAndVerifyClientCert
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// A Source is what a page shows.
type Source struct {
	// Client reads the store, and breaks locks. It opens no session.
	Client *stile.Client
	// Observer follows the store with the same client. The page runs it.
	Observer *observe.Observer
	// Metrics answers GET /metrics; nil for none.
	Metrics http.Handler
}

// Serve begins to answer. It must be called at most once.
func (p *Page) Serve(s Source) {
	p.client, p.observer, p.metrics = s.Client, s.Observer, s.Metrics
	p.server = &http.Server{
		Handler:           p.handler(),
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: p.timeouts.header,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       p.timeouts.idle,
		ConnContext:       withConnection,
		// Clients can cause most of these messages at will.
		ErrorLog: log.New(slogWriter{p.cfg.Logger}, "", 0),
	}
	for _, l := range p.listeners {
		l = p.connections.listener(l)
		if l.Addr().Network() == "tcp" && p.cfg.TLS != nil {
			l = tls.NewListener(l, p.cfg.TLS)
		}
		p.serving.Go(func() { _ = p.server.Serve(l) }) // ends when Close is called
	}
	p.serving.Go(p.observe)
	p.serving.Go(p.logOutages)
}

// retryInterval is the pause after the store has refused a reading.
const retryInterval = 5 * time.Second

// observe runs the observer until Close is called. If the store refuses, for example because a password has
// changed, the answers say so, and it tries again.
func (p *Page) observe() {
	for {
		_ = p.observer.Run(p.ending) // its status has the error
		select {
		case <-time.After(retryInterval):
		case <-p.ending.Done():
			return
		}
	}
}

// logOutages logs when the store stops answering, and when it answers again.
func (p *Page) logOutages() {
	before := observe.Status{}
	for p.ending.Err() == nil {
		now := p.observer.Status()
		switch {
		case now.Err != nil && before.Err == nil:
			p.cfg.Logger.Warn("store cannot be read", "err", textOf(now.Err))
		case now.Err == nil && before.Err != nil:
			p.cfg.Logger.Info("store can be read again", "after", now.Since.Sub(before.Since).Round(time.Millisecond))
		}
		before = now
		p.observer.WaitStatus(p.ending, now)
	}
}

// URL returns the address of the page, with a name of the certificate if it listens at all addresses; empty
// if it listens at a socket only.
func (p *Page) URL() string {
	if p.cfg.Address == "" {
		return ""
	}
	scheme := "http"
	if p.cfg.TLS != nil {
		scheme = "https"
	}
	address := p.listeners[0].Addr().String()
	if host, port, _ := net.SplitHostPort(address); isUnspecified(host) {
		address = net.JoinHostPort(p.publicName(), port)
	}
	return scheme + "://" + address
}

// publicName returns the name under which other machines reach the page: the machine's, or if that is not in
// the certificate, one that is.
func (p *Page) publicName() string {
	leaf := p.leaf.Load()
	name, err := os.Hostname()
	if err == nil && name != "" && leaf.VerifyHostname(name) == nil {
		return name
	}
	names := slices.DeleteFunc(slices.Clone(leaf.DNSNames), func(n string) bool { return strings.Contains(n, "*") })
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	return cmp.Or(append(names, name)...)
}

func isUnspecified(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}

// Socket returns the path of the socket; empty if there is none.
func (p *Page) Socket() string { return p.cfg.Socket }

// Close stops the page. Requests that are being answered get a second to end.
func (p *Page) Close() {
	p.end()
	if p.server == nil {
		for _, l := range p.listeners {
			_ = l.Close()
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if p.server.Shutdown(ctx) != nil {
		_ = p.server.Close()
	}
	p.serving.Wait()
}

// slogWriter logs what the HTTP server writes.
type slogWriter struct{ logger *slog.Logger }

// Write implements [io.Writer].
func (w slogWriter) Write(b []byte) (int, error) {
	w.logger.Debug("HTTP server", "text", string(b))
	return len(b), nil
}
