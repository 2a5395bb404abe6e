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

// maxPassword is bcrypt's limit in bytes.
const maxPassword = 72

// check validates the configuration, and reads the certificates, before anything is written or
// started.
func (c Config) check() error {
	if c.Listen == "" && c.Socket == "" {
		return errors.New("no address to listen on: name one with --listen, or a socket with --socket")
	}
	if len(c.RootPassword) > maxPassword {
		return fmt.Errorf("--root-password-file: the password is longer than %d bytes, the limit of bcrypt, "+
			"which etcd uses; choose a shorter one", maxPassword)
	}
	if err := c.TLS.check(c.Listen != "" || c.Cluster.secure()); err != nil {
		return err
	}
	return c.Cluster.check(c)
}

// etcd returns etcd's configuration.
func (c Config) etcd() (*embed.Config, error) {
	e := embed.NewConfig()
	e.Dir = c.etcdDir()

	// Locks need no history but the most recent, for watches and tokens.
	e.AutoCompactionMode, e.AutoCompactionRetention = embed.CompactorModeRevision, "1000"

	e.BcryptCost = cmp.Or(c.bcryptCost, e.BcryptCost)

	if c.Cluster.Name == "" {
		// With short ticks the server starts in 100 ms instead of a second, and the minimum TTL is
		// one second.
		e.TickMs, e.ElectionMs = 10, 100
	}
	if err := c.setAddresses(e); err != nil {
		return nil, err
	}
	if c.tune != nil {
		c.tune(e)
	}
	return e, nil
}

// setAddresses sets the addresses to listen on and those to advertise. If it chooses a port, it can
// be called again for another one.
func (c Config) setAddresses(e *embed.Config) error {
	if err := c.setClientAddresses(e); err != nil {
		return err
	}
	if c.Cluster.Name != "" {
		return c.join(e)
	}
	standAlone(e)
	return nil
}

func (c Config) etcdDir() string { return filepath.Join(c.Dir, "etcd") }

// standAlone configures a cluster of one. Nothing listens for other members.
func standAlone(e *embed.Config) {
	e.Name = "stile"
	e.ListenPeerUrls = nil
	e.InitialCluster = e.InitialClusterFromName(e.Name) // with a peer URL that is never used
}

// setClientAddresses sets the addresses for clients.
func (c Config) setClientAddresses(e *embed.Config) error {
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
	if err := c.checkListen(); err != nil {
		return err
	}
	address := url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}
	advertised := url.URL{Scheme: scheme, Host: net.JoinHostPort(c.advertisedHost(host), port)}
	e.ListenClientUrls = append(e.ListenClientUrls, address)
	e.AdvertiseClientUrls = []url.URL{advertised} // not the socket, which clients on other machines cannot reach
	e.ClientTLSInfo.CertFile, e.ClientTLSInfo.KeyFile = c.TLS.Cert, c.TLS.Key
	e.ClientTLSInfo.TrustedCAFile, e.ClientTLSInfo.ClientCertAuth = c.TLS.ClientCA, c.TLS.ClientCA != ""

	// No web page is allowed. An empty set would allow all.
	e.CORS = map[string]struct{}{"none": {}}
	if isLoopback(host) {
		e.HostWhitelist = map[string]struct{}{}
		for _, name := range loopbackNames(host) {
			e.HostWhitelist[name] = struct{}{}
		}
	}
	return nil
}

// checkListen refuses to listen for clients beyond the loopback interface without TLS,
// or with neither users nor client certificates.
func (c Config) checkListen() error {
	switch {
	case !c.isExposed() || c.Insecure:
		return nil
	case c.TLS.Cert == "":
		return fmt.Errorf("refusing to listen on %q without TLS: it is not a loopback address, and everybody who can reach "+
			"it could take and break locks; give --tls-cert and --tls-key, and --tls-client-ca or --root-password-file; "+
			"or listen on 127.0.0.1, [::1] or localhost; or allow it with --insecure if the network is trusted", c.Listen)
	case c.wantsUsers() && c.RootPassword == "" && !c.hasData():
		return c.openError()
	default: // users that are in the data are checked during the start, before the first client is admitted
		return nil
	}
}

// openError is the error of a server with TLS that would listen beyond the loopback interface for
// anybody.
func (c Config) openError() error {
	return fmt.Errorf("refusing to listen on %q for clients without certificates and users: it is not a loopback address, and "+
		"TLS alone admits everybody who can reach it, who could then take and break locks; give --tls-client-ca or "+
		"--root-password-file, or allow it with --insecure if the network is trusted", c.Listen)
}

// isExposed reports whether clients on other machines can connect.
func (c Config) isExposed() bool {
	return c.Listen != "" && (c.exposed || !isLoopback(hostname(c.Listen)))
}

// warnInsecure logs what --insecure allows.
func (c Config) warnInsecure() {
	if !c.Insecure {
		return
	}
	switch {
	case !c.isExposed():
	case c.TLS.Cert == "":
		c.Logger.Warn("--insecure: clients connect without TLS; everybody who can reach the address can read their traffic, and "+
			"take and break locks", "listen", c.Listen)
	case c.TLS.ClientCA == "" && c.RootPassword == "":
		c.Logger.Warn("--insecure: clients need no certificate; unless users are already required, everybody who can reach the "+
			"address can take and break locks", "listen", c.Listen)
	}
	if address := c.Cluster.exposed(); address != "" {
		c.Logger.Warn("--insecure: members connect without TLS; everybody who can reach the address can become a member", "peer", address)
	}
}

// loopbackNames returns the hosts that requests to a server on the loopback interface may name. A
// web page whose host name resolves to this machine (DNS rebinding) names its own host.
func loopbackNames(host string) []string {
	return []string{"localhost", "127.0.0.1", "::1", host}
}

// advertisedHost returns the host under which clients on other machines reach a server that listens
// at host.
func (c Config) advertisedHost(host string) string {
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

// resolve splits an address and replaces port 0 by a free port: etcd advertises the address that it
// is given, so that must be the real one. Another process may take the port before etcd listens on
// it: see [Config.lostPort].
func (c Config) resolve(flag, address string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(address)
	if err != nil {
		return "", "", fmt.Errorf("invalid address %q for %s: it must be host:port, such as 127.0.0.1:2379", address, flag)
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
		return "", "", fmt.Errorf("invalid address %q for %s: the host must be an IP address or localhost; "+
			"0.0.0.0 and [::] mean every address of this machine", address, flag)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", fmt.Errorf("invalid address %q for %s: the port must be a number up to 65535", address, flag)
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

// lostPort reports whether etcd could not listen because another process took the port between its
// choice and the attempt. Another port may work.
func (c Config) lostPort(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "listen" || op.Addr == nil {
		return false
	}
	_, failed, err := net.SplitHostPort(op.Addr.String())
	if err != nil {
		return false
	}
	configured := []string{c.Listen, c.Cluster.Listen}
	if own, err := url.Parse(c.Cluster.Peers[c.Cluster.Name]); err == nil {
		configured = append(configured, own.Host)
	}
	choosesPort := false
	for _, address := range configured {
		_, port, err := net.SplitHostPort(address)
		if err == nil && port == failed {
			return false
		}
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n == 0 {
			choosesPort = true
		}
	}
	return choosesPort
}

// explainListen adds advice to the error of an address that cannot be listened on. It returns nil
// for any other error.
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
	return fmt.Errorf("cannot listen on %s: %w; stop the program that uses it, or choose another address with %s", address, op.Err, flags)
}
