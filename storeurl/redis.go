package storeurl

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store/redisstore"
)

// Schemes of the Redis URLs.
const (
	schemeRedis         = "redis"
	schemeRedisTLS      = "rediss"
	schemeRedisUnix     = "redis+unix"
	schemeRedisSentinel = "redis+sentinel"
	schemeRedisCluster  = "redis+cluster"
)

// redisTarget has the fields of Redis URLs.
type redisTarget struct {
	master string // the master's name at the Sentinels
	db     int
	tls    bool

	replicas int
	timeout  time.Duration

	// The values of the parameters as given.
	dbText, tlsText, replicasText, timeoutText string
}

func redisSchemes() map[string]scheme {
	const port, sentinelPort = "6379", "26379"
	plain := func(t *target) map[string]*string {
		return joined(t.credentials(), map[string]*string{
			"prefix": &t.prefix, "wait_replicas": &t.redis.replicasText, "wait_timeout": &t.redis.timeoutText,
		})
	}
	secured := func(t *target) map[string]*string { return joined(plain(t), t.certificates()) }
	either := func(t *target) map[string]*string {
		return joined(secured(t), map[string]*string{"tls": &t.redis.tlsText})
	}
	unix := func(t *target) map[string]*string { return joined(plain(t), map[string]*string{"db": &t.redis.dbText}) }
	return map[string]scheme{
		schemeRedis:         {port: port, parameters: plain, set: (*target).setRedis, open: openRedis},
		schemeRedisTLS:      {port: port, tls: true, parameters: secured, set: (*target).setRedis, open: openRedis},
		schemeRedisUnix:     {parameters: unix, set: (*target).setRedisSocket, open: openRedis},
		schemeRedisSentinel: {port: sentinelPort, parameters: either, set: (*target).setSentinel, open: openRedis},
		schemeRedisCluster:  {port: port, parameters: either, set: (*target).setRedisCluster, open: openRedis},
	}
}

func (t *target) setRedis(authority, path string) error {
	if err := t.setAuthority(authority); err != nil {
		return err
	}
	if len(t.endpoints) > 1 {
		return errors.New("multiple hosts are not allowed in " + t.scheme + "://; use redis+cluster://, redis+sentinel:// or redlock://")
	}
	t.redis.dbText = strings.TrimPrefix(path, "/")
	return t.setRedisRest()
}

func (t *target) setRedisSocket(authority, path string) error {
	if err := t.setSocket(authority, path); err != nil {
		return err
	}
	return t.setRedisRest()
}

func (t *target) setSentinel(authority, path string) (err error) {
	if err := t.setAuthority(authority); err != nil {
		return err
	}
	master, db, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if t.redis.master, err = unescape(master); err != nil {
		return fmt.Errorf("master name: %w", err)
	}
	if master == "" {
		return errors.New("missing master name: write /MASTER after the hosts, the name of the master at the sentinels")
	}
	t.redis.dbText = db
	return t.setRedisRest()
}

func (t *target) setRedisCluster(authority, path string) error {
	if err := t.setAuthority(authority); err != nil {
		return err
	}
	if strings.TrimPrefix(path, "/") != "" {
		return errors.New("a path after the hosts of a cluster is not allowed: a cluster has only database 0")
	}
	return t.setRedisRest()
}

// setRedisRest checks and sets the parts that all Redis URLs have.
func (t *target) setRedisRest() error {
	r := &t.redis
	switch n := t.passwords(); {
	case n > 1:
		return errManyPasswords
	case t.user != "" && n == 0:
		return errors.New("missing password for the user: add password_file or password_env")
	}
	var err error
	if r.dbText != "" {
		if r.db, err = strconv.Atoi(r.dbText); err != nil || r.db < 0 {
			return errors.New("the database must be a number; to set a prefix of all keys, write ?prefix=PREFIX")
		}
	}
	if r.replicasText != "" {
		if r.replicas, err = strconv.Atoi(r.replicasText); err != nil || r.replicas < 1 {
			return errors.New("wait_replicas must be a positive number")
		}
	}
	if r.timeoutText != "" {
		if r.timeout, err = time.ParseDuration(r.timeoutText); err != nil || r.timeout < time.Millisecond {
			return errors.New("wait_timeout must be a duration of at least a millisecond, such as 500ms or 2s")
		}
		if r.replicas == 0 {
			return errors.New("wait_timeout needs wait_replicas")
		}
	}
	if r.tlsText != "" && r.tlsText != "1" && r.tlsText != "0" {
		return errors.New("tls must be 0 or 1")
	}
	r.tls = r.tlsText == "1" || schemes()[t.scheme].tls
	if !r.tls && t.ca+t.cert+t.key != "" {
		return errors.New("ca, cert and key need tls=1")
	}
	if err := t.checkPair(); err != nil {
		return err
	}
	return t.setPrefix(t.prefix)
}

// openRedis opens a store and checks that the server answers.
func openRedis(ctx context.Context, t target, logger *slog.Logger) (*Conn, error) {
	password, err := t.readPassword()
	if err != nil {
		return nil, err
	}
	var secure *tls.Config
	if t.redis.tls {
		if secure, err = t.tlsConfig(); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, noAnswer())
	defer cancel()
	cli, err := connectRedis(ctx, t.redisOptions(password, secure), t.prefix)
	if err != nil {
		if ctx.Err() == nil { // otherwise err is the timeout or the caller's context
			err = t.explainRedis(err)
		}
		return nil, fmt.Errorf("cannot connect: %w", err) // Open adds the URL
	}
	st, err := redisstore.New(cli, &redisstore.Options{
		Prefix: t.prefix, WaitReplicas: t.redis.replicas, WaitTimeout: t.redis.timeout, Logger: logger,
	})
	if err != nil {
		cli.Close()
		return nil, err
	}
	return &Conn{Store: st, close: sync.OnceValue(func() error {
		cli.Close()
		return nil
	})}, nil
}

func noAnswer() error { return fmt.Errorf("no answer within %v", openTimeout) }

// dialTimeout returns how long establishing a connection may take, TLS included.
func dialTimeout() time.Duration { return openTimeout * 4 / 5 }

// redisOptions returns the options of the client.
func (t target) redisOptions(password string, secure *tls.Config) rueidis.ClientOption {
	options := redisstore.ClientOptions(t.endpoints...)
	options.Username, options.Password, options.TLSConfig = t.user, password, secure
	options.SelectDB = t.redis.db
	options.Dialer.Timeout = dialTimeout()
	switch t.scheme {
	case schemeRedisUnix:
		path := strings.TrimPrefix(t.endpoints[0], "unix://")
		options.DialCtxFn = func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "unix", path)
		}
	case schemeRedisSentinel:
		options.ForceSingleClient = false
		options.Sentinel.MasterSet = t.redis.master
		options.Sentinel.TLSConfig = secure
		options.Sentinel.TopologyRefreshInterval = 5 * time.Second
	case schemeRedisCluster:
		options.ForceSingleClient = false
		options.ClusterOption.ShardsRefreshInterval = 15 * time.Second
	}
	return options
}

// connectRedis makes a client and checks that the server answers. Making a client cannot be
// canceled, so a client that is ready after ctx has ended is closed in the background.
func connectRedis(ctx context.Context, options rueidis.ClientOption, prefix string) (rueidis.Client, error) {
	type made struct {
		cli rueidis.Client
		err error
	}
	ready := make(chan made, 1)
	go func() {
		cli, err := rueidis.NewClient(options)
		if err == nil {
			// No lock has this key, and every user who may use locks with the prefix may read it. A
			// refusal is an answer too: the user may have rights for certain names only.
			err = cli.Do(ctx, cli.B().Exists().Key(prefix+"//stile").Build()).Error()
			if reply, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(reply.Error(), "NOPERM") {
				err = nil
			}
		}
		if err != nil && cli != nil {
			cli.Close()
		}
		ready <- made{cli, err}
	}()
	select {
	case m := <-ready:
		return m.cli, m.err
	case <-ctx.Done():
		go func() {
			if m := <-ready; m.err == nil {
				m.cli.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// explainRedis adds to the error of a failed connection what the user can do about it.
func (t target) explainRedis(err error) error {
	reply, ok := rueidis.IsRedisErr(err)
	if !ok {
		return t.explainSilence(err)
	}
	what := ""
	switch text := reply.Error(); {
	case strings.HasPrefix(text, "WRONGPASS"), strings.Contains(text, "invalid password"):
		what = fmt.Sprintf("it rejected user %q with this password", t.user)
	case strings.HasPrefix(text, "NOAUTH") && t.scheme == schemeRedisSentinel && t.passwords() > 0:
		what = "the sentinels require a password, which is not supported; allow access to them without one"
	case strings.HasPrefix(text, "NOAUTH"):
		what = "it requires authentication: give a password, and a user if the server has users"
	case strings.HasPrefix(text, "NOPERM"):
		what = "the user lacks rights that Stile needs; see docs/stores.md"
	case strings.Contains(text, "DB index"):
		what = fmt.Sprintf("it has no database %d", t.redis.db)
	case strings.HasPrefix(text, "MOVED"):
		what = "it is a node of a cluster: write redis+cluster://"
	case strings.Contains(text, "unknown command 'EXISTS'"):
		what = "it is not a Redis server with data; if it is a sentinel, write redis+sentinel://"
	case strings.Contains(text, "unknown command 'SENTINEL'"):
		what = "it is not a sentinel; to use the server itself, write redis://"
	default:
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// explainSilence adds to the error of a connection without a reply of Redis what the reason may be.
func (t target) explainSilence(err error) error {
	broken, ok := errors.AsType[*net.OpError](err)
	switch {
	case !t.redis.tls && (errors.Is(err, io.EOF) || ok && broken.Op == "read" && !broken.Timeout()):
		return fmt.Errorf("the server closed the connection; if it requires TLS, use a URL with TLS: %w", err)
	case t.redis.tls && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no TLS connection within %v; if the server does not use TLS, use a URL without: %w", dialTimeout(), err)
	}
	return err
}
