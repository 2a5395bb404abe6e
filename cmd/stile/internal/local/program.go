//go:build !lean

package local

import "os"

// Program returns the path of the program that has the server: this one.
func Program() (string, error) { return os.Executable() }
