package cli

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/store"
)

// How the name of a lock is written as an argument, and in what is printed. There are three forms:
//
//   - what begins with /, ./ or ../ is a path, as flock(1) takes it. The name is the absolute path, without the first slash:
//     of a name no part is empty;
//   - what stands in double quotes is a string of Go's. Every name can be written so, those too that no lock of Stile's can
//     have: other clients may have made them;
//   - everything else is the name itself.

// nameOf returns the name that is meant by an argument.
func nameOf(arg string) (string, error) {
	switch {
	case isPath(arg):
		return ofPath(arg)
	case strings.HasPrefix(arg, `"`):
		if name, err := strconv.Unquote(arg); err == nil {
			return name, nil
		}
	}
	return arg, nil
}

// lockName is [nameOf] for a lock that is to be taken, which not every name is good enough for.
func lockName(arg string) (string, error) {
	name, err := nameOf(arg)
	if err != nil {
		return "", err
	}
	return name, store.CheckName(name)
}

// prefixOf returns the beginning of names that is meant by an argument.
func prefixOf(arg string) (string, error) {
	prefix, err := nameOf(arg)
	if err == nil && isPath(arg) && prefix != "" && (strings.HasSuffix(arg, "/") || isDots(path.Base(arg))) {
		prefix += "/"
	}
	return prefix, err
}

// asArgument is the shortest form of a name: that which [nameOf] makes the name of again. It has only characters that
// can be printed.
func asArgument(name string) string {
	plain := name != "" && !isPath(name) && !strings.HasPrefix(name, `"`) && name == strings.TrimSpace(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) })
	if plain {
		return name
	}
	return strconv.Quote(name)
}

func isPath(arg string) bool {
	first, _, slash := strings.Cut(arg, "/")
	return slash && (first == "" || isDots(first)) || isDots(arg)
}

func isDots(part string) bool { return part == "." || part == ".." }

// ofPath returns the name of the lock that a path stands for. Links are not followed, and no file need be there.
func ofPath(p string) (string, error) {
	abs := path.Clean(p)
	if !path.IsAbs(p) {
		dir, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("lock %s: the directory it is in cannot be found: %w", p, err)
		}
		abs = path.Join("/", filepath.ToSlash(dir), p)
	}
	return strings.TrimPrefix(abs, "/"), nil
}

// completePaths has names completed for those who write them as paths, too.
func completePaths(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		complete := cmd.ValidArgsFunction
		switch cmd.Name() {
		case "run", "break", "ls", "show", "wait", "watch":
		default:
			continue
		}
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			prefix, err := prefixOf(typed)
			if len(args) > 0 || !isPath(typed) || err != nil {
				return complete(cmd, args, typed)
			}
			if isDots(path.Base(typed)) && !strings.HasSuffix(typed, "/") {
				typed += "/"
			}
			names, directive := complete(cmd, args, prefix)
			for i, name := range names {
				names[i] = typed + strings.TrimPrefix(name, prefix)
			}
			return names, directive
		}
	}
}
