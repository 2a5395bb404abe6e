package cli

import (
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/store"
)

func TestNameOf_paths(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	here := strings.TrimPrefix(filepath.ToSlash(dir), "/")
	for arg, want := range map[string]string{
		"/var/lock/x.lock": "var/lock/x.lock",
		"/var//lock/./x/":  "var/lock/x",
		"/../x":            "x",
		"./x":              here + "/x",
		"./a/../x":         here + "/x",
		"../x":             filepath.ToSlash(filepath.Dir(here)) + "/x",
		".":                here,
		// These are names.
		"x":          "x",
		"x.lock":     "x.lock",
		"deploy/web": "deploy/web",
		".x":         ".x",
		"..x/y":      "..x/y",
		".../y":      ".../y",
		"~/x":        "~/x",
		`a"b`:        `a"b`,
		`"`:          `"`,
		`"a`:         `"a`,
		`"a" b`:      `"a" b`,
		`"\q"`:       `"\q"`,
		`"a"`:        "a", // as it is printed
		`"/a\n"`:     "/a\n",
	} {
		if got, err := nameOf(arg); got != want || err != nil {
			t.Errorf("%s is the name %q, %v, want %q", arg, got, err, want)
		}
	}
	for arg, want := range map[string]string{
		"": "", "/": "", "/var/lo": "var/lo", "/var/lock/": "var/lock/", "./": here + "/", ".": here + "/", "./x": here + "/x",
		"deploy/": "deploy/", `"/a"`: "/a",
	} {
		if got, err := prefixOf(arg); got != want || err != nil {
			t.Errorf("%s is the prefix %q, %v, want %q", arg, got, err, want)
		}
	}
	if name, err := lockName("/"); err == nil {
		t.Errorf("a lock is taken with the name %q", name)
	}
}

// Whatever is called a name by another client, what is printed of it can be typed.
func FuzzAsArgument(f *testing.F) {
	for _, name := range []string{
		"deploy/web", "", "/a", "a/", "a//b", "./a", "../a", ".", "..", `"a"`, `"`, `a"b`, `\n`, "a\nb", "a\x00", "\xff", "�", "\u202e", " a ",
		"日", "a\tb", "\u00a0",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		arg := asArgument(name)
		if again, err := nameOf(arg); again != name || err != nil {
			t.Errorf("%q is printed as %s, which is the name %q, %v", name, arg, again, err)
		}
		if strings.ContainsFunc(arg, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q is printed as %q, with what a terminal does not print", name, arg)
		}
		if store.CheckName(name) == nil && !strings.HasPrefix(name, `"`) && arg != name &&
			!strings.ContainsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
			t.Errorf("%q is printed as %s for no reason", name, arg)
		}
	})
}

func TestCompletion_paths(t *testing.T) {
	t.Chdir("/")
	held := []string{"var/lock/a", "var/lock/b", "deploy/web"}
	root := &cobra.Command{Use: "stile"}
	root.AddCommand(&cobra.Command{
		Use: "show",
		ValidArgsFunction: func(_ *cobra.Command, _ []string, typed string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			for _, name := range held {
				if strings.HasPrefix(name, typed) {
					names = append(names, cobra.CompletionWithDesc(name, "held"))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	})
	completePaths(root)
	show := root.Commands()[0]
	for typed, want := range map[string]string{
		"/var/l":      "/var/lock/a\theld /var/lock/b\theld",
		"/var/lock/b": "/var/lock/b\theld",
		"./va":        "./var/lock/a\theld ./var/lock/b\theld",
		".":           "./var/lock/a\theld ./var/lock/b\theld ./deploy/web\theld",
		"var":         "var/lock/a\theld var/lock/b\theld",
		"/etc":        "",
	} {
		if got, _ := show.ValidArgsFunction(show, nil, typed); strings.Join(got, " ") != want {
			t.Errorf("%s is completed with %q, want %q", typed, got, want)
		}
	}
}
