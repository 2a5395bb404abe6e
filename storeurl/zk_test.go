package storeurl

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

func TestParseZooKeeper(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url       string
		endpoints []string
		want      target
	}{
		{"zk://h", []string{"h:2181"}, target{zk: zkTarget{acl: "world"}}},
		{"zk://h/", []string{"h:2181"}, target{zk: zkTarget{acl: "world"}}},
		{"zk://h1,h2:7,[::1]/team/x/", []string{"h1:2181", "h2:7", "[::1]:2181"}, target{prefix: "/team/x", zk: zkTarget{acl: "world"}}},
		{"zk://h/a%20b?names=readwrite", []string{"h:2181"}, target{prefix: "/a b", zk: zkTarget{acl: "world", names: "readwrite"}}},
		{"zk://ann:pw@h", []string{"h:2181"}, target{user: "ann", password: "pw", zk: zkTarget{acl: "digest"}}},
		{"zk://ann@h?password_env=PW&acl=auth", []string{"h:2181"}, target{user: "ann", passwordEnv: "PW", zk: zkTarget{acl: "auth"}}},
		{"zk://ann:pw@h?acl=world", []string{"h:2181"}, target{user: "ann", password: "pw", zk: zkTarget{acl: "world"}}},
		{"zks://h?ca=a&cert=c&key=k&acl=auth", []string{"h:2181"}, target{ca: "a", cert: "c", key: "k", zk: zkTarget{acl: "auth"}}},
	} {
		got, err := parse(c.url)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		if !slices.Equal(got.endpoints, c.endpoints) {
			t.Errorf("%s: endpoints %q, want %q", c.url, got.endpoints, c.endpoints)
		}
		if got.prefix != c.want.prefix || got.user != c.want.user || got.password != c.want.password ||
			got.passwordEnv != c.want.passwordEnv || got.ca != c.want.ca || got.cert != c.want.cert || got.key != c.want.key ||
			got.zk != c.want.zk {
			t.Errorf("%s: got %+v, want %+v", c.url, got, c.want)
		}
	}
	for url, want := range map[string]string{
		"zk://":              "host 1: missing host name",
		"zk:h":               "must be followed by //",
		"zk://h?acl=none":    "acl: it must be",
		"zk://h?acl=digest":  "needs a user",
		"zk://h?acl=auth":    "needs a user or a client certificate",
		"zk://h?names=other": "names: it must be",
		"zk://h?ca=x":        "unknown parameter",
		"zk://ann@h":         "missing password",
		"zk://a%3Ab:pw@h":    "a colon",
		"zks://h?cert=c":     "belong together",
		"zk://h/" + strings.Repeat("x", store.MaxNameBytes): "longer than",
	} {
		if _, err := parse(url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", url, err, want)
		}
	}
}

func TestOpenZooKeeper(t *testing.T) {
	t.Parallel()
	server := testservers.StartZooKeeper(t)
	conn, _, err := zk.Connect([]string{server.Endpoint()}, time.Minute, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		url, dir, entry string
		acl             zk.ACL
	}{
		{"zk://" + server.Endpoint(), "/a", "-lock-", zk.WorldACL(zk.PermAll)[0]},
		{"zk://" + server.Endpoint() + "/team/x", "/team/x/a", "-lock-", zk.WorldACL(zk.PermAll)[0]},
		{"zk://" + server.Endpoint() + "/rw?names=readwrite", "/rw/a", "-__WRIT__", zk.WorldACL(zk.PermAll)[0]},
		{
			"zk://ann@" + server.Endpoint() + "/ann?password_file=" + password, "/ann/a", "-lock-",
			zk.DigestACL(zk.PermAll, "ann", "secret")[0],
		},
		{
			"zk://bob:secret@" + server.Endpoint() + "/bob?acl=auth", "/bob/a", "-lock-",
			zk.DigestACL(zk.PermAll, "bob", "secret")[0], // as the server resolves it
		},
	} {
		enqueue(t, open(t, c.url), "a")
		user, _, _ := strings.Cut(strings.TrimPrefix(c.dir, "/"), "/")
		if err := conn.AddAuth("digest", []byte(user+":secret")); err != nil {
			t.Fatal(err)
		}
		children, _, err := conn.Children(c.dir)
		if err != nil || len(children) != 1 || !strings.Contains(children[0], c.entry) {
			t.Errorf("%s: in %s there is %q, %v; want one entry with %q", c.url, c.dir, children, err, c.entry)
			continue
		}
		acl, _, err := conn.GetACL(c.dir + "/" + children[0])
		if err != nil || !slices.Equal(acl, []zk.ACL{c.acl}) {
			t.Errorf("%s: the entry has the ACL %+v, %v; want %+v", c.url, acl, err, c.acl)
		}
	}
}

func TestOpenZooKeeper_unreachable(t *testing.T) {
	t.Parallel()
	start := time.Now()
	_, err := Open(t.Context(), "zk://ann:secret@127.0.0.1:1,127.0.0.1:2/x", nil)
	if err == nil || !strings.Contains(err.Error(), "connection refused") || strings.Contains(err.Error(), "secret") ||
		errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a refused connection, and no password or deadline in the error", err)
	}
	t.Log(err)
	if took := time.Since(start); took > openTimeout+slack {
		t.Errorf("Open took %v", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, "zk://127.0.0.1:1", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded after the context has ended", err)
	}
}
