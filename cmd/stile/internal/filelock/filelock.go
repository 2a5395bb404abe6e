// Package filelock keeps processes of one machine apart by locks on files. The operating system lets go of a lock
// when the process that has it ends, however it ends.
package filelock

import (
	"context"
	"errors"
	"os"
	"time"
)

// ErrLocked means that another process has the lock.
var ErrLocked = errors.New("locked by another process")

// Kind is how a file is locked.
type Kind uint8

const (
	// Shared goes together with other shared locks.
	Shared Kind = iota
	// Exclusive goes together with no other lock.
	Exclusive
)

// A Lock is a locked file.
type Lock struct{ f *os.File }

// Try locks the file at path, which it creates, empty and readable by its owner only, if it is not there. If another
// process has a lock that does not go together with this one, the error matches [ErrLocked].
func Try(path string, kind Kind) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := try(f, kind); err != nil {
		f.Close()
		return nil, err
	}
	return &Lock{f}, nil
}

// retry is how often Wait looks. The systems have no way to wait for a file lock that can be given up.
const retry = 5 * time.Millisecond

// Wait is [Try], again and again until it does not fail with [ErrLocked] or ctx ends. Then the error is ErrLocked.
func Wait(ctx context.Context, path string, kind Kind) (*Lock, error) {
	for {
		lock, err := Try(path, kind)
		if !errors.Is(err, ErrLocked) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(retry):
		}
	}
}

// Unlock lets others have the lock. The file stays: if it were removed, a process that has it open already could lock
// it while another locks a new file of the same name.
func (l *Lock) Unlock() {
	_ = l.f.Close() // a lock goes with its file, and closing a file nothing was written to loses nothing
}
