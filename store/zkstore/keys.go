package zkstore

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// paths maps the names of locks to the paths of the directories with their entries, and back.
//
// A name is its own path, below the root. Bytes that ZooKeeper does not allow in paths, or that
// would give the path another meaning, are written as ~ and two hexadecimal digits; so is ~ itself.
// The tilde is used because it sorts after the digits: Curator treats every child of a lock's
// directory whose name sorts before them as an entry ahead.
type paths struct {
	root string // empty, or begins with a slash
}

const escape = '~'

// dir returns the directory of the entries of the line behind name.
func (p paths) dir(name string) string {
	var b strings.Builder
	b.WriteString(p.root)
	for i, part := range strings.Split(name, "/") {
		b.WriteByte('/')
		writePart(&b, part, i == 0 && p.root == "")
	}
	return b.String()
}

// top is the store's root directory.
func (p paths) top() string {
	if p.root == "" {
		return "/"
	}
	return p.root
}

// join returns the path of a child.
func join(dir, child string) string {
	if dir == "/" {
		return dir + child
	}
	return dir + "/" + child
}

// split is the inverse of join.
func split(path string) (dir, child string) {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "/", path[i+1:]
	}
	return path[:i], path[i+1:]
}

// nameBelow returns the name whose directory is the given child of the directory of name; name is
// empty for the top. It returns false if no name has that directory.
func (p paths) nameBelow(name, child string) (string, bool) {
	part, err := readPart(child)
	if err != nil {
		return "", false
	}
	var again strings.Builder
	writePart(&again, part, name == "" && p.root == "")
	if again.String() != child {
		return "", false // not how writePart writes it, so no name has it
	}
	if name == "" {
		return part, true
	}
	return name + "/" + part, true
}

// otherSuffix is the end of the name of a node that is neither an entry nor the directory of a name. go-zookeeper's
// Lock fails if a child of its directory does not end in a number. This number is larger than that of every entry,
// so no client waits for the node. For Curator, which compares names, it comes last because of its first byte.
const otherSuffix = "__9999999999"

// systemDir is the directory at the top that ZooKeeper uses itself.
const systemDir = "zookeeper"

func writePart(b *strings.Builder, part string, atTop bool) {
	special := -1 // index of an allowed byte that must be escaped
	switch n, ok := parseNode(part); {
	case ok:
		special = len(part) - n.digits // otherwise it would be an entry of the line above
	case atTop && part == systemDir:
		special = 0
	}
	for i := 0; i < len(part); {
		r, size := utf8.DecodeRuneInString(part[i:]) // a name that is only read need not be UTF-8
		if i != special && allowed(r) {
			b.WriteRune(r)
		} else {
			for _, c := range []byte(part[i : i+size]) {
				fmt.Fprintf(b, "%c%02X", escape, c)
			}
		}
		i += size
	}
}

// allowed reports whether ZooKeeper allows a character in a path. Its server uses UTF-16, in which
// characters beyond U+FFFF are pairs of characters that it refuses.
func allowed(r rune) bool {
	switch {
	case r == escape:
		return false
	case r < 0x20, r >= 0x7f && r <= 0x9f:
		return false
	case r >= 0xd800 && r <= 0xf8ff, r >= 0xfff0:
		return false
	}
	return true
}

func readPart(child string) (string, error) {
	var b strings.Builder
	for {
		plain, rest, found := strings.Cut(child, string(escape))
		b.WriteString(plain)
		switch {
		case !found:
			if !utf8.ValidString(b.String()) {
				return "", strconv.ErrSyntax
			}
			return b.String(), nil
		case len(rest) < 2:
			return "", strconv.ErrSyntax
		}
		c, err := strconv.ParseUint(rest[:2], 16, 8)
		if err != nil {
			return "", err
		}
		b.WriteByte(byte(c))
		child = rest[2:]
	}
}
