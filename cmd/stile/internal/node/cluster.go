package node

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"
)

// Cluster describes a cluster and which of its members a server is. The zero value means that the
// server is alone.
type Cluster struct {
	// Name is this member's name.
	Name string
	// Peers maps the name of every member, including this one, to the URL at which the other
	// members reach it: http://host:port or https://host:port. Either all members use TLS or none.
	Peers map[string]string
	// Listen is the host:port for the other members. Empty means that of this member's URL,
	// provided its host is an IP address or localhost.
	Listen string
}

// String returns the list of members. It is the same on all of them.
func (c Cluster) String() string {
	var members []string
	for _, name := range slices.Sorted(maps.Keys(c.Peers)) {
		members = append(members, name+"="+c.Peers[name])
	}
	return strings.Join(members, ",")
}

// secure reports whether the members use TLS with each other.
func (c Cluster) secure() bool { return strings.HasPrefix(c.Peers[c.Name], "https:") }

const peersForm = "--peers must name every member, such as a=http://10.0.0.1:2380,b=http://10.0.0.2:2380,c=http://10.0.0.3:2380"

func (c Cluster) check(cfg Config) error {
	switch {
	case len(c.Peers) == 0 && c.Name == "" && c.Listen == "":
		return nil
	case len(c.Peers) == 0:
		return errors.New("--name and --peer-listen are for the members of a cluster: " + peersForm)
	case c.Name == "":
		return fmt.Errorf("--peers needs --name: which member (%s) is this server?", c.names())
	case c.Peers[c.Name] == "":
		return fmt.Errorf("--name %s is not among the members %s: %s", c.Name, c.names(), peersForm)
	}
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Peers)) {
		u, err := peerURL(name, c.Peers[name])
		if err != nil {
			return err
		}
		if other, taken := seen[u.Host]; taken {
			return fmt.Errorf("--peers: %s and %s have the same address %s", other, name, u.Host)
		}
		seen[u.Host] = name
		if (u.Scheme == "https") != c.secure() {
			return errors.New("--peers: the URLs must all begin with https, or all with http")
		}
		if err := cfg.checkConnection(u.Scheme, u.Hostname(), u.String()); err != nil {
			return err
		}
	}
	if !c.secure() {
		return nil
	}
	return c.checkCertificate(cfg.TLS)
}

// checkCertificate checks that the other members will accept this one's certificate, both as a
// server's and as a client's.
func (c Cluster) checkCertificate(t TLS) error {
	if t.Cert == "" || t.peerCA() == "" {
		return errors.New("--peers with https needs --tls-cert and --tls-key, and --tls-peer-ca with the authority that signs the members' certificates")
	}
	own, err := peerURL(c.Name, c.Peers[c.Name])
	if err != nil {
		return err
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := t.accepts("--tls-peer-ca", t.peerCA(), own.Hostname(), use); err != nil {
			return fmt.Errorf("the other members would not accept --tls-cert %s: %w; it must be signed by an authority in %s, "+
				"for %s, and for use as a server and as a client", t.Cert, err, t.peerCA(), own.Hostname())
		}
	}
	return nil
}

// checkConnection refuses plain connections between members beyond the loopback interface.
func (c Config) checkConnection(scheme, host, address string) error {
	if scheme == "https" || isLoopback(host) || c.Insecure {
		return nil
	}
	return fmt.Errorf("refusing to connect members at %q without TLS: it is not a loopback address, and everybody who can "+
		"reach it could become a member; use https in --peers, with --tls-cert, --tls-key and --tls-peer-ca, "+
		"or allow it with --insecure if the network is trusted", address)
}

// exposed returns an address beyond the loopback interface at which members connect without TLS;
// empty if there is none.
func (c Cluster) exposed() string {
	if len(c.Peers) == 0 || c.secure() {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(c.Peers)) {
		if u, err := peerURL(name, c.Peers[name]); err == nil && !isLoopback(u.Hostname()) {
			return u.Host
		}
	}
	if c.Listen != "" && !isLoopback(hostname(c.Listen)) {
		return c.Listen
	}
	return ""
}

func (c Cluster) names() string { return strings.Join(slices.Sorted(maps.Keys(c.Peers)), ", ") }

func peerURL(name, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.String() != text || !isPeerURL(u) || strings.ContainsAny(name, "=,") || name == "" {
		return nil, fmt.Errorf("invalid member %q: it must be NAME=http://HOST:PORT or NAME=https://HOST:PORT", name+"="+text)
	}
	return u, nil
}

// isPeerURL reports whether a URL has a scheme, a host and a port, and nothing else.
func isPeerURL(u *url.URL) bool {
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && err == nil && port != 0 &&
		u.User == nil && u.Path == "" && u.RawQuery == "" && !u.ForceQuery && u.Fragment == "" && !strings.Contains(u.Host, ",")
}

// join configures this server as a member of its cluster.
func (c Config) join(e *embed.Config) error {
	own, err := peerURL(c.Cluster.Name, c.Cluster.Peers[c.Cluster.Name])
	if err != nil {
		return err
	}
	e.Name = c.Cluster.Name
	e.InitialCluster = c.Cluster.String()
	e.InitialClusterToken = "stile " + e.InitialCluster // members of different clusters refuse each other
	e.AdvertisePeerUrls = []url.URL{*own}

	flag, address := "--peer-listen", c.Cluster.Listen
	if address == "" {
		flag, address = "--peers", own.Host
		if !isLoopback(own.Hostname()) && net.ParseIP(own.Hostname()) == nil {
			return fmt.Errorf("the URL of this member, %s, has a host name; name the address to listen on with --peer-listen, "+
				"such as 0.0.0.0:%s", own, own.Port())
		}
	}
	host, port, err := c.resolve(flag, address)
	if err != nil {
		return err
	}
	if err := c.checkConnection(own.Scheme, host, address); err != nil {
		return err
	}
	e.ListenPeerUrls = []url.URL{{Scheme: own.Scheme, Host: net.JoinHostPort(host, port)}}
	if !c.Cluster.secure() {
		return nil
	}
	t := &e.PeerTLSInfo
	t.CertFile, t.KeyFile, t.TrustedCAFile, t.ClientCertAuth = c.TLS.Cert, c.TLS.Key, c.TLS.peerCA(), true
	// A client's certificate must not be accepted for a member, even if the same authority signs
	// both. The source address of a connection is no proof of membership: a member may connect from
	// an address other than its own.
	t.SkipClientSANVerify = true
	t.AllowedHostnames = nil
	for _, member := range c.Cluster.Peers {
		if u, err := url.Parse(member); err == nil {
			t.AllowedHostnames = append(t.AllowedHostnames, u.Hostname())
		}
	}
	return nil
}

// hasData reports whether a server has started on the data directory before.
func (c Config) hasData() bool {
	_, err := os.Stat(filepath.Join(c.etcdDir(), "member", "wal"))
	return !errors.Is(err, os.ErrNotExist)
}

// claim checks that the data directory belongs to this member, and records this member as the owner
// if it has no data. The caller holds the directory's lock.
func (c Config) claim() error {
	file := filepath.Join(c.Dir, "member")
	var own string
	if c.Cluster.Name != "" {
		own = c.Cluster.Name + " of " + c.Cluster.String() + "\n"
	}
	found, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if string(found) == own {
		return nil
	}
	if !c.hasData() {
		return record(file, own) // an earlier server has not written any data
	}
	if len(found) == 0 {
		return fmt.Errorf("the data directory %s belongs to a server that is alone, and a new member of a cluster needs an "+
			"empty one; name another directory with --data, or omit --name and --peers", c.Dir)
	}
	return fmt.Errorf("the data directory %s belongs to member %s; use this --name and these --peers, "+
		"or name another directory with --data", c.Dir, bytes.TrimSpace(found))
}

// record writes a small file atomically, or removes it if the text is empty.
func record(file, text string) error {
	if text == "" {
		return os.Remove(file)
	}
	next := file + ".new"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(next, file)
}
