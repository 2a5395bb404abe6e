package store

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxNameBytes is the length of the longest name, in bytes.
const MaxNameBytes = 512

// CheckName reports what is wrong with a lock's name, as an error matching [ErrBadName], or nil.
//
// A name is 1 to [MaxNameBytes] bytes of UTF-8 without control characters. Slashes make paths of names for people and
// for prefixes; they mean nothing to the locks: "a" and "a/b" are two locks that know nothing of each other. So
// that a path can be written in one way only, no part of it is empty or a dot or two.
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

// CheckPrefix is [CheckName] for the beginning of a name: it may be empty or end anywhere.
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
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
