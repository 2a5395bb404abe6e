// Package storeurl opens the store that a URL names, for programs that are told by configuration where their locks
// are kept. A program that knows its store can do without: it makes the client itself and passes it to the store's
// package, and does not link the clients of the others.
//
// # The URLs
//
//	etcd://[USER[:PASSWORD]@]HOST[:PORT],…[/PREFIX][?PARAMETERS]     an etcd cluster
//	etcds://…                                                        the same over TLS
//	etcd+unix:///PATH[?prefix=PREFIX]                                an etcd that listens on a unix socket
//	redis://[[USER]:PASSWORD@]HOST[:PORT][/DB][?PARAMETERS]          a Redis server
//	rediss://…                                                       the same over TLS
//	redis+unix:///PATH[?PARAMETERS]                                  a Redis that listens on a unix socket
//	redis+sentinel://…HOST[:PORT],…/MASTER[/DB][?PARAMETERS]         the master that Redis Sentinels know by this name
//	redis+cluster://…HOST[:PORT],…[?PARAMETERS]                      a Redis Cluster, by some of its nodes
//	redlock://[[USER]:PASSWORD@]HOST[:PORT],…[/DB][?PARAMETERS]      Redis servers that know nothing of each other: three,
//	                                                                 five or another odd number
//	redlocks://…                                                     the same over TLS
//	zk://[USER[:PASSWORD]@]HOST[:PORT],…[/ROOT][?PARAMETERS]         a ZooKeeper ensemble
//	zks://…                                                          the same over TLS
//	mem:                                                             a new store in the memory of this process
//
// # etcd
//
// The hosts are the members of one cluster, in any order; the port is 2379 unless given; IPv6 addresses stand in
// brackets. The keys of all locks begin with PREFIX and a slash, or with the lock's name if there is no prefix:
// etcd://h/team keeps the lock "a" under "team/a/", and etcd://h//team under "/team/a/".
//
// The parameters of etcd and etcds, joined by &:
//
//	password_file=PATH   the user's password is in this file; a line break at its end is not part of it
//	password_env=NAME    the user's password is in this environment variable
//
// and of etcds only:
//
//	ca=PATH              trust servers whose certificates come from the authorities in this PEM file; without it,
//	                     from those that the system trusts
//	cert=PATH, key=PATH  the client's own certificate and key, PEM; read again for every connection
//
// # Redis
//
// The port is 6379 unless given, that of a Sentinel 26379; DB is a number, 0 unless given. A lock's key is its name, which
// excludes other clients that lock the same name: prefix=PREFIX sets one before it. The parameters of etcd are known too,
// and these:
//
//	tls=1                with redis+sentinel and redis+cluster: secured connections, and the parameters of etcds
//	db=N                 with redis+unix: the number of the database
//	wait_replicas=N      a hold, and each renewal, counts when N replicas have it
//	wait_timeout=TIME    how long to wait for them: 1s unless given
//
// USER and PASSWORD are for the servers; Sentinels are asked without.
//
// # Redlock
//
// The hosts are the servers, in any order: all clients of a lock must name the same ones. Port, DB, USER, PASSWORD, the
// parameters of etcd or, for redlocks, of etcds, and prefix=PREFIX are as for redis, and the same for all of them.
//
// # ZooKeeper
//
// The hosts are the servers of one ensemble, in any order; the port is 2181 unless given. Everything is below the path
// /ROOT: zk://h/team keeps the lock "a" at /team/a. USER and PASSWORD make the scheme digest. The parameters of etcd or,
// for zks, of etcds are known, and these:
//
//	acl=digest           only USER may use what is made; this is so if there is a user
//	acl=auth             only who we are, as the servers know us: by USER, or by the client's certificate
//	acl=world            everybody may; this is so if there is no user
//	names=readwrite      name entries as Curator's InterProcessReadWriteLock does, if it is used on the same paths; else
//	                     they are named as by its InterProcessMutex (names=mutex)
//
// # All
//
// Whatever has a meaning in URLs is written with a percent sign and two hexadecimal digits where it is meant
// literally: / as %2F, ? as %3F, @ as %40, % as %25 and so on.
//
// # Secrets
//
// A password in a URL is seen by whoever sees the command line or the configuration: password_file and password_env
// are there for that. No password comes up in an error of this package or in what it logs, not even if the URL is
// wrong and nobody can tell which part of it is the password. Before you show a URL yourself, pass it through
// [Redact].
package storeurl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/stilelock/stile/store"
)

// ErrUnknownScheme means that the URL does not begin with a scheme that [Open] knows, or with something like one. A program
// that knows others can add them to what the error says.
var ErrUnknownScheme = errors.New("known are mem: and " + knownSchemes())

// Options configures [Open]. The zero value, and a nil *Options, are ready for use.
type Options struct {
	// Logger is passed to the store. Nil discards what it says.
	Logger *slog.Logger

	_ struct{}
}

// A Conn is a store together with the connections made for it. It is safe for concurrent use.
type Conn struct {
	// Store is the store.
	Store store.Store
	// Warnings are what whoever has configured the URL should know, a line for each: that other users can read the file
	// with the password, for example. Usually there are none. Open does not log them.
	Warnings []string

	close func() error
}

// Close closes the connections. Close the clients that use the store first: with their connections gone they can
// release nothing, and what they hold is freed only when its TTL has passed. Close after Close does nothing and
// returns what the first one did.
func (c *Conn) Close() error { return c.close() }

// Open opens the store that url names.
//
// On success the store has answered a request just now, to this user. Open waits for that for at most five seconds, and
// no longer than ctx allows; ctx bounds only the call. It does not wait for servers that refuse connections: if nothing
// listens at any of the hosts, or a name does not exist, Open fails at once, even if a server is about to start. On
// failure nothing is left open.
//
// If ctx ended first the error matches ctx.Err(). If the scheme of the URL is unknown, or missing, the error matches
// [ErrUnknownScheme], or suggests the URL that is meant.
func Open(ctx context.Context, url string, opts *Options) (*Conn, error) {
	if opts == nil {
		opts = &Options{}
	}
	t, err := parse(url)
	if err != nil {
		return nil, explainParse(url, err)
	}
	within, cancel := whileReachable(ctx, t)
	defer cancel()
	opened, err := schemes()[t.scheme].open(within, t, opts.Logger)
	if err != nil {
		if refused, ok := errors.AsType[*refusals](context.Cause(within)); ok {
			err = refused
		}
		return nil, fmt.Errorf("store URL %s: %w", t.redacted, err)
	}
	opened.Warnings = t.warnings()
	return opened, nil
}

// Redact returns url as it can be shown to people: with *** instead of the password. Of a URL that [Open] does not
// understand only the scheme remains, because nobody can tell where in it the password is.
func Redact(url string) string {
	t, err := parse(url)
	if err != nil {
		return hide(url)
	}
	return t.redacted
}
