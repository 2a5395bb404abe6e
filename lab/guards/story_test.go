//go:build linux

package guards_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/stilelock/stile/lab/guards"
)

// The story of fencing, with each guard. A holds the lock, and looks whether its hold is valid. Then it is
// stopped, for longer than the TTL. B gets the lock, and writes. A wakes up, and writes too: that is
// refused, A is told, and the data are B's.
// Promise: P2
func TestStory(t *testing.T) {
	t.Parallel()
	for _, kind := range guards.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			writer, name := writerProgram(t), newName()
			s := serversFor(t, kind, writer)
			journal := openJournal(t, kind, name, s)
			a := startWriter(t, writer, kind, name, shortTTL, s)
			b := startWriter(t, writer, kind, name, longTTL, s)

			first := holdValid(t, a)
			a.signal(syscall.SIGSTOP)
			second := b.lock()
			if first >= second {
				t.Errorf("tokens %d and %d, want the second larger", first, second)
			}
			b.expect("write", "written")
			a.signal(syscall.SIGCONT)
			switch answer := a.do("write"); answer {
			case fmt.Sprintf("stale %d", second):
			case "stale 0": // a presence guard: the entry is gone
			default:
				t.Errorf("the stale holder's write: got %q, want that it is stale because of %d", answer, second)
			}
			if got := tokens(t, journal); !slices.Equal(got, []uint64{second}) {
				t.Errorf("the journal has %d, want only %d", got, second)
			}
			a.expect("check", "invalid")
			b.expect("write", "written")
		})
	}
}

// holdValid makes a process hold the lock and find the hold valid. On a busy machine the process may have
// lost it before it looks.
func holdValid(t *testing.T, p *process) (token uint64) {
	t.Helper()
	for range 20 {
		token = p.lock()
		if p.do("check") == "valid" {
			return token
		}
		p.expect("release", "released")
	}
	t.Fatal("no hold was valid for long enough, in 20 attempts")
	return 0
}
