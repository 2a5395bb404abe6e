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

// A scheme is what there is to know of the URLs that begin with one.
type scheme struct {
	port       string                                        // of hosts that are given without one
	tls        bool                                          // whether connections are secured
	parameters func(t *target) map[string]*string            // where the values of the parameters go that it knows
	set        func(t *target, authority, path string) error // reads what stands between the // and the ?
	open       func(ctx context.Context, t target, logger *slog.Logger) (*Conn, error)
	// needed is how many of that many hosts have to answer, for stores whose client goes on trying even if all of them
	// refuse connections; nil for others.
	needed func(hosts int) int
}

const schemeMem = "mem"

// schemes returns all schemes by their names.
func schemes() map[string]scheme {
	all := map[string]scheme{schemeMem: {open: openMemory}}
	for _, family := range []map[string]scheme{etcdSchemes(), redisSchemes(), redlockSchemes(), zkSchemes()} {
		maps.Copy(all, family)
	}
	return all
}

// knownSchemes lists the schemes for people.
func knownSchemes() string {
	var names []string
	for name := range schemes() {
		if name != schemeMem {
			names = append(names, name+"://")
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func openMemory(context.Context, target, *slog.Logger) (*Conn, error) {
	return &Conn{Store: memstore.New(), close: func() error { return nil }}, nil
}

// one is for stores where each host can stand for the others, and majority for those that need most of them.
func one(int) int            { return 1 }
func majority(hosts int) int { return hosts/2 + 1 }

// credentials are the parameters of all servers that know users.
func (t *target) credentials() map[string]*string {
	return map[string]*string{"password_file": &t.passwordFile, "password_env": &t.passwordEnv}
}

// certificates are the parameters of all secured connections.
func (t *target) certificates() map[string]*string {
	return map[string]*string{"ca": &t.ca, "cert": &t.cert, "key": &t.key}
}

// joined returns parameters of several kinds together.
func joined(all ...map[string]*string) map[string]*string {
	one := make(map[string]*string)
	for _, some := range all {
		maps.Copy(one, some)
	}
	return one
}

// checkPair makes sure that a client's certificate has its key.
func (t *target) checkPair() error {
	if (t.cert == "") != (t.key == "") {
		return errors.New("cert and key belong together: give both or none")
	}
	return nil
}

// warnings says which secrets of ours other users of the machine can read.
func (t *target) warnings() []string {
	if runtime.GOOS == "windows" { // where a file's mode says nothing about that
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

// setPrefix sets what all keys begin with.
func (t *target) setPrefix(prefix string) error {
	if store.CheckPrefix(prefix) != nil {
		return fmt.Errorf("the prefix is longer than %d bytes, not UTF-8, or contains a control character", store.MaxNameBytes)
	}
	t.prefix = prefix
	return nil
}

// checkCredentials makes sure that it is clear who logs in, with what.
func (t *target) checkCredentials() error {
	switch n := t.passwords(); {
	case n > 1:
		return errManyPasswords
	case t.user != "" && n == 0:
		return errors.New("there is a user without a password: give it by password_file or password_env")
	case t.user == "" && n > 0:
		return errors.New("there is a password without a user: write USER@ before the hosts")
	}
	return nil
}

var errManyPasswords = errors.New("there is more than one password: give it in the URL, by password_file or by password_env")

// passwords returns how many ways to find the password are given.
func (t *target) passwords() int {
	given := slices.DeleteFunc([]string{t.password, t.passwordFile, t.passwordEnv}, func(s string) bool { return s == "" })
	return len(given)
}
