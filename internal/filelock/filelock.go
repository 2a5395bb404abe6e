// Package filelock excludes processes of one machine from each other with locks on files. The
// operating system releases a lock when its process ends for any reason.
package filelock

import (
	"context"
	"errors"
	"os"
	"time"
)

// ErrLocked means that another process has the lock.
var ErrLocked = errors.New("locked by another process")

// Kind is the mode of a lock.
type Kind uint8

const (
	// Shared is compatible with other shared locks.
	Shared Kind = iota
	// Exclusive is compatible with no other lock.
	Exclusive
)

// A Lock is a locked file.
type Lock struct{ f *os.File }

// Try locks the file at path, and creates it if it does not exist, empty and readable by its owner
// only. If another process has an incompatible lock, the error matches [ErrLocked]. A symbolic link
// is an error, except on Windows.
func Try(path string, kind Kind) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|noFollow, 0o600)
	if err != nil {
		return nil, err
	}
	if err := try(f, kind); err != nil {
		f.Close()
		return nil, err
	}
	return &Lock{f}, nil
}

// retryInterval is the interval of Wait's attempts. No system offers a wait for a file lock that
// can be canceled.
const retryInterval = 5 * time.Millisecond

// Wait calls [Try] until the error is not [ErrLocked] or ctx ends. In the latter case the error is
// ErrLocked.
func Wait(ctx context.Context, path string, kind Kind) (*Lock, error) {
	for {
		lock, err := Try(path, kind)
		if !errors.Is(err, ErrLocked) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(retryInterval):
		}
	}
}

// Unlock releases the lock. The file stays: if it were removed, a process that has it open could
// lock it while another one locks a new file of the same name.
func (l *Lock) Unlock() {
	_ = l.f.Close() // releases the lock; nothing was written that an error could lose
}
