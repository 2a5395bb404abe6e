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

// Cluster says which member of which cluster a server is. The zero value is a server that is alone.
type Cluster struct {
	// Name is this member's name.
	Name string
	// Peers has the URL of every member by its name, this one's too: where the other members reach it, http://host:port
	// or https://host:port. All of them have TLS, or none.
	Peers map[string]string
	// Listen is the host:port for the other members. Empty means the one in this member's URL, if that has an IP address
	// or localhost.
	Listen string
}

// String returns the members, in the same order on all of them.
func (c Cluster) String() string {
	var members []string
	for _, name := range slices.Sorted(maps.Keys(c.Peers)) {
		members = append(members, name+"="+c.Peers[name])
	}
	return strings.Join(members, ",")
}

// secure reports whether the members speak TLS with each other.
func (c Cluster) secure() bool { return strings.HasPrefix(c.Peers[c.Name], "https:") }

const peersForm = "--peers has to name every member, like a=http://10.0.0.1:2380,b=http://10.0.0.2:2380,c=http://10.0.0.3:2380"

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
			return errors.New("--peers: some URLs begin with https, some with http; the members speak TLS with each other, or none does")
		}
		if err := cfg.mayConnect(u.Scheme, u.Hostname(), u.String()); err != nil {
			return err
		}
	}
	if !c.secure() {
		return nil
	}
	return c.checkCertificate(cfg.TLS)
}

// checkCertificate makes sure that the other members will accept this one's certificate, both when they connect and
// when it does.
func (c Cluster) checkCertificate(t TLS) error {
	if t.Cert == "" || t.peerCA() == "" {
		return errors.New("--peers with https needs --tls-cert and --tls-key, and --tls-peer-ca for who signs the members' certificates")
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

// mayConnect refuses plain connections between members beyond the loopback interface.
func (c Config) mayConnect(scheme, host, address string) error {
	if scheme == "https" || isLoopback(host) || c.Insecure {
		return nil
	}
	return fmt.Errorf("refusing to connect members at %q without TLS: it is not a loopback address, and everybody who can "+
		"reach it could become a member; use https in --peers, with --tls-cert, --tls-key and --tls-peer-ca, "+
		"or say --insecure if the network is yours alone", address)
}

// exposed returns an address beyond the loopback interface where members connect without TLS; empty if there is none.
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
	if err != nil || u.String() != text || !namesMember(u) || strings.ContainsAny(name, "=,") || name == "" {
		return nil, fmt.Errorf("bad member %q: it must be NAME=http://HOST:PORT or NAME=https://HOST:PORT", name+"="+text)
	}
	return u, nil
}

// namesMember reports whether a URL has what that of a member has, and nothing else.
func namesMember(u *url.URL) bool {
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && err == nil && port != 0 &&
		u.User == nil && u.Path == "" && u.RawQuery == "" && !u.ForceQuery && u.Fragment == "" && !strings.Contains(u.Host, ",")
}

// join says how this server becomes, or is, a member of its cluster.
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
			return fmt.Errorf("the URL of this member, %s, has a host name; say with --peer-listen which address to listen on, "+
				"like 0.0.0.0:%s", own, own.Port())
		}
	}
	host, port, err := c.resolve(flag, address)
	if err != nil {
		return err
	}
	if err := c.mayConnect(own.Scheme, host, address); err != nil {
		return err
	}
	e.ListenPeerUrls = []url.URL{{Scheme: own.Scheme, Host: net.JoinHostPort(host, port)}}
	if !c.Cluster.secure() {
		return nil
	}
	t := &e.PeerTLSInfo
	t.CertFile, t.KeyFile, t.TrustedCAFile, t.ClientCertAuth = c.TLS.Cert, c.TLS.Key, c.TLS.peerCA(), true
	// A client's certificate must not do, even if the same authority signs both. Where a member connects from tells
	// nothing: it may be behind another address.
	t.SkipClientSANVerify = true
	t.AllowedHostnames = nil
	for _, member := range c.Cluster.Peers {
		if u, err := url.Parse(member); err == nil {
			t.AllowedHostnames = append(t.AllowedHostnames, u.Hostname())
		}
	}
	return nil
}

// hasData reports whether the data directory is that of a server that has begun.
func (c Config) hasData() bool {
	_, err := os.Stat(filepath.Join(c.etcdDir(), "member", "wal"))
	return !errors.Is(err, os.ErrNotExist)
}

// claim makes sure that the data directory is that of this member, or has no data. It is for who has it locked.
func (c Config) claim() error {
	file := filepath.Join(c.Dir, "member")
	var mine string
	if c.Cluster.Name != "" {
		mine = c.Cluster.Name + " of " + c.Cluster.String() + "\n"
	}
	found, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if string(found) == mine {
		return nil
	}
	if !c.hasData() {
		return record(file, mine) // whoever was here before has not got far
	}
	if len(found) == 0 {
		return fmt.Errorf("the data directory %s belongs to a server that is alone, and a member of a cluster begins with an "+
			"empty one; name another directory with --data, or leave out --name and --peers", c.Dir)
	}
	return fmt.Errorf("the data directory %s belongs to member %s; start it with this --name and these --peers, "+
		"or name another directory with --data", c.Dir, bytes.TrimSpace(found))
}

// record writes a small file as a whole, or removes it if the text is empty.
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
