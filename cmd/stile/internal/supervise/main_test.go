package supervise

import (
	"context"
	"os"
	"testing"

	"github.com/stilelock/stile/cmd/stile/internal/watchdog"
)

// TestMain makes the test binary a watchdog when it is started as one: a command that runs for
// longer than a second gets a watchdog, which is the running executable. Otherwise the watchdog
// would run the tests again, which would start more watchdogs.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == watchdog.Verb {
		nothing := func(context.Context, watchdog.Target, <-chan struct{}) {} // the store was in the memory of the parent
		if err := watchdog.Run(nothing); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
