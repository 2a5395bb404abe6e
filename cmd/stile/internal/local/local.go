// Package local starts, keeps and runs this user's lock server on this machine, the one behind
// local:, in the background. Package localserver finds it.
package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stilelock/stile/internal/localserver"
)

// URL selects the server of this package in place of a store's URL.
const URL = "local:"

// ServerDir is the directory of a local server.
type ServerDir struct{ localserver.Dir }

// DefaultServerDir returns the directory of the server behind local:.
func DefaultServerDir() (ServerDir, error) {
	dir, err := localserver.DefaultDir()
	return ServerDir{dir}, err
}

// Data returns the server's data directory.
func (d ServerDir) Data() string { return filepath.Join(string(d.Dir), "data") }

// OrOtherStore adds to an error of a local server that another store can be used. It returns nil if
// err is nil.
func OrOtherStore(err error) error {
	if err == nil || errors.Is(err, localserver.ErrNone) {
		return err
	}
	return fmt.Errorf("%w; or name a store with --url or STILE_URL", err)
}

// MarkShown reports whether it is called with this key for the first time by any process. It returns
// false if it cannot record the call.
func (d ServerDir) MarkShown(key string) bool {
	f, err := os.OpenFile(d.once(key), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

// WasShown reports whether MarkShown was called with this key.
func (d ServerDir) WasShown(key string) bool {
	_, err := os.Lstat(d.once(key))
	return err == nil
}

func (d ServerDir) once(key string) string { return filepath.Join(string(d.Dir), "said-"+key) }
