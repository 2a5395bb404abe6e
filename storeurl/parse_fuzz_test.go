package storeurl

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stilelock/stile/store"
)

// A URL that parses has hosts and a valid prefix, and its redacted form parses to the same target.
// A URL that does not parse gets a printable error. Neither the error nor the redacted form
// contains anything that might be a password.
func FuzzParse_everyScheme(f *testing.F) {
	all := slices.Sorted(maps.Keys(schemes()))
	for _, url := range []string{
		"mem://", "etcd://h1,h2:1/p?password_env=X", "etcd+unix:///run/s?prefix=p", "etcds://ann@h?password_file=%2Fx&cert=c&key=k",
		"redis://:pw@h/3?prefix=p", "redis://h1,h2", "redis://h/18446744073709551616", "rediss://ann:pw@h?ca=a", "redis+unix:///run/s?db=3",
		"redis+sentinel://h/master/0?tls=1&ca=a", "redis+sentinel://h/%zz", "redis+cluster://h1,h2?wait_replicas=1&wait_timeout=500ms",
		"redlock://h1,h2:1,h3/1?prefix=p", "redlock://h,,h", "redlocks://ann:pw@h1,h2,h3", "zk://ann:pw@[::1]/root/?acl=auth&names=readwrite",
		"zks://h?acl=digest", "zks://@", "zk://?", "zk://:@0", "redis://ann:@h",
	} {
		scheme, rest, _ := strings.Cut(url, "://")
		f.Add(uint(slices.Index(all, scheme)), rest)
	}
	f.Fuzz(func(t *testing.T, scheme uint, rest string) {
		name := all[scheme%uint(len(all))]
		raw := name + "://" + rest
		got, err := parse(raw)
		if err != nil {
			if text := err.Error(); text == "" || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q: unprintable error %q", raw, text)
			}
		} else {
			checkRedacted(t, raw, got)
		}

		withSecret := name + "://ann:" + secret + rest + secret + "@h/p"
		if shown := Redact(withSecret); strings.Contains(shown, secret) {
			t.Errorf("Redact(%q) = %q, which contains the password", withSecret, shown)
		}
		if _, err := parse(withSecret); err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("parse(%q) = %v, which contains the password", withSecret, err)
		}
	})
}

func checkRedacted(t *testing.T, raw string, got target) {
	t.Helper()
	if len(got.endpoints) == 0 || store.CheckPrefix(got.prefix) != nil {
		t.Errorf("%q: got hosts %q and prefix %q", raw, got.endpoints, got.prefix)
	}
	shown := Redact(raw)
	again, err := parse(shown)
	if got.password != "" {
		got.password = "***"
	}
	if err != nil || !reflect.DeepEqual(got, again) {
		t.Errorf("%q: Redact returns %q, which parses differently: %+v, %+v, %v", raw, shown, got, again, err)
	}
}
