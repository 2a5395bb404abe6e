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

// redlockSchemes are the URLs of Redis servers that know nothing of each other.
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

// setMasters reads the hosts and the number of the database.
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

// openRedlock begins to connect to the masters and makes sure that a majority answers.
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
	if err := answers(ctx, st); err != nil {
		_ = st.Close()
		return nil, err
	}
	return &Conn{Store: st, close: st.Close}, nil
}

// answers makes sure that a majority of the masters answers.
func answers(ctx context.Context, st *redlockstore.Store) error {
	late := noAnswer()
	within, cancel := context.WithTimeoutCause(ctx, patience, late)
	defer cancel()
	session, err := st.Open(within, store.SessionOptions{TTL: redlockstore.MinTTL})
	switch {
	case err == nil:
		return session.Close(ctx) // which has nothing at any master
	case ctx.Err() == nil && within.Err() != nil:
		return fmt.Errorf("%w: %v", late, err) //nolint:errorlint // the deadline in err is ours, not the caller's
	}
	return err
}
