package page

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
)

// A Role is what a token allows.
type Role string

// The roles.
const (
	RoleRead  Role = "read"  // reading
	RoleBreak Role = "break" // reading, and breaking locks
)

// Tokens are the secrets that requests need. It keeps only their hashes.
type Tokens struct{ all []token }

type token struct {
	hash [sha256.Size]byte
	grant
}

// minTokenBytes makes guessing hopeless for tokens that are random.
const minTokenBytes = 16

// ReadTokens reads a file with a line "ROLE TOKEN" for each token. Empty lines, and those that begin with
// #, are ignored. It is an error if other users can read the file. No error contains a token.
func ReadTokens(file string) (*Tokens, error) {
	t, err := readTokens(file)
	if err != nil {
		return nil, fmt.Errorf("--page-tokens: %w", err)
	}
	return t, nil
}

func readTokens(file string) (*Tokens, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	const others = 0o007
	if runtime.GOOS != "windows" && info.Mode().Perm()&others != 0 {
		return nil, fmt.Errorf("other users can read or write %s; chmod o= it, and change the tokens if they are secret", file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	t := new(Tokens)
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parsed, err := parseToken(line)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", file, n, err)
		}
		for _, other := range t.all {
			if other.hash == parsed.hash {
				return nil, fmt.Errorf("%s: lines %d and %d have the same token", file, other.line, n)
			}
		}
		parsed.line = n
		t.all = append(t.all, parsed)
	}
	if len(t.all) == 0 {
		return nil, fmt.Errorf("%s has no token; want lines like \"read TOKEN\"", file)
	}
	return t, nil
}

func parseToken(line string) (token, error) {
	fields := strings.Fields(line)
	if len(fields) != 2 {
		return token{}, errors.New("want two words: a role, read or break, and a token")
	}
	role := Role(fields[0])
	switch {
	case role != RoleRead && role != RoleBreak:
		return token{}, errors.New("the first word must be the role: read or break")
	case len(fields[1]) < minTokenBytes:
		return token{}, fmt.Errorf("the token is shorter than %d characters; openssl rand -hex 16 makes a good one", minTokenBytes)
	}
	return token{sha256.Sum256([]byte(fields[1])), grant{role: role}}, nil
}

// allowBreak reports whether one of the tokens has the role break.
func (t *Tokens) allowBreak() bool {
	return slices.ContainsFunc(t.all, func(t token) bool { return t.role == RoleBreak })
}

// find returns what a token grants. How long it takes does not depend on the tokens.
func (t *Tokens) find(text string) (found grant, ok bool) {
	hash := sha256.Sum256([]byte(text))
	for _, other := range t.all {
		if subtle.ConstantTimeCompare(hash[:], other.hash[:]) == 1 {
			found, ok = other.grant, true
		}
	}
	return found, ok
}
