package filelock_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stilelock/stile/internal/filelock"
)

// On the systems that Stile supports, a lock belongs to the open file, so one process can play two
// here.
func TestTry_kinds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second filelock.Kind
		compatible    bool
	}{
		"shared, shared":       {filelock.Shared, filelock.Shared, true},
		"shared, exclusive":    {filelock.Shared, filelock.Exclusive, false},
		"exclusive, shared":    {filelock.Exclusive, filelock.Shared, false},
		"exclusive, exclusive": {filelock.Exclusive, filelock.Exclusive, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "lock")
			first, err := filelock.Try(path, c.first)
			if err != nil {
				t.Fatal(err)
			}
			second, err := filelock.Try(path, c.second)
			switch {
			case c.compatible && err != nil:
				t.Errorf("compatible kinds: %v", err)
			case !c.compatible && !errors.Is(err, filelock.ErrLocked):
				t.Errorf("incompatible kinds: got %v, want ErrLocked", err)
			case c.compatible:
				second.Unlock()
			}
			first.Unlock()
			second, err = filelock.Try(path, c.second)
			if err != nil {
				t.Fatalf("after Unlock: %v", err)
			}
			second.Unlock()
		})
	}
}

func TestWait_endsWithContext(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := filelock.Try(path, filelock.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error)
	go func() {
		_, err := filelock.Wait(ctx, path, filelock.Exclusive)
		waited <- err
	}()
	cancel()
	if err := <-waited; !errors.Is(err, filelock.ErrLocked) {
		t.Errorf("got %v, want ErrLocked", err)
	}
	first.Unlock()
	second, err := filelock.Wait(t.Context(), path, filelock.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	second.Unlock()
}

func TestTry_missingDirectory(t *testing.T) {
	t.Parallel()
	if _, err := filelock.Try(filepath.Join(t.TempDir(), "no", "such"), filelock.Shared); err == nil {
		t.Error("got no error for a file in a missing directory")
	}
}
