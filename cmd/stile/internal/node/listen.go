package node

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"go.etcd.io/etcd/server/v3/embed"
)

// maxPassword is how many bytes bcrypt takes.
const maxPassword = 72

// check finds what is wrong with the configuration before anything is touched.
func (c Config) check() error {
	if c.Listen == "" && c.Socket == "" {
		return errors.New("nowhere to listen: give an address with --listen, or a path with --socket")
	}
	if len(c.RootPassword) > maxPassword {
		return fmt.Errorf("--root-password-file: the password is longer than %d bytes, and bcrypt, which etcd stores it with, "+
			"takes no more; choose a shorter one", maxPassword)
	}
	if err := c.TLS.check(c.Listen != "" || c.Cluster.secure()); err != nil {
		return err
	}
	return c.Cluster.check(c)
}

// etcd returns the configuration for etcd.
func (c Config) etcd() (*embed.Config, error) {
	e := embed.NewConfig()
	e.Dir = c.etcdDir()

	// Locks leave nothing but history. What watches and tokens need of it is the last moments.
	e.AutoCompactionMode, e.AutoCompactionRetention = embed.CompactorModeRevision, "1000"

	e.BcryptCost = cmp.Or(c.bcryptCost, e.BcryptCost)

	if c.Cluster.Name == "" {
		// Short ticks make for a start of 100 ms instead of a second, and a shortest TTL of one second.
		e.TickMs, e.ElectionMs = 10, 100
	}
	if err := c.place(e); err != nil {
		return nil, err
	}
	if c.tune != nil {
		c.tune(e)
	}
	return e, nil
}

// place says where to listen, and where others are told to connect. If it is to choose a port it may be called again, for
// another one.
func (c Config) place(e *embed.Config) error {
	if err := c.listen(e); err != nil {
		return err
	}
	if c.Cluster.Name != "" {
		return c.join(e)
	}
	standAlone(e)
	return nil
}

func (c Config) etcdDir() string { return filepath.Join(c.Dir, "etcd") }

// standAlone makes a cluster of this server. Nothing listens for other members.
func standAlone(e *embed.Config) {
	e.Name = "stile"
	e.ListenPeerUrls = nil
	e.InitialCluster = e.InitialClusterFromName(e.Name) // with a peer URL that is never used
}

// listen says where clients connect.
func (c Config) listen(e *embed.Config) error {
	e.ListenClientUrls, e.AdvertiseClientUrls = nil, nil
	if c.Socket != "" {
		socket := url.URL{Scheme: "unix", Path: c.Socket}
		e.ListenClientUrls, e.AdvertiseClientUrls = []url.URL{socket}, []url.URL{socket}
	}
	if c.Listen == "" {
		return nil
	}
	host, port, err := c.resolve("--listen", c.Listen)
	if err != nil {
		return err
	}
	scheme := "http"
	if c.TLS.Cert != "" {
		scheme = "https"
	}
	if err := c.mayListen(); err != nil {
		return err
	}
	address := url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}
	known := url.URL{Scheme: scheme, Host: net.JoinHostPort(c.knownAs(host), port)}
	e.ListenClientUrls = append(e.ListenClientUrls, address)
	e.AdvertiseClientUrls = []url.URL{known} // a socket is of no use to clients on other machines
	e.ClientTLSInfo.CertFile, e.ClientTLSInfo.KeyFile = c.TLS.Cert, c.TLS.Key
	e.ClientTLSInfo.TrustedCAFile, e.ClientTLSInfo.ClientCertAuth = c.TLS.ClientCA, c.TLS.ClientCA != ""

	// No web page is allowed anything. Empty would mean that all are.
	e.CORS = map[string]struct{}{"none": {}}
	if isLoopback(host) {
		e.HostWhitelist = map[string]struct{}{}
		for _, name := range loopbackNames(host) {
			e.HostWhitelist[name] = struct{}{}
		}
	}
	return nil
}

// mayListen refuses to listen for clients beyond the loopback interface where nothing would keep strangers out.
func (c Config) mayListen() error {
	switch {
	case !c.isExposed() || c.Insecure:
		return nil
	case c.TLS.Cert == "":
		return fmt.Errorf("refusing to listen on %q without TLS: it is not a loopback address, and everybody who can reach "+
			"it could take and break locks; give --tls-cert and --tls-key, and --tls-client-ca or --root-password-file; "+
			"or listen on 127.0.0.1, [::1] or localhost; or say --insecure if the network is yours alone", c.Listen)
	case c.wantsUsers() && c.RootPassword == "" && !c.hasData():
		return c.open()
	default: // if it wants users that are in its data, the start finds out before anybody gets in
		return nil
	}
}

// open is why a server with TLS does not listen beyond the loopback interface.
func (c Config) open() error {
	return fmt.Errorf("refusing to listen on %q for clients without certificates and users: it is not a loopback address, and "+
		"TLS alone keeps nobody out, so everybody who can reach it could take and break locks; give --tls-client-ca or "+
		"--root-password-file, or say --insecure if the network is yours alone", c.Listen)
}

// isExposed reports whether clients can connect from other machines.
func (c Config) isExposed() bool {
	return c.Listen != "" && (c.exposed || !isLoopback(hostname(c.Listen)))
}

// warnInsecure logs what Insecure has allowed.
func (c Config) warnInsecure() {
	if !c.Insecure {
		return
	}
	switch {
	case !c.isExposed():
	case c.TLS.Cert == "":
		c.Logger.Warn("--insecure: clients connect without TLS; whoever can reach the address can read what they send, and "+
			"take and break locks", "listen", c.Listen)
	case c.TLS.ClientCA == "" && c.RootPassword == "":
		c.Logger.Warn("--insecure: clients need no certificate; unless users are required already, whoever can reach the "+
			"address can take and break locks", "listen", c.Listen)
	}
	if address := c.Cluster.exposed(); address != "" {
		c.Logger.Warn("--insecure: members connect without TLS; whoever can reach the address can become one", "peer", address)
	}
}

// loopbackNames are the hosts that requests may name to a server at host, on the loopback interface: a web page whose host
// name has been made to point here names its own.
func loopbackNames(host string) []string {
	return []string{"localhost", "127.0.0.1", "::1", host}
}

// knownAs is the host under which clients elsewhere find a server that listens at host.
func (c Config) knownAs(host string) string {
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsUnspecified() {
		return host
	}
	if own, err := url.Parse(c.Cluster.Peers[c.Cluster.Name]); err == nil && own.Hostname() != "" {
		return own.Hostname()
	}
	if name, err := os.Hostname(); err == nil && name != "" {
		return name
	}
	return host
}

func clientURL(e *embed.Config) string {
	switch u := e.AdvertiseClientUrls[0]; u.Scheme {
	case "unix":
		return socketURL(u.Path)
	case "https":
		return "etcds://" + u.Host
	default:
		return "etcd://" + u.Host
	}
}

func socketURL(path string) string { return "etcd+unix://" + (&url.URL{Path: path}).EscapedPath() }

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// resolve returns the host and the port of an address, with a free port in place of port 0: etcd tells its clients the
// address it was given, so it has to be the real one. Somebody may take that port before etcd listens: see [Config.lost].
func (c Config) resolve(flag, address string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(address)
	if err != nil {
		return "", "", fmt.Errorf("bad address %q for %s: it must be host:port, like 127.0.0.1:2379", address, flag)
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
		return "", "", fmt.Errorf("bad address %q for %s: the host must be an IP address or localhost; "+
			"0.0.0.0 and [::] mean every address of this machine", address, flag)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", fmt.Errorf("bad address %q for %s: the port must be a number up to 65535", address, flag)
	} else if n == 0 {
		pick := freePort
		if c.pickPort != nil {
			pick = c.pickPort
		}
		if port, err = pick(host); err != nil {
			return "", "", fmt.Errorf("no free port on %s: %w", host, err)
		}
	}
	return host, port, nil
}

func freePort(host string) (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// lost reports whether etcd could not listen because somebody has taken the port that was chosen for it, between the choice
// and the attempt. Another one may do.
func (c Config) lost(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "listen" || op.Addr == nil {
		return false
	}
	_, failed, err := net.SplitHostPort(op.Addr.String())
	if err != nil {
		return false
	}
	given := []string{c.Listen, c.Cluster.Listen}
	if own, err := url.Parse(c.Cluster.Peers[c.Cluster.Name]); err == nil {
		given = append(given, own.Host)
	}
	chooses := false
	for _, address := range given {
		_, port, err := net.SplitHostPort(address)
		if err == nil && port == failed {
			return false
		}
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n == 0 {
			chooses = true
		}
	}
	return chooses
}

// explainListen says what to do if err is that an address cannot be listened on; nil if it is something else.
func (c Config) explainListen(err error) error {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "listen" {
		return nil
	}
	if op.Net == "unix" {
		return fmt.Errorf("cannot listen on the unix socket %s: %w", c.Socket, op.Err)
	}
	address, flags := fmt.Sprint(op.Addr), "--listen, --peers or --peer-listen"
	if address == c.Listen {
		flags = "--listen"
	}
	return fmt.Errorf("cannot listen on %s: %w; stop what uses it, or choose another address with %s", address, op.Err, flags)
}
