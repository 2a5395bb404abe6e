package node

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"unicode"
)

// An accepted address has a host of this machine and a port, and resolves to itself.
func FuzzResolve(f *testing.F) {
	for _, address := range []string{
		"127.0.0.1:2379", "[::1]:2379", "localhost:1", "0.0.0.0:65535", "[fe80::1%eth0]:1", ":2379", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http",
		"127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:+1", "127.0.0.1:01", "example.com:1", "::1:1", "[127.0.0.1]:1", "[]:1", "",
	} {
		f.Add(address)
	}
	f.Fuzz(func(t *testing.T, address string) {
		if _, port, err := net.SplitHostPort(address); err == nil && strings.Trim(port, "0") == "" {
			return // would choose a free port
		}
		host, port, err := (Config{}).resolve("--listen", address)
		if err != nil {
			checkReadable(t, err, "--listen")
			return
		}
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
			t.Errorf("%q resolves to host %q, which is neither an IP address nor localhost", address, host)
		}
		if _, err := net.LookupPort("tcp", port); err != nil {
			t.Errorf("%q resolves to the invalid port %q", address, port)
		}
		if again, same, err := (Config{}).resolve("--listen", net.JoinHostPort(host, port)); err != nil || again != host || same != port {
			t.Errorf("%q resolves to %q and %q, and those to %q and %q, %v", address, host, port, again, same, err)
		}
	})
}

// An accepted URL of a member can be connected to and has no other parts.
func FuzzPeerURL(f *testing.F) {
	for _, seed := range []struct{ name, url string }{
		{"a", "http://127.0.0.1:2380"},
		{"a", "https://a.example:2380"},
		{"a", "http://[::1]:1"},
		{"a", "http://h"},
		{"a", "http://h:0"},
		{"a", "http://h:00"},
		{"a", "http://h:99999"},
		{"a", "http://:1"},
		{"a", "http://u:p@h:1"},
		{"a", "http://h:1/x"},
		{"a", "http://h:1?x"},
		{"a", "http://h:1#x"},
		{"a", "http://h:1?"},
		{"a", "http://[fe80::1%25eth0]:1"},
		{"a", "http://\xf5:1"},
		{"a", "http://h:1,b=http://h:2"},
		{"", "http://h:1"},
		{"a=b", "http://h:1"},
		{"a", "ftp://h:1"},
		{"a", "http://%zz:1"},
		{"a\n", "http://h:1"},
	} {
		f.Add(seed.name, seed.url)
	}
	f.Fuzz(func(t *testing.T, name, text string) {
		u, err := peerURL(name, text)
		if err != nil {
			checkReadable(t, err, "member")
			return
		}
		if _, err := net.LookupPort("tcp", u.Port()); err != nil {
			t.Errorf("%q is accepted with the invalid port %q", text, u.Port())
		}
		if u.String() != text || strings.ContainsAny(strings.TrimPrefix(text, u.Scheme+"://"), "/?#@,") {
			t.Errorf("%q is accepted as %q", text, u)
		}
	})
}

// checkReadable checks that the error names its subject, in one line.
func checkReadable(t *testing.T, err error, about string) {
	t.Helper()
	if text := err.Error(); !strings.Contains(text, about) || strings.ContainsFunc(text, unicode.IsControl) {
		t.Errorf("got the error %q, want one line that names its subject", text)
	}
}
