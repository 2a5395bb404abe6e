package storeurl

import (
	"errors"
	"fmt"
	"strings"
)

// schemeError reports an invalid beginning of a URL. It may wrap [ErrUnknownScheme], which lists
// the schemes.
type schemeError struct {
	wrong string
	err   error
}

func (e *schemeError) Error() string {
	if e.err == nil {
		return e.wrong
	}
	return e.wrong + "; " + e.err.Error()
}

func (e *schemeError) Unwrap() error { return e.err }

// explainParse returns the error for a URL that parse refused with err. It suggests a correct URL
// if one can be guessed.
func explainParse(raw string, err error) error {
	if raw == "" {
		return fmt.Errorf("the store URL is empty; %w", ErrUnknownScheme)
	}
	if bad, ok := errors.AsType[*schemeError](err); ok {
		if meant := suggest(raw); meant != "" { // then raw contains no password
			return fmt.Errorf("store URL %q: %s; did you mean %s?", raw, bad.wrong, meant)
		}
	}
	return fmt.Errorf("store URL %s: %w", hide(raw), err)
}

// foreignSchemes maps schemes of other programs to ours.
var foreignSchemes = map[string]string{
	"http": schemeEtcd, "https": schemeTLS, "unix": schemeUnix,
	"valkey": schemeRedis, "valkeys": schemeRedisTLS, "zookeeper": "zk",
}

// suggest guesses the intended URL from one whose scheme is missing, foreign or misspelled.
// It returns "" if the intention is unclear, or if the URL may contain a password.
func suggest(raw string) string {
	if strings.Contains(raw, "@") {
		return ""
	}
	meant := ""
	scheme, rest, ok := cutScheme(raw)
	switch {
	case isBare(scheme) && strings.Trim(rest, "/") == "":
		meant = scheme + ":"
	case ok && isUnix(scheme):
		meant = scheme + ":///" + strings.TrimLeft(rest, "/")
	case ok:
		meant = scheme + "://" + strings.TrimRight(strings.TrimLeft(rest, "/"), "/")
	case strings.HasPrefix(raw, "/"):
		meant = schemeUnix + "://" + raw
	default:
		meant = schemeByPort(raw) + "://" + raw
	}
	if _, err := parse(meant); err != nil {
		return ""
	}
	return meant
}

// cutScheme splits a URL that begins with something like one of our schemes, and reports whether it
// does.
func cutScheme(raw string) (scheme, rest string, ok bool) {
	end := strings.IndexAny(raw, ":/")
	if end < 0 {
		end = len(raw)
	}
	scheme, rest = strings.ToLower(raw[:end]), strings.TrimPrefix(raw[end:], ":")
	if ours := foreignSchemes[scheme]; ours != "" {
		scheme = ours
	}
	_, known := schemes()[scheme]
	// "redis:6379" and "redis" are hosts. After a host there is never a colon and a slash, nor two
	// slashes.
	separated := strings.HasPrefix(raw[end:], ":/") || strings.HasPrefix(raw[end:], "//")
	return scheme, rest, known && separated
}

func isUnix(scheme string) bool { return strings.HasSuffix(scheme, "+unix") }

// schemeByPort returns the scheme of the store whose default port is that of the first host in the
// list; etcd for any other port.
func schemeByPort(raw string) string {
	hosts, _, _ := strings.Cut(raw, "/")
	first, _, _ := strings.Cut(hosts, ",")
	_, port, _ := strings.Cut(first, ":")
	known := schemes()
	for _, scheme := range []string{schemeRedis, "zk"} {
		if known[scheme].port == port {
			return scheme
		}
	}
	return schemeEtcd
}
