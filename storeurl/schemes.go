package storeurl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// A scheme describes the URLs that begin with one scheme.
type scheme struct {
	port       string                                        // default port of the hosts
	tls        bool                                          // whether connections always use TLS
	parameters func(t *target) map[string]*string            // the valid parameters, and where to store their values
	set        func(t *target, authority, path string) error // parses the part between // and ?
	open       func(ctx context.Context, t target, logger *slog.Logger) (*Conn, error)
	// needed returns how many of the hosts have to answer. It is nil for stores whose client fails
	// by itself when all hosts refuse connections; it is set for those whose client retries.
	needed func(hosts int) int
}

const schemeMem = "mem"

// isBare reports whether URLs with this scheme have nothing else.
func isBare(scheme string) bool { return scheme == schemeMem || scheme == schemeLocal }

// schemes returns all schemes by their names.
func schemes() map[string]scheme {
	all := map[string]scheme{schemeMem: {open: openMemory}, schemeLocal: {open: openLocal}}
	for _, family := range []map[string]scheme{etcdSchemes(), redisSchemes(), redlockSchemes(), zkSchemes()} {
		maps.Copy(all, family)
	}
	return all
}

// knownSchemes lists the schemes for error texts.
func knownSchemes() string {
	var names []string
	for name := range schemes() {
		if !isBare(name) {
			names = append(names, name+"://")
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func openMemory(context.Context, target, *slog.Logger) (*Conn, error) {
	return &Conn{Store: memstore.New(), close: func() error { return nil }}, nil
}

// one is for stores where any host can answer for the others; majority is for Redlock.
func one(int) int            { return 1 }
func majority(hosts int) int { return hosts/2 + 1 }

// credentials returns the parameters of all servers with users.
func (t *target) credentials() map[string]*string {
	return map[string]*string{"password_file": &t.passwordFile, "password_env": &t.passwordEnv}
}

// certificates returns the parameters of all TLS connections.
func (t *target) certificates() map[string]*string {
	return map[string]*string{"ca": &t.ca, "cert": &t.cert, "key": &t.key}
}

// joined merges sets of parameters.
func joined(all ...map[string]*string) map[string]*string {
	one := make(map[string]*string)
	for _, some := range all {
		maps.Copy(one, some)
	}
	return one
}

// checkPair checks that the client's certificate and its key are given together.
func (t *target) checkPair() error {
	if (t.cert == "") != (t.key == "") {
		return errors.New("cert and key belong together: give both or none")
	}
	return nil
}

// warnings returns a warning for each secret file that other users of the machine can read.
func (t *target) warnings() []string {
	if runtime.GOOS == "windows" { // a file's mode does not show that there
		return nil
	}
	var all []string
	for _, secret := range []struct{ parameter, path string }{{"password_file", t.passwordFile}, {"key", t.key}} {
		const others = 0o007
		info, err := os.Stat(secret.path)
		if err == nil && info.Mode().Perm()&others != 0 {
			all = append(all, fmt.Sprintf("%s %s is accessible to other users; chmod o= it", secret.parameter, secret.path))
		}
	}
	return all
}

// setPrefix sets the prefix of all keys.
func (t *target) setPrefix(prefix string) error {
	if store.CheckPrefix(prefix) != nil {
		return fmt.Errorf("the prefix is longer than %d bytes, not UTF-8, or contains a control character", store.MaxNameBytes)
	}
	t.prefix = prefix
	return nil
}

// checkCredentials checks that the user and exactly one password are given, or neither.
func (t *target) checkCredentials() error {
	switch n := t.passwords(); {
	case n > 1:
		return errManyPasswords
	case t.user != "" && n == 0:
		return errors.New("missing password for the user: add password_file or password_env")
	case t.user == "" && n > 0:
		return errors.New("missing user for the password: write USER@ before the hosts")
	}
	return nil
}

var errManyPasswords = errors.New("more than one password: give it in the URL, with password_file or with password_env")

// passwords returns in how many ways the password is given.
func (t *target) passwords() int {
	given := slices.DeleteFunc([]string{t.password, t.passwordFile, t.passwordEnv}, func(s string) bool { return s == "" })
	return len(given)
}
