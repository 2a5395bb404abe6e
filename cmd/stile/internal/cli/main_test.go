package cli

import (
	"context"
	"os"
	"testing"

	"github.com/stilelock/stile/cmd/stile/internal/watchdog"
)

// TestMain lets the program of the tests be a watchdog: a command that runs for longer than a moment is given one, and that is
// the program that is running. Without this it would run the tests again, which would start others.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == watchdog.Verb {
		nothing := func(context.Context, watchdog.Target, <-chan struct{}) {} // the store is in memory that has gone
		if err := watchdog.Run(nothing); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
