package localserver

import (
	"context"
	"fmt"
)

// ErrWindows matches [ErrNone].
var ErrWindows = fmt.Errorf("%w: there is none on Windows yet; start one with stile serve, and name it with "+
	"etcd://127.0.0.1:2379", ErrNone)

// Find returns an error that matches [ErrNone].
func (d Dir) Find(context.Context) (string, error) { return "", ErrWindows }

// CheckPath does nothing: the profile of a Windows user is protected by its access control list.
func CheckPath(string) error { return nil }

// SetupError returns the error for a directory that cannot be created.
func SetupError(err error) error { return err }
