package store

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxNameBytes is the maximum length of a name in bytes.
const MaxNameBytes = 512

// CheckName returns nil if name is a valid lock name, and otherwise an error that matches
// [ErrBadName] and says what is wrong.
//
// A name has 1 to [MaxNameBytes] bytes of UTF-8 without control characters. Slashes group names for
// people and for prefixes and mean nothing to the locks: "a" and "a/b" are independent locks. So
// that each path has only one spelling, no part of a name may be empty, "." or "..". A store may refuse
// further names, with the same error: etcdstore refuses ".stile" and all that begin with ".stile/".
func CheckName(name string) error {
	bad := func(why string) error { return fmt.Errorf("%w %q: %s", ErrBadName, shorten(name), why) }
	switch {
	case name == "":
		return bad("it is empty")
	case len(name) > MaxNameBytes:
		return bad(fmt.Sprintf("it has %d bytes, maximum is %d", len(name), MaxNameBytes))
	case !utf8.ValidString(name):
		return bad("it is not UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return bad("it contains a control character")
	}
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "":
			return bad(`it must not begin or end with "/", or contain "//"`)
		case ".", "..":
			return bad(`no part of it may be "." or ".."`)
		}
	}
	return nil
}

// CheckPrefix returns nil if prefix has at most [MaxNameBytes] bytes of UTF-8 without control characters,
// and otherwise an error that matches [ErrBadName]. It accepts some prefixes that no name can have.
func CheckPrefix(prefix string) error {
	switch {
	case len(prefix) > MaxNameBytes:
		return fmt.Errorf("%w prefix %q: it has %d bytes, maximum is %d", ErrBadName, shorten(prefix), len(prefix), MaxNameBytes)
	case !utf8.ValidString(prefix) || strings.ContainsFunc(prefix, unicode.IsControl):
		return fmt.Errorf("%w prefix %q: it is not UTF-8 or contains a control character", ErrBadName, shorten(prefix))
	}
	return nil
}

func shorten(s string) string {
	const limit = 64
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "…"
}
