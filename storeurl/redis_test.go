package storeurl

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
)

func TestParseRedis(t *testing.T) {
	for _, c := range []struct {
		url  string
		want target
	}{
		{"redis://h", target{endpoints: []string{"h:6379"}}},
		{"redis://h:1/3", target{endpoints: []string{"h:1"}, redis: redisTarget{db: 3}}},
		{"redis://:pw@h", target{endpoints: []string{"h:6379"}, password: "pw"}},
		{"redis://ann:pw@h?prefix=team:", target{endpoints: []string{"h:6379"}, user: "ann", password: "pw", prefix: "team:"}},
		{"redis://ann@h?password_env=PW", target{endpoints: []string{"h:6379"}, user: "ann", passwordEnv: "PW"}},
		{
			"redis://h?wait_replicas=2&wait_timeout=300ms",
			target{endpoints: []string{"h:6379"}, redis: redisTarget{replicas: 2, timeout: 300 * time.Millisecond}},
		},
		{"rediss://h/?ca=ca.pem", target{endpoints: []string{"h:6379"}, ca: "ca.pem", redis: redisTarget{tls: true}}},
		{"redis+unix:///run/r.sock?db=2", target{endpoints: []string{"unix:///run/r.sock"}, redis: redisTarget{db: 2}}},
		{
			"redis+sentinel://h1,h2:7/my%2Fmaster/5",
			target{endpoints: []string{"h1:26379", "h2:7"}, redis: redisTarget{master: "my/master", db: 5}},
		},
		{
			"redis+sentinel://:pw@h1/m?tls=1&ca=c",
			target{endpoints: []string{"h1:26379"}, password: "pw", ca: "c", redis: redisTarget{master: "m", tls: true}},
		},
		{"redis+cluster://h1,h2", target{endpoints: []string{"h1:6379", "h2:6379"}}},
	} {
		t.Run(c.url, func(t *testing.T) {
			got, err := parse(c.url)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Join(got.endpoints, " ") != strings.Join(c.want.endpoints, " ") {
				t.Errorf("endpoints %q, want %q", got.endpoints, c.want.endpoints)
			}
			got.redis.dbText, got.redis.tlsText, got.redis.replicasText, got.redis.timeoutText = "", "", "", ""
			if got.redis != c.want.redis {
				t.Errorf("got %+v, want %+v", got.redis, c.want.redis)
			}
			scheme, _, _ := strings.Cut(c.url, ":")
			c.want.scheme, c.want.redacted = scheme, got.redacted
			if got.fields() != c.want.fields() {
				t.Errorf("got  %+v\nwant %+v", got.fields(), c.want.fields())
			}
		})
	}
}

func TestParseRedis_errors(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"redis://h1,h2", "redis+cluster://"},
		{"redis://h/team", "?prefix=PREFIX"},
		{"redis://h/-1", "the database must be a number"},
		{"redis://ann@h", "missing password for the user"},
		{"redis://:pw@h?password_env=PW", "more than one password"},
		{"redis://h?ca=x", `unknown parameter "ca"`},
		{"redis://h?wait_replicas=many", "wait_replicas"},
		{"redis://h?wait_timeout=1s", "wait_timeout needs wait_replicas"},
		{"redis://h?wait_replicas=1&wait_timeout=1", "500ms"},
		{"rediss://h?cert=c", "belong together"},
		{"redis+sentinel://h", "missing master name"},
		{"redis+sentinel://h/m?ca=x", "need tls=1"},
		{"redis+sentinel://h/m?tls=yes", "tls must be 0 or 1"},
		{"redis+cluster://h/1", "only database 0"},
		{"redis+unix://h", "the absolute path of a socket"},
	} {
		t.Run(c.url, func(t *testing.T) {
			_, err := parse(c.url)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "pw") {
				t.Errorf("got %[2]v, want an error with %[1]q and no password", c.want, err)
			}
		})
	}
}

func TestOpenRedis(t *testing.T) {
	t.Parallel()
	redis := testservers.StartRedis(t)
	for _, c := range []struct{ url, db, key string }{
		{"redis://" + redis.Addr(), "0", "a"},
		{"redis://" + redis.Addr() + "/2?prefix=team:", "2", "team:a"},
		{"redis+unix://" + redis.Socket() + "?db=3", "3", "a"},
	} {
		t.Run(c.url, func(t *testing.T) {
			enqueue(t, open(t, c.url), "a")
			there, err := redis.Do("EVAL", "redis.call('SELECT', ARGV[1]) return redis.call('EXISTS', ARGV[2])", "0", c.db, c.key).AsInt64()
			if err != nil || there != 1 {
				t.Errorf("database %s has %d keys %q, %v; want 1", c.db, there, c.key, err)
			}
		})
	}
}

func TestOpenRedis_clusterAndSentinel(t *testing.T) {
	t.Parallel()
	var nodes []string
	for _, node := range testservers.StartRedisCluster(t, 3) {
		nodes = append(nodes, node.Addr())
	}
	failover := testservers.StartRedisFailover(t)
	for _, url := range []string{
		"redis+cluster://127.0.0.1:1," + strings.Join(nodes[1:], ","),
		"redis+sentinel://127.0.0.1:1," + strings.Join(failover.SentinelAddrs(), ",") + "/" + testservers.SentinelMaster,
	} {
		t.Run(url, func(t *testing.T) { enqueue(t, open(t, url), "a") })
	}
}

func TestOpenRedis_password(t *testing.T) {
	const secret = "s3cret/@"
	redis := testservers.StartRedis(t, `requirepass "`+secret+`"`, "user ann on >"+secret+" ~* &* +@all")
	t.Setenv("REDIS_PASSWORD_OF_TEST", secret)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{
		"redis://:s3cret%2F%40@" + redis.Addr(),
		"redis://ann:s3cret%2F%40@" + redis.Addr(),
		"redis://ann@" + redis.Addr() + "?password_env=REDIS_PASSWORD_OF_TEST",
		"redis://" + redis.Addr() + "?password_file=" + file,
		"redis+unix://" + redis.Socket() + "?password_file=" + file,
	} {
		t.Run(Redact(url), func(t *testing.T) { enqueue(t, open(t, url), "a") })
	}
	t.Run("wrong", func(t *testing.T) {
		_ = fails(t.Context(), t, "redis://ann:"+strings.ToUpper("s3cret")+"@"+redis.Addr(), `rejected user "ann"`)
	})
	t.Run("none", func(t *testing.T) {
		_ = fails(t.Context(), t, "redis://"+redis.Addr(), "give a password")
	})
}

func TestOpenRedis_unreachable(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"redis://127.0.0.1:1", "redis+unix:///nothing/here", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/m"} {
		t.Run(url, func(t *testing.T) { _ = fails(t.Context(), t, url, "cannot connect: ") })
	}
	t.Run("silent", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_ = fails(hurry(t), t, "redis://"+l.Addr().String(), "cannot connect: ")
	})
}

func TestOpenRedis_tls(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.issue("server", &x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.ParseIP(testservers.Host())},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	ca.issue("client", &x509.Certificate{
		Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	redis := testservers.StartRedis(t,
		"tls-cert-file "+ca.file("server.pem"), "tls-key-file "+ca.file("server-key.pem"),
		"tls-ca-cert-file "+ca.file("ca.pem"), "tls-auth-clients yes")
	good := "rediss://" + redis.Addr() + "?ca=" + ca.file("ca.pem") + "&cert=" + ca.file("client.pem") + "&key=" + ca.file("client-key.pem")
	t.Run("with a certificate", func(t *testing.T) { enqueue(t, open(t, good), "a") })
	t.Run("without a certificate", func(t *testing.T) {
		_ = fails(t.Context(), t, "rediss://"+redis.Addr()+"?ca="+ca.file("ca.pem"), "cannot connect: ")
	})
	t.Run("to a server without TLS", func(t *testing.T) {
		_ = fails(t.Context(), t, "rediss://"+testservers.StartRedis(t).Addr(), "no TLS connection", "use a URL without")
	})
	t.Run("with an unknown authority", func(t *testing.T) {
		_ = fails(t.Context(), t, "rediss://"+redis.Addr(), "certificate")
	})
	t.Run("without TLS", func(t *testing.T) {
		_ = fails(t.Context(), t, "redis://"+redis.Addr(), "if it requires TLS")
	})
}

// The error of a URL with the wrong scheme names the right one.
func TestOpenRedis_wrongKindOfServer(t *testing.T) {
	t.Parallel()
	nodes, failover := testservers.StartRedisCluster(t, 3), testservers.StartRedisFailover(t)
	t.Run("a node of a cluster", func(t *testing.T) {
		redirected := 0
		for _, node := range nodes {
			opened, err := Open(t.Context(), "redis://"+node.Addr(), nil)
			if err == nil {
				_ = opened.Close() // this node has the key; locking would fail
			} else if strings.Contains(err.Error(), "redis+cluster://") {
				redirected++
			}
		}
		if redirected != 2 {
			t.Errorf("got %d errors that name redis+cluster://, want 2, from the nodes without the key", redirected)
		}
	})
	t.Run("a sentinel", func(t *testing.T) {
		_ = fails(t.Context(), t, "redis://"+failover.SentinelAddrs()[0], "write redis+sentinel://")
	})
	t.Run("no sentinel", func(t *testing.T) {
		_ = fails(t.Context(), t, "redis+sentinel://"+failover.Servers[0].Addr()+"/m", "it is not a sentinel")
	})
}

// Opening a store adds nothing to the server's log of commands that it has refused to users.
func TestOpenRedis_sendsNoForbiddenCommand(t *testing.T) {
	t.Parallel()
	redis := testservers.StartRedis(t, "user ann on >pw ~team:* &team://* +@all -select")
	url := "redis://ann:pw@" + redis.Addr()
	open(t, url+"?prefix=team:")
	if log, err := redis.Do("ACL", "LOG").ToArray(); err != nil || len(log) != 0 {
		t.Errorf("got the ACL log %v, %v; want it empty", log, err)
	}
	_ = fails(t.Context(), t, url+"/1?prefix=team:", "select", "docs/stores.md")
}
