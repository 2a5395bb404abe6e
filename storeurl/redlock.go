package storeurl

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redlockstore"
)

// redlockSchemes returns the schemes of sets of independent Redis servers.
func redlockSchemes() map[string]scheme {
	const port = "6379"
	plain := func(t *target) map[string]*string {
		return joined(t.credentials(), map[string]*string{"prefix": &t.prefix})
	}
	secured := func(t *target) map[string]*string { return joined(plain(t), t.certificates()) }
	return map[string]scheme{
		"redlock":  {port: port, parameters: plain, set: (*target).setMasters, open: openRedlock, needed: majority},
		"redlocks": {port: port, tls: true, parameters: secured, set: (*target).setMasters, open: openRedlock, needed: majority},
	}
}

// setMasters parses the hosts and the number of the database.
func (t *target) setMasters(authority, path string) error {
	if err := t.setAuthority(authority); err != nil {
		return err
	}
	if err := redlockstore.CheckMasters(t.endpoints); err != nil {
		return err
	}
	t.redis.dbText = strings.TrimPrefix(path, "/")
	return t.setRedisRest()
}

// openRedlock opens a store and checks that a majority of the masters answers.
func openRedlock(ctx context.Context, t target, logger *slog.Logger) (*Conn, error) {
	password, err := t.readPassword()
	if err != nil {
		return nil, err
	}
	secure, err := t.tls()
	if err != nil {
		return nil, err
	}
	masters := make([]rueidis.ClientOption, 0, len(t.endpoints))
	for _, endpoint := range t.endpoints {
		masters = append(masters, rueidis.ClientOption{
			InitAddress: []string{endpoint},
			Username:    t.user, Password: password, SelectDB: t.redis.db, TLSConfig: secure,
		})
	}
	st, err := redlockstore.New(masters, &redlockstore.Options{Prefix: t.prefix, Logger: logger})
	if err != nil {
		return nil, err
	}
	if err := checkMajority(ctx, st); err != nil {
		_ = st.Close()
		return nil, err
	}
	return &Conn{Store: st, close: st.Close}, nil
}

// checkMajority checks that a majority of the masters answers.
func checkMajority(ctx context.Context, st *redlockstore.Store) error {
	timeout := noAnswer()
	within, cancel := context.WithTimeoutCause(ctx, openTimeout, timeout)
	defer cancel()
	session, err := st.Open(within, store.SessionOptions{TTL: redlockstore.MinTTL})
	switch {
	case err == nil:
		return session.Close(ctx) // the session has no keys at any master
	case ctx.Err() == nil && within.Err() != nil:
		return fmt.Errorf("%w: %v", timeout, err) //nolint:errorlint // the deadline in err is ours, not the caller's
	}
	return err
}
