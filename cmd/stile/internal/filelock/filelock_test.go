package filelock_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stilelock/stile/cmd/stile/internal/filelock"
)

// On the systems Stile runs on a lock belongs to the opened file, so that one process can play two here.
func TestKindsExcludeEachOther(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second filelock.Kind
		together      bool
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
			case c.together && err != nil:
				t.Errorf("together: %v", err)
			case !c.together && !errors.Is(err, filelock.ErrLocked):
				t.Errorf("not together: %v, want ErrLocked", err)
			case c.together:
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

func TestWaitGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := filelock.Try(path, filelock.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error)
	go func() {
		_, err := filelock.Wait(ctx, path, filelock.Exclusive)
		gaveUp <- err
	}()
	cancel()
	if err := <-gaveUp; !errors.Is(err, filelock.ErrLocked) {
		t.Errorf("%v, want ErrLocked", err)
	}
	first.Unlock()
	second, err := filelock.Wait(t.Context(), path, filelock.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	second.Unlock()
}

func TestAFileThatCannotBeMade(t *testing.T) {
	t.Parallel()
	if _, err := filelock.Try(filepath.Join(t.TempDir(), "no", "such"), filelock.Shared); err == nil {
		t.Error("locked a file in a directory that is not there")
	}
}
