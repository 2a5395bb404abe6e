package storeurl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// A target is a parsed URL.
type target struct {
	scheme    string
	redacted  string   // the URL without its password
	endpoints []string // host:port each; for a unix socket, unix:// and its path
	prefix    string   // of all keys; for etcd it is empty or ends with a slash

	user                      string
	password                  string // in the URL itself
	passwordFile, passwordEnv string // where to read it from

	ca, cert, key string // paths

	tethered bool // see Options; not part of the URL
	isLocal  bool // the endpoint is the local server's

	redis redisTarget
	zk    zkTarget
}

// hide returns the part that can be shown of a URL that does not parse.
func hide(raw string) string {
	scheme, rest, ok := strings.Cut(raw, ":")
	switch {
	case !ok || !isScheme(scheme):
		return "***"
	case strings.HasPrefix(rest, "//"):
		return scheme + "://***"
	default:
		return scheme + ":***"
	}
}

func isScheme(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789+-.") == ""
}

// parse parses a URL. Its errors repeat no part of the URL that could be a password in which
// slashes or other marks were left unescaped. For that reason net/url, whose errors repeat their
// input, is used for unescaping only, and errors name the items of a list by number.
func parse(raw string) (target, error) {
	scheme, rest, ok := strings.Cut(raw, ":")
	if !ok || !isScheme(scheme) {
		return target{}, &schemeError{"missing scheme", ErrUnknownScheme}
	}
	t := target{scheme: scheme, redacted: raw}
	known, ok := schemes()[scheme]
	if !ok {
		return target{}, &schemeError{fmt.Sprintf("unknown scheme %q", scheme), ErrUnknownScheme}
	}
	if isBare(scheme) {
		if rest != "" {
			return target{}, &schemeError{"nothing may follow " + scheme + ":", nil}
		}
		return t, nil
	}
	rest, ok = strings.CutPrefix(rest, "//")
	if !ok {
		return target{}, &schemeError{scheme + ": must be followed by //", nil}
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if strings.Contains(path, "@") || strings.Contains(query, "@") {
		return target{}, errors.New("@ is not allowed after the hosts: write @ as %40 there, " +
			"and / as %2F and ? as %3F in a user name or password")
	}
	if err := t.setParameters(query); err != nil {
		return target{}, err
	}
	if err := known.set(&t, authority, path); err != nil {
		return target{}, err
	}
	return t, nil
}

func (t *target) setParameters(query string) error {
	if query == "" {
		return nil
	}
	known := schemes()[t.scheme].parameters(t)
	for part := range strings.SplitSeq(query, "&") {
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			return errors.New("a parameter after ? must have the form name=value")
		}
		set := known[name]
		if set == nil {
			return fmt.Errorf("unknown parameter %q; %s:// allows %s", name, t.scheme, list(known))
		}
		if *set != "" {
			return fmt.Errorf("duplicate parameter %s", name)
		}
		value, err := unescape(value)
		if err != nil {
			return fmt.Errorf("parameter %s: %w", name, err)
		}
		if value == "" {
			return fmt.Errorf("parameter %s is empty", name)
		}
		*set = value
	}
	return nil
}

func list(known map[string]*string) string {
	var names []string
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// setSocket parses the path of a unix socket, which these URLs have instead of hosts.
func (t *target) setSocket(authority, path string) error {
	if authority != "" || path == "" || path == "/" {
		return fmt.Errorf("%s:// must be followed by the absolute path of a socket, as in %s:///run/server.sock", t.scheme, t.scheme)
	}
	path, err := unescape(path)
	if err != nil {
		return fmt.Errorf("path: %w", err)
	}
	t.endpoints = []string{"unix://" + path}
	return nil
}

func (t *target) setAuthority(authority string) error {
	hosts := authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		hosts = authority[i+1:]
		if err := t.setUser(authority[:i]); err != nil {
			return err
		}
	}
	for i, host := range strings.Split(hosts, ",") {
		endpoint, err := endpoint(host, schemes()[t.scheme].port)
		if err != nil {
			return fmt.Errorf("host %d: %w", i+1, err)
		}
		t.endpoints = append(t.endpoints, endpoint)
	}
	return nil
}

func (t *target) setUser(userinfo string) (err error) {
	user, password, _ := strings.Cut(userinfo, ":")
	if password != "" {
		before, after := t.scheme+"://"+user+":", t.redacted[len(t.scheme+"://"+userinfo):]
		t.redacted = before + "***" + after
	}
	if t.user, err = unescape(user); err != nil {
		return fmt.Errorf("user name: %w", err)
	}
	if t.password, err = unescape(password); err != nil {
		return fmt.Errorf("password: %w", err)
	}
	return nil
}

// endpoint parses a host with an optional port.
func endpoint(s, defaultPort string) (string, error) {
	host, port, err := splitPort(s, defaultPort)
	if err != nil {
		return "", err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("the port must be a number from 1 to 65535")
	}
	return net.JoinHostPort(host, port), nil
}

func splitPort(s, defaultPort string) (host, port string, err error) {
	if rest, ok := strings.CutPrefix(s, "["); ok {
		host, rest, ok = strings.Cut(rest, "]")
		port, hasPort := strings.CutPrefix(rest, ":")
		if addr, err := netip.ParseAddr(host); !ok || err != nil || !addr.Is6() || (rest != "" && !hasPort) {
			return "", "", errors.New("brackets must contain an IPv6 address, and only :PORT may follow")
		}
		if !hasPort {
			port = defaultPort
		}
		return host, port, nil
	}
	host, port, ok := strings.Cut(s, ":")
	switch {
	case strings.Contains(port, ":"):
		return "", "", errors.New("more than one colon: put an IPv6 address in brackets, as in [::1]:" + defaultPort)
	case host == "":
		return "", "", errors.New("missing host name")
	case !isHost(host):
		return "", "", errors.New("invalid character in the host name")
	case !ok:
		port = defaultPort
	}
	return host, port, nil
}

func isHost(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._", r)
	})
}

func unescape(s string) (string, error) {
	s, err := url.PathUnescape(s)
	if err != nil { // err repeats the text
		return "", errors.New("a % is not followed by two hexadecimal digits: write % itself as %25")
	}
	return s, nil
}
