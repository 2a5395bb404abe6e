// Package lockname formats the names of locks.
package lockname

import (
	"strconv"
	"strings"
	"unicode"
)

// Argument returns the shortest form of a name that stile's commands turn back into the name: the name
// itself, or a Go string in double quotes. It contains only printable characters.
func Argument(name string) string {
	plain := name != "" && !IsPath(name) && !strings.HasPrefix(name, `"`) && name == strings.TrimSpace(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) })
	if plain {
		return name
	}
	return strconv.Quote(name)
}

// IsPath reports whether stile's commands take an argument for a path.
func IsPath(arg string) bool {
	first, _, slash := strings.Cut(arg, "/")
	return slash && (first == "" || IsDots(first)) || IsDots(arg)
}

// IsDots reports whether a part of a path is . or ..
func IsDots(part string) bool { return part == "." || part == ".." }
