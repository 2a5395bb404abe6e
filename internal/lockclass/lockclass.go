// Package lockclass finds the class of a lock, which is a label of metrics. Names are no labels: there can
// be any number of them, and they may contain what only some people should read.
package lockclass

import (
	"strings"
	"sync"
	"unicode/utf8"
)

const (
	// Other is the class of all names that have no class of their own.
	Other = "other"
	// MaxBytes is the maximum length of a class. A longer text is part of a name that nobody has chosen as
	// a class.
	MaxBytes = 64
	// Max is the number of classes that a Set has besides Other. Each class has some hundred time series,
	// and names may come from users.
	Max = 50
)

// Of returns the part of a name before its first slash, as Label returns it; Other if there is no slash.
func Of(name string) string {
	class, _, found := strings.Cut(name, "/")
	if !found {
		return Other
	}
	return Label(class)
}

// Label returns the class as valid UTF-8; Other if it is empty or longer than MaxBytes.
func Label(class string) string {
	class = strings.ToValidUTF8(class, string(utf8.RuneError))
	if class == "" || len(class) > MaxBytes {
		return Other
	}
	return class
}

// A Set is a limited number of classes. The zero value is an empty set. It is safe for concurrent use.
type Set struct {
	mu      sync.Mutex
	members map[string]bool
}

// Limit returns the class if it is one of the first Max that Limit was called for, and otherwise Other.
func (s *Set) Limit(class string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case class == Other || s.members[class]:
		return class
	case len(s.members) == Max:
		return Other
	case s.members == nil:
		s.members = make(map[string]bool)
	}
	s.members[class] = true
	return class
}
