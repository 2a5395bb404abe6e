package child_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/cmd/stile/internal/child"
)

// After Await all signals are received, also the last one.
func TestSignals_await(t *testing.T) {
	signals := child.Listen()
	defer signals.Close()
	signals.Await()
	for _, want := range []unix.Signal{64, unix.SIGUSR1} {
		if err := unix.Kill(unix.Getpid(), want); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-signals.C():
			if got != want {
				t.Errorf("got %v, want %v", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%v was not received", want)
		}
	}
}
