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

// zkTarget is what only URLs of ZooKeeper have.
type zkTarget struct {
	acl   string // "digest", "auth" or "world"
	names string // "mutex" or "readwrite"; empty means the first
}

// zkSchemes are the URLs of ZooKeeper ensembles.
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
		return errors.New("the user name contains a colon, which ends it for ZooKeeper")
	}
	root, err := unescape(strings.TrimSuffix(path, "/"))
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	if err := t.setPrefix(root); err != nil {
		return err
	}
	if n := t.zk.names; n != "" && n != "mutex" && n != "readwrite" {
		return errors.New("names is neither mutex nor readwrite")
	}
	return t.setACL()
}

// setACL says who may use what is made: everybody, unless it is known who we are.
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
			return errors.New("acl=auth needs a user or a client certificate, for the servers to know who we are")
		}
	default:
		return errors.New("acl is neither digest nor auth nor world")
	}
	return nil
}

// openZooKeeper makes a store and makes sure that the ensemble answers.
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
	// Who may not read there may yet be allowed to read further down: to be refused is an answer too.
	if err := st.Ping(ctx); err != nil && !errors.Is(err, zk.ErrNoAuth) {
		_ = st.Close()
		return nil, err
	}
	return &Conn{Store: st, close: st.Close}, nil
}
