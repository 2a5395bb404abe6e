//go:build lean

package local

import (
	"fmt"
	"os"
	"path/filepath"
)

// Program returns the path of the program that has the server: stiled, in the directory of this one, which was
// built without it.
func Program() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	program := filepath.Join(filepath.Dir(self), "stiled"+filepath.Ext(self))
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("this stile was built without the server, and the program that has it cannot be found: %w; "+
			"install stiled in the same directory as stile", err)
	}
	return program, nil
}
