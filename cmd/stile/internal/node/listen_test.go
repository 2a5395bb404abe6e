package node

import (
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
)

func TestLostPort(t *testing.T) {
	t.Parallel()
	const own = "http://127.0.0.1:2380"
	member := Cluster{Name: "a", Peers: map[string]string{"a": own}}
	elsewhere := Cluster{Name: "a", Peers: map[string]string{"a": own}, Listen: "127.0.0.1:0"}
	for name, c := range map[string]struct {
		cfg  Config
		op   string
		port int
		want bool
	}{
		"chosen for clients":        {Config{Listen: "127.0.0.1:0"}, "listen", 40000, true},
		"chosen, written as 00":     {Config{Listen: "127.0.0.1:00"}, "listen", 40000, true},
		"given for clients":         {Config{Listen: "127.0.0.1:2379"}, "listen", 2379, false},
		"given for members":         {Config{Listen: "127.0.0.1:0", Cluster: member}, "listen", 2380, false},
		"chosen beside a given one": {Config{Listen: "127.0.0.1:0", Cluster: member}, "listen", 40000, true},
		"chosen for members":        {Config{Listen: "127.0.0.1:2379", Cluster: elsewhere}, "listen", 40000, true},
		"none":                      {Config{Socket: "/s"}, "listen", 40000, false},
		"another error":             {Config{Listen: "127.0.0.1:0"}, "dial", 40000, false},
	} {
		err := &net.OpError{Op: c.op, Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: c.port}, Err: syscall.EADDRINUSE}
		if got := c.cfg.lostPort(err); got != c.want {
			t.Errorf("%s: port %d: got %v, want %v", name, c.port, got, c.want)
		}
	}
	if (Config{Listen: "127.0.0.1:0"}).lostPort(nil) {
		t.Error("lostPort(nil) = true")
	}
}

// No server is started here: it would be reachable from other machines.
func TestClientURL_unspecifiedAddress(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	peers := map[string]string{"a": "http://a.example:2380", "b": "http://b.example:2380"}
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"alone":       {Config{Listen: "0.0.0.0:2379"}, "etcd://" + host + ":2379"},
		"alone, IPv6": {Config{Listen: "[::]:2379"}, "etcd://" + host + ":2379"},
		"a member": {
			Config{Listen: "0.0.0.0:4001", Cluster: Cluster{Name: "b", Peers: peers, Listen: "0.0.0.0:2380"}},
			"etcd://b.example:4001",
		},
		"one address": {Config{Listen: "192.0.2.1:2379"}, "etcd://192.0.2.1:2379"},
		"TLS":         {Config{Listen: "0.0.0.0:2379", TLS: TLS{Cert: "c", Key: "k"}}, "etcds://" + host + ":2379"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.cfg.Insecure, c.cfg.Logger = true, slog.New(slog.DiscardHandler)
			e, err := c.cfg.etcd()
			if err != nil {
				t.Fatal(err)
			}
			if got := clientURL(e); got != c.want {
				t.Errorf("got URL %s, want %s", got, c.want)
			}
			if e.HostWhitelist != nil && e.HostWhitelist["*"] != struct{}{} {
				t.Errorf("the gateway answers only for the hosts %v, want all", e.HostWhitelist)
			}
		})
	}
}
