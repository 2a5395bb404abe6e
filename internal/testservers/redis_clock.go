package testservers

import (
	"errors"
	"testing"

	"github.com/stilelock/stile/internal/clockshim"
)

// adjustableClock returns a wall clock that can be set while its program runs.
func adjustableClock(t testing.TB) *clockshim.Clock {
	t.Helper()
	shim, err := clockshim.Build(t.TempDir())
	if errors.Is(err, clockshim.ErrNoCompiler) {
		Check(t, &missingError{"cc", "cc on the PATH", "install a C compiler"})
	}
	if err != nil {
		t.Skipf("SKIPPED, NOT TESTED: this test needs an adjustable wall clock: %v", err)
	}
	clock, err := shim.Clock("redis")
	if err != nil {
		t.Fatal(err)
	}
	return clock
}
