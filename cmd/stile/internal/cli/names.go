package cli

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/cmd/stile/internal/lockname"
	"github.com/stilelock/stile/store"
)

// A lock name has three forms as an argument and in output:
//
//   - an argument that begins with /, ./ or ../ is a path, as in flock(1); the name is the absolute
//     path without its first slash, because no part of a name may be empty;
//   - an argument in double quotes is a Go string; every name can be written so, including names
//     that only other clients can have created;
//   - any other argument is the name itself.

// nameOf returns the name that an argument means.
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

// lockName is nameOf for a lock to be taken, whose name must be valid.
func lockName(arg string) (string, error) {
	name, err := nameOf(arg)
	if err != nil {
		return "", err
	}
	return name, store.CheckName(name)
}

// prefixOf returns the prefix of names that an argument means.
func prefixOf(arg string) (string, error) {
	prefix, err := nameOf(arg)
	if err == nil && isPath(arg) && prefix != "" && (strings.HasSuffix(arg, "/") || isDots(path.Base(arg))) {
		prefix += "/"
	}
	return prefix, err
}

// asArgument returns the shortest form of a name, which nameOf turns back into the name.
func asArgument(name string) string { return lockname.Argument(name) }

func isPath(arg string) bool { return lockname.IsPath(arg) }

func isDots(part string) bool { return lockname.IsDots(part) }

// ofPath returns the lock name of a path. It does not follow links, and the file need not exist.
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

// completePaths makes the completion of names work for paths too.
func completePaths(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		complete := cmd.ValidArgsFunction
		switch cmd.Name() {
		case "run", "elect", "hold", "break", "graph", "ls", "once", "show", "slots", "top", "trace", "wait", "watch":
		default:
			continue
		}
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			prefix, err := prefixOf(typed)
			if len(args) > 0 && !allNames(cmd) || slices.Contains(args, "--") || !isPath(typed) || err != nil {
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
