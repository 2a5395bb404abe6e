package metrics

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/stilelock/stile/internal/lockclass"
)

// Classes says which names belong to which class of locks. By default the class is the part of the name
// before its first slash, and "other" if the name has none. It is a value for flags: PATTERN=CLASS, several of
// them with commas. In a pattern * stands for any text, with slashes; every other character stands for
// itself. The longest pattern that matches a name decides.
type Classes struct {
	rules []classRule // the longest pattern first
}

type classRule struct {
	pattern, class string
	parts          []string // of the pattern, between the stars
}

// Set adds the mappings of a text. It must not be called after New.
func (c *Classes) Set(s string) error {
	for mapping := range strings.SplitSeq(s, ",") {
		pattern, class, ok := cutLast(strings.TrimSpace(mapping), "=")
		switch {
		case !ok || pattern == "" || class == "":
			return fmt.Errorf("want PATTERN=CLASS, as in orders/*=orders, not %q", mapping)
		case !utf8.ValidString(class):
			return fmt.Errorf("the class %q is not valid UTF-8", class)
		case len(class) > lockclass.MaxBytes:
			return fmt.Errorf("the class %q has %d bytes, maximum is %d", class, len(class), lockclass.MaxBytes)
		}
		if slices.ContainsFunc(c.rules, func(r classRule) bool { return r.pattern == pattern }) {
			return fmt.Errorf("there are two classes for the pattern %q", pattern)
		}
		c.rules = append(c.rules, classRule{pattern, class, strings.Split(pattern, "*")})
	}
	slices.SortFunc(c.rules, func(a, b classRule) int {
		if d := len(b.pattern) - len(a.pattern); d != 0 {
			return d
		}
		return strings.Compare(a.pattern, b.pattern)
	})
	return nil
}

// cutLast cuts s around the last instance of sep.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// String returns the mappings as Set accepts them.
func (c *Classes) String() string {
	var all []string
	for _, r := range c.rules {
		all = append(all, r.pattern+"="+r.class)
	}
	return strings.Join(all, ",")
}

// Type names the kind of value in help texts.
func (c *Classes) Type() string { return "classes" }

// of returns the class of a name, and whether an operator has chosen it.
func (c *Classes) of(name string) (class string, chosen bool) {
	for _, r := range c.rules {
		if r.matches(name) {
			return r.class, true
		}
	}
	return lockclass.Of(name), false
}

func (r classRule) matches(name string) bool {
	first, last := r.parts[0], r.parts[len(r.parts)-1]
	if len(r.parts) == 1 {
		return name == first
	}
	if len(name) < len(first)+len(last) || !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) {
		return false
	}
	name = name[len(first) : len(name)-len(last)]
	for _, part := range r.parts[1 : len(r.parts)-1] {
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name = name[i+len(part):]
	}
	return true
}
