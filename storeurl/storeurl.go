// Package storeurl opens the store that a URL names, for programs that are told by configuration where their locks
// are kept. A program that knows its store can do without: it makes the client itself and passes it to the store's
// package, and does not link the clients of the others.
//
// # The URLs
//
//	etcd://[USER[:PASSWORD]@]HOST[:PORT],…[/PREFIX][?PARAMETERS]     an etcd cluster
//	etcds://…                                                        the same over TLS
//	etcd+unix:///PATH[?prefix=PREFIX]                                an etcd that listens on a unix socket
//	mem:                                                             a new store in the memory of this process
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
	"github.com/stilelock/stile/store/memstore"
)

// ErrScheme means that the URL does not begin with a scheme that [Open] knows. A program that knows others can add them
// to what the error says.
var ErrScheme = errors.New("known are mem:, etcd://, etcds:// and etcd+unix://")

// Options configures [Open]. The zero value, and a nil *Options, are ready for use.
type Options struct {
	// Logger is passed to the store. Nil discards what it says.
	Logger *slog.Logger

	_ struct{}
}

// Opened is a store together with the connections made for it. It is safe for concurrent use.
type Opened struct {
	// Store is the store.
	Store store.Store

	close func() error
}

// Close closes the connections. Close the clients that use the store first: with their connections gone they can
// release nothing, and what they hold is freed only when its TTL has passed. Close after Close does nothing and
// returns what the first one did.
func (o *Opened) Close() error { return o.close() }

// Open opens the store that url names.
//
// On success the store has answered a request just now, to this user. Open waits for that for
// at most five seconds, and no longer than ctx allows; ctx bounds only the call. On failure nothing is left open. If
// ctx ended first the error matches ctx.Err(); if the scheme of the URL is unknown, or missing, [ErrScheme].
func Open(ctx context.Context, url string, opts *Options) (*Opened, error) {
	if opts == nil {
		opts = &Options{}
	}
	t, err := parse(url)
	if err != nil {
		return nil, fmt.Errorf("store URL %s: %w", hide(url), err)
	}
	var opened *Opened
	if t.scheme == schemeMem {
		opened = &Opened{Store: memstore.New(), close: func() error { return nil }}
	} else {
		opened, err = openEtcd(ctx, t, opts.Logger)
	}
	if err != nil {
		return nil, fmt.Errorf("store URL %s: %w", t.redacted, err)
	}
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
