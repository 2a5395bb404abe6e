package storeurl

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
)

func TestParseRedlock(t *testing.T) {
	three := []string{"h1:6379", "h2:6379", "h3:7"}
	for _, c := range []struct {
		url  string
		want target
		db   int
	}{
		{"redlock://h1,h2,h3:7", target{}, 0},
		{"redlock://h1,h2,h3:7/", target{}, 0},
		{"redlock://h1,h2,h3:7/5?prefix=team%2F", target{prefix: "team/"}, 5},
		{"redlock://:pw@h1,h2,h3:7", target{password: "pw"}, 0},
		{"redlock://ann:pw@h1,h2,h3:7/1", target{user: "ann", password: "pw"}, 1},
		{"redlock://ann@h1,h2,h3:7?password_file=f", target{user: "ann", passwordFile: "f"}, 0},
		{"redlocks://ann@h1,h2,h3:7?password_env=E&ca=c", target{user: "ann", passwordEnv: "E", ca: "c"}, 0},
	} {
		t.Run(c.url, func(t *testing.T) {
			got, err := parse(c.url)
			if err != nil {
				t.Fatal(err)
			}
			c.want.scheme, _, _ = strings.Cut(c.url, ":")
			c.want.redacted = got.redacted
			if !slices.Equal(got.endpoints, three) || got.fields() != c.want.fields() || got.redis.db != c.db {
				t.Errorf("got %q, %+v and database %d", got.endpoints, got.fields(), got.redis.db)
			}
		})
	}
}

func TestParseRedlock_errors(t *testing.T) {
	for url, want := range map[string]string{
		"redlock://h":               "give three, of which one may fail, or five, of which two may",
		"redlock://h1,h2,h3,h4":     "an even number tolerates no more failures than 3; use 3 or 5",
		"redlock://h1,h2,h1:6379":   "master h1:6379 is given twice",
		"redlock://h1,h2,h3/team":   "the database must be a number; to set a prefix of all keys, write ?prefix=PREFIX",
		"redlock://h1,h2,h3?ca=f":   `unknown parameter "ca"; redlock:// allows password_env, password_file, prefix`,
		"redlock://ann@h1,h2,h3":    "missing password for the user",
		"redlocks://h1,h2,h3?key=f": "cert and key belong together",
	} {
		t.Run(url, func(t *testing.T) { _ = fails(t.Context(), t, url, want) })
	}
}

func TestOpenRedlock(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3, "requirepass "+secret)
	hosts := hosts(servers)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	t.Run("with the password in the URL", func(t *testing.T) {
		enqueue(t, open(t, "redlock://:"+secret+"@"+hosts), "a")
		eventually(t, "a key that is the lock's name", func() bool { // written to a majority first, not always to this one
			keys, _ := servers[0].Do("KEYS", "a").AsStrSlice()
			return len(keys) == 1
		})
	})
	t.Run("with the password in a file, a prefix and a database", func(t *testing.T) {
		enqueue(t, open(t, "redlock://"+hosts+"/3?password_file="+file+"&prefix=team:"), "b")
		eventually(t, "a key in database 3", func() bool {
			keyspace, _ := servers[0].Do("INFO", "keyspace").ToString()
			return strings.Contains(keyspace, "db3:")
		})
	})
	t.Run("with a wrong password", func(t *testing.T) {
		_ = fails(t.Context(), t, "redlock://:x"+secret+"@"+hosts, "redlock://:***@", "WRONGPASS", "check the user and the password")
	})
	t.Run("without a password", func(t *testing.T) {
		_ = fails(t.Context(), t, "redlock://"+hosts, "NOAUTH", "check the user and the password")
	})
	t.Run("with one master down", func(t *testing.T) {
		servers[0].Kill()
		enqueue(t, open(t, "redlock://:"+secret+"@"+hosts), "c")
	})
	t.Run("with a majority down", func(t *testing.T) {
		servers[1].Kill()
		_ = fails(t.Context(), t, "redlock://:"+secret+"@"+hosts, "cannot connect to 2 of 3 hosts", servers[0].Addr()+": connect: connection refused")
	})
}

func TestOpenRedlock_tls(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.issue("server", &x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.ParseIP(testservers.Host())},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	servers := testservers.StartRedisServers(t, 3, "tls-cert-file "+ca.file("server.pem"),
		"tls-key-file "+ca.file("server-key.pem"), "tls-ca-cert-file "+ca.file("ca.pem"), "tls-auth-clients no")
	hosts := hosts(servers)
	t.Run("trusting the authority", func(t *testing.T) {
		enqueue(t, open(t, "redlocks://"+hosts+"?ca="+ca.file("ca.pem")), "a")
	})
	t.Run("not trusting it", func(t *testing.T) {
		_ = fails(t.Context(), t, "redlocks://"+hosts, servers[0].Addr(), "certificate signed by unknown authority")
	})
}

// eventually polls until happened returns true.
func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !happened(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after two minutes, still not: %s", what)
		}
	}
}

// hosts returns the host list of a URL for the servers.
func hosts(servers []*testservers.Redis) string {
	addrs := make([]string, 0, len(servers))
	for _, r := range servers {
		addrs = append(addrs, r.Addr())
	}
	return strings.Join(addrs, ",")
}
