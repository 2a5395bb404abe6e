package storeurl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store/zkstore"
)

// zkTarget has the fields of ZooKeeper URLs.
type zkTarget struct {
	acl   string // "digest", "auth" or "world"
	names string // "mutex" or "readwrite"; empty means "mutex"
}

// zkSchemes returns the schemes of ZooKeeper ensembles.
func zkSchemes() map[string]scheme {
	const port = "2181"
	plain := func(t *target) map[string]*string {
		return joined(t.credentials(), map[string]*string{"acl": &t.zk.acl, "names": &t.zk.names})
	}
	secured := func(t *target) map[string]*string { return joined(plain(t), t.certificates()) }
	return map[string]scheme{
		"zk":  {port: port, parameters: plain, set: (*target).setZooKeeper, open: openZooKeeper, needed: one},
		"zks": {port: port, tls: true, parameters: secured, set: (*target).setZooKeeper, open: openZooKeeper, needed: one},
	}
}

func (t *target) setZooKeeper(authority, path string) error {
	if err := t.setAuthority(authority); err != nil {
		return err
	}
	if err := t.checkCredentials(); err != nil {
		return err
	}
	if err := t.checkPair(); err != nil {
		return err
	}
	if strings.Contains(t.user, ":") {
		return errors.New("invalid user name: ZooKeeper's digest scheme does not allow a colon in it")
	}
	root, err := unescape(strings.TrimSuffix(path, "/"))
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	if err := t.setPrefix(root); err != nil {
		return err
	}
	if n := t.zk.names; n != "" && n != "mutex" && n != "readwrite" {
		return errors.New("invalid parameter names: it must be mutex or readwrite")
	}
	return t.setACL()
}

// setACL selects who may access the nodes that Stile creates. The default is the user or, if there
// is none, everybody.
func (t *target) setACL() error {
	switch t.zk.acl {
	case "world":
	case "":
		t.zk.acl = "world"
		if t.user != "" {
			t.zk.acl = "digest"
		}
	case "digest":
		if t.user == "" {
			return errors.New("acl=digest needs a user: write USER@ before the hosts")
		}
	case "auth":
		if t.user == "" && t.cert == "" {
			return errors.New("acl=auth needs a user or a client certificate")
		}
	default:
		return errors.New("invalid parameter acl: it must be digest, auth or world")
	}
	return nil
}

// openZooKeeper opens a store and checks that the ensemble answers.
func openZooKeeper(ctx context.Context, t target, logger *slog.Logger) (*Conn, error) {
	password, err := t.readPassword()
	if err != nil {
		return nil, err
	}
	secure, err := t.tls()
	if err != nil {
		return nil, err
	}
	options := &zkstore.Options{Root: t.prefix, ReadWrite: t.zk.names == "readwrite", TLS: secure, Logger: logger}
	if t.user != "" {
		options.Auth = []zkstore.Auth{{Scheme: "digest", Credentials: t.user + ":" + password}}
	}
	switch t.zk.acl {
	case "digest":
		options.ACL = zk.DigestACL(zk.PermAll, t.user, password)
	case "auth":
		options.ACL = zk.AuthACL(zk.PermAll)
	}
	st, err := zkstore.New(t.endpoints, options)
	if err != nil {
		return nil, err
	}
	// A refusal is an answer too: a user without the right to read the root may have it further
	// down.
	if err := st.Ping(ctx); err != nil && !errors.Is(err, zk.ErrNoAuth) {
		_ = st.Close()
		return nil, err
	}
	return &Conn{Store: st, close: st.Close}, nil
}
