package main_test

import (
	"strings"
	"testing"
)

// expectSlots runs stile slots and checks its output.
func (m *machine) expectSlots(want string, args ...string) {
	m.t.Helper()
	c := m.stile(append([]string{"slots"}, args...)...)
	c.expectExit(0)
	if got := c.stdout.String(); got != want+"\n" {
		m.t.Errorf("slots %q: got %q, want %q", args, got, want)
	}
}

// The limit keeps commands out, survives them all, and admits waiters when it is raised.
func TestSlots_limit(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.expectSlots("lock demo: free; no limit", "demo")
	m.expectSlots("lock demo: free; limit 1 slot", "demo", "1")

	first := m.start(endableScript, "--slots", "3", "demo")
	m.expectSlots("lock demo: 1 of 1 slots taken; limit 1 slot, of 3 asked for", "demo")
	m.run("--slots", "3", "-n", "demo", "--", "true").expectExit(75, `"demo" is held by`)
	second := m.startWaiter(1, "demo", "--slots", "3")
	if c := m.stile("ls", "demo"); !strings.Contains(c.stdout.String(), "(1 of 1 slots) ") {
		t.Errorf("ls: got %s, want the slots within the limit", c.stdout)
	}
	c := m.stile("show", "demo")
	for _, part := range []string{"lock demo: 1 of 1 slots taken, 1 waiting\n", "limit     1 slot, of 3 asked for\n"} {
		if !strings.Contains(c.stdout.String(), part) {
			t.Errorf("show: got %s, want %q", c.stdout, part)
		}
	}
	if got := m.show("demo").Limit; got != 1 {
		t.Errorf("show -o json: got limit %d, want 1", got)
	}

	m.startWatch("events", "demo")
	m.awaitFile("events", "demo  waits  ")
	m.stile("slots", "demo", "2").expectExit(0)
	second.expectExit(0)
	m.awaitFile("events", "demo  limit 2 slots, of 3 asked for\n")

	// A lower limit stops no command.
	third := m.start(endableScript, "--slots", "3", "demo")
	eventually(t, "the time of acquisition, by which it is shown as a holder", func() bool {
		holders := m.show("demo").Holders
		return len(holders) == 2 && !holders[1].Owner.Obtained.IsZero()
	})
	m.expectSlots("lock demo: 2 of 1 slots taken; limit 1 slot, of 3 asked for", "demo", "1")
	fourth := m.startWaiter(1, "demo", "--slots", "3")
	m.endScript()
	eventually(t, "the end of one of the commands", func() bool { return len(m.show("demo").Holders) == 1 })
	if n := len(m.show("demo").Waiters); n != 1 {
		t.Errorf("one command still runs: got %d waiters, want 1", n)
	}
	m.endScript()
	for _, c := range []*command{first, third, fourth} {
		c.expectExit(0)
	}
	m.expectSlots("lock demo: free; limit 1 slot", "demo")
	m.expectSlots("lock demo: free; no limit", "--remove", "demo")
}

func TestSlots_numbersAndJSON(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.expectSlots("lock demo: free; limit 9 slots", "demo", "9")
	holder := m.start(endableScript, "--slots", "2", "demo")
	m.expectSlots("lock demo: 1 of 2 slots taken; limit 9 slots, without effect on the 2 asked for", "demo")
	type output struct {
		Name                           string
		Limit, Slots, Holders, Waiters int
	}
	c := m.stile("slots", "-o", "json", "demo", "7")
	c.expectExit(0)
	if got, want := decodeJSON[output](t, c.stdout.Bytes()), (output{"demo", 7, 2, 1, 0}); got != want {
		t.Errorf("slots -o json: got %+v, want %+v", got, want)
	}
	m.expectSlots("lock demo: 1 of 2 slots taken; no limit", "demo", "0")
	m.endScript()
	holder.expectExit(0)
}

func TestSlots_mutex(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	holder := m.start(endableScript, "demo")
	m.expectSlots("lock demo: held; limit 9 slots, without effect: the lock is used without --slots", "demo", "9")
	m.expectSlots("lock demo: held; no limit", "demo", "0")
	m.endScript()
	holder.expectExit(0)
}

func TestSlots_misuse(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.setenv("STILE_URL", "mem:")
	m.stile("slots").expectExit(125, "missing lock name")
	m.stile("slots", "demo", "x").expectExit(125, `"x"`, "must be a number from 1", "0 to remove it")
	m.stile("slots", "demo", "--", "-1").expectExit(125, `"-1"`, "must be a number from 1")
	m.stile("slots", "--remove", "demo", "2").expectExit(125, "--remove")
	m.stile("slots", "demo", "2", "3").expectExit(125, `unexpected argument "2"`)
	m.stile("slots", "/", "2").expectExit(125, "invalid lock name")
	m.stile("slots", "-o", "yaml", "demo").expectExit(125, "must be text or json")
	m.setenv("STILE_URL", "etcd://127.0.0.1:1")
	m.stile("slots", "demo").expectExit(125, "connection refused")
	m.stile("slots", "demo", "2").expectExit(125, "connection refused")
}
