// Package storeurl opens the store that a URL names, for programs whose configuration says where
// their locks are kept. A program that always uses the same store can instead
// make the client itself and pass it to the store's package; it then does not link the clients of
// the other stores.
//
// # The URLs
//
//	etcd://[USER[:PASSWORD]@]HOST[:PORT],…[/PREFIX][?PARAMETERS]  etcd cluster
//	etcds://…                                                     the same over TLS
//	etcd+unix:///PATH[?prefix=PREFIX]                             etcd on a unix socket
//	redis://[[USER]:PASSWORD@]HOST[:PORT][/DB][?PARAMETERS]       Redis server
//	rediss://…                                                    the same over TLS
//	redis+unix:///PATH[?PARAMETERS]                               Redis on a unix socket
//	redis+sentinel://…HOST[:PORT],…/MASTER[/DB][?PARAMETERS]      master, found by Sentinels
//	redis+cluster://…HOST[:PORT],…[?PARAMETERS]                   Redis Cluster, by any nodes
//	redlock://[[USER]:PASSWORD@]HOST[:PORT],…[/DB][?PARAMETERS]   independent Redis servers
//	redlocks://…                                                  the same over TLS
//	zk://[USER[:PASSWORD]@]HOST[:PORT],…[/ROOT][?PARAMETERS]      ZooKeeper ensemble
//	zks://…                                                       the same over TLS
//	local:                                                        this user's own server
//	mem:                                                          new store in this process
//
// # etcd
//
// The hosts are the members of one cluster, in any order. The default port is 2379. IPv6 addresses
// stand in brackets. The keys of all locks begin with PREFIX and a slash, or with the lock's name
// if there is no prefix: etcd://h/team keeps the lock "a" under "team/a/", and etcd://h//team under
// "/team/a/".
//
// The parameters of etcd and etcds, joined by &:
//
//	password_file=PATH   read the user's password from this file; a line break at its end is dropped
//	password_env=NAME    read the user's password from this environment variable
//
// and of etcds only:
//
//	ca=PATH              trust servers with certificates of the authorities in this PEM file;
//	                     the default is the authorities that the system trusts
//	cert=PATH, key=PATH  the client's certificate and key, PEM; read again for every connection
//
// # Redis
//
// The default port is 6379, and 26379 for a Sentinel. DB is a number; the default is 0. A lock's
// key is its name, so that a Stile lock and any other client that locks the same key exclude each
// other; prefix=PREFIX puts a prefix before it. The parameters of etcd, and for rediss those of etcds,
// are valid here too, and these:
//
//	tls=1                with redis+sentinel and redis+cluster: use TLS, and allow the
//	                     parameters of etcds
//	db=N                 with redis+unix: the number of the database
//	wait_replicas=N      a new entry, and each renewal, counts only when N replicas have it; a
//	                     hand-over to a waiter does not wait for them
//	wait_timeout=TIME    how long to wait for the replicas; the default is 1s
//
// USER and PASSWORD are for the Redis servers. Connections to Sentinels are not authenticated.
//
// # Redlock
//
// The hosts are the servers: three, five or another odd number, in any order. All clients of a lock
// must name the same servers. Port, DB, USER, PASSWORD and prefix=PREFIX are as for redis, and the
// same for all servers. The parameters of etcd, and for redlocks those of etcds, are valid here
// too.
//
// # ZooKeeper
//
// The hosts are the servers of one ensemble, in any order. The default port is 2181. All nodes are
// below the path /ROOT: zk://h/team keeps the lock "a" at /team/a. USER and PASSWORD are used with
// the digest scheme. The parameters of etcd, and for zks those of etcds, are valid here too, and
// these:
//
//	acl=digest           only USER may access the nodes that Stile creates; the default if
//	                     there is a user
//	acl=auth             only the identity that the servers have authenticated may: USER, or
//	                     the client's certificate
//	acl=world            everybody may; the default if there is no user
//	names=readwrite      name entries as Curator's InterProcessReadWriteLock does, for paths
//	                     where it is used too
//	names=mutex          name entries as Curator's InterProcessMutex does; the default
//
// # The local server
//
// local: is the server that the stile command starts in the background for its user, and STILE_URL is
// local: in a command under stile run on that server. Only the command starts it: if it does not run,
// Open fails. From then on it runs as long as the store is open. If it ends all the same, as when the
// system ends it together with the login that started it, nothing can be locked until a stile command
// starts it again; stile run does so by itself. There is none on Windows.
//
// Open refuses a server whose directory, ~/.local/state/stile/local, could be one of another user:
// see "local:" in docs/cli.md.
//
// # Escaping
//
// A character with a meaning in URLs is written as a percent sign and two hexadecimal digits where
// it is meant literally: / as %2F, ? as %3F, @ as %40, % as %25 and so on.
//
// # Secrets
//
// A password in a URL is visible to everybody who can see the command line or the configuration;
// use password_file or password_env instead. No error and no log message of this package contains a
// password, not even if the URL is malformed and it is unclear which part of it is the password.
// Pass a URL through [Redact] before you show it yourself.
package storeurl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/stilelock/stile/store"
)

// ErrUnknownScheme means that the URL has no scheme, or one that [Open] does not know. Its text
// lists the known schemes. A program with schemes of its own can add them to that list.
var ErrUnknownScheme = errors.New("known are local:, mem: and " + knownSchemes())

// Options configures [Open]. The zero value, and a nil *Options, select the defaults.
type Options struct {
	// Logger is passed to the store. If it is nil, the store does not log.
	Logger *slog.Logger
	// Tethered declares that the work under the locks is done by this process itself, not by processes
	// that it starts. If this process crashes or is killed, its locks are then free at once, and not
	// when the TTL has passed. That is possible with etcd+unix and a server of Stile's (stile serve,
	// or the one behind local:) on Linux, which must run as the same user, in the same pid namespace,
	// and without users of etcd. With everything else Tethered has no effect, and the TTL counts.
	//
	// A write that this process has sent before its death may arrive at its destination after the next
	// holder was admitted. Fencing tokens let the destination refuse it.
	Tethered bool

	_ struct{}
}

// A Conn is a store together with the connections made for it. It is safe for concurrent use.
type Conn struct {
	// Store is the store.
	Store store.Store
	// Warnings lists risks in the configuration, one line each, for the person who wrote the URL;
	// for example, that other users can read the password file. Usually it is empty. Open does not
	// log the warnings.
	Warnings []string

	close func() error
}

// Close closes the connections. Close the clients that use the store first: without connections
// they cannot release anything, and their holds end only when the TTL has passed. Closing again
// does nothing and returns the result of the first Close.
func (c *Conn) Close() error { return c.close() }

// Open opens the store that url names.
//
// When Open succeeds, the store has just answered a request, with these credentials. Open waits for
// the answer for at most five seconds and no longer than ctx allows; ctx bounds only the call. Open
// does not wait for servers that refuse connections: if so many hosts refuse them, or do not exist, that
// the store cannot answer, it fails at once, even if a server is about to start. When Open fails, no
// connection stays open.
//
// If ctx ended first, the error matches ctx.Err(). If the URL has no scheme or an unknown one, the
// error suggests the intended URL, if it can be guessed, and otherwise matches [ErrUnknownScheme].
func Open(ctx context.Context, url string, opts *Options) (*Conn, error) {
	if opts == nil {
		opts = &Options{}
	}
	t, err := parse(url)
	if err != nil {
		return nil, explainParse(url, err)
	}
	t.tethered = opts.Tethered
	within, cancel := whileReachable(ctx, t)
	defer cancel()
	opened, err := schemes()[t.scheme].open(within, t, opts.Logger)
	if err != nil {
		if refused, ok := errors.AsType[*refusals](context.Cause(within)); ok {
			err = refused
		}
		if t.scheme == schemeLocal {
			return nil, err
		}
		return nil, fmt.Errorf("store URL %s: %w", t.redacted, err)
	}
	opened.Warnings = t.warnings()
	return opened, nil
}

// Redact returns url in a form that can be shown: with *** instead of the password. If [Open]
// cannot parse the URL, only the scheme remains, because it is unclear which part is the password.
func Redact(url string) string {
	t, err := parse(url)
	if err != nil {
		return hide(url)
	}
	return t.redacted
}
