package node

import (
	"log/slog"
	"os"
	"testing"
)

// Nothing is started here: these servers would be reachable from elsewhere.
func TestWhereAServerOnEveryAddressIsFound(t *testing.T) {
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
				t.Errorf("URL %s, want %s", got, c.want)
			}
			if e.HostWhitelist != nil && e.HostWhitelist["*"] != struct{}{} {
				t.Errorf("the gateway answers to %v only", e.HostWhitelist)
			}
		})
	}
}
