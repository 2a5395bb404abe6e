package main_test

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// asserted is the output of stile assert -o json.
type asserted struct {
	Name  string  `json:"name"`
	Token string  `json:"token"`
	Held  bool    `json:"held"`
	Left  float64 `json:"left_seconds"`
}

func TestAssert_held(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	began := time.Now()
	c := m.run("--all", "a", "b", "--", "sh", "-ec", `"$0" assert
		STILE_URL=etcd://127.0.0.1:1 "$0" assert b # the store is not asked
		"$0" assert -q; "$0" assert -o json a`, stile)
	c.expectExit(0)
	// Locks are held for nine tenths of the TTL after the last renewal, and that was not before the start.
	const most = 270 * time.Second
	least := most - time.Since(began) - 100*time.Millisecond // the text has tenths of seconds
	text, object, _ := strings.Cut(c.stdout.String(), "[")
	lines := strings.Split(text, "\n")
	if len(lines) != 3 {
		t.Fatalf("got\n%swant two lines", text)
	}
	for i, locks := range []string{`locks "a" and "b"`, `lock "b"`} {
		left, err := time.ParseDuration(strings.TrimSuffix(strings.TrimPrefix(lines[i], locks+": held for another "), " at least"))
		if err != nil || left < least || left > most {
			t.Errorf("got %s, want %s, held for %v to %v", lines[i], locks, least, most)
		}
	}
	all := decodeJSON[[]asserted](t, []byte("["+object))
	if len(all) != 1 || all[0].Name != "a" || !all[0].Held || all[0].Token == "" || all[0].Left < least.Seconds() || all[0].Left > most.Seconds() {
		t.Errorf("got %s, want lock a, held for %v to %v", object, least, most)
	}

	// No name means the locks of all enclosing runs.
	c = m.run("outer", "--", stile, "elect", "inner", "--", stile, "once", "--key", "a", "job", "--", stile, "assert")
	c.expectExit(0)
	if got := c.stdout.String(); !strings.HasPrefix(got, `locks "outer", "inner" and "job": held for another `) || !strings.HasSuffix(got, " at least\n") {
		t.Errorf("under three verbs: got %s, want all locks", got)
	}
}

// As soon as the lock is lost, before the command is asked to end, stile assert fails.
func TestAssert_lost(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.setenv("STILE", stile)
	const script = `trap '$STILE assert -q; echo $? >quiet; $STILE assert 2>stderr; echo $? >plain
		$STILE assert -o json >json 2>/dev/null; exit' TERM; touch started; ` + sleepLoop
	c := m.start(script, "-k", "110", "demo")
	m.breakHolder("demo")
	c.expectExit(79, `lock "demo" was broken`)
	for file, want := range map[string]string{
		"quiet": "79\n", "plain": "79\n", "stderr": `stile: lock "demo": not held any more` + "\n",
	} {
		if got := m.read(file); got != want {
			t.Errorf("%s: got %q, want %q", file, got, want)
		}
	}
	if all := decodeJSON[[]asserted](t, []byte(m.read("json"))); len(all) != 1 || all[0].Held || all[0].Left != 0 {
		t.Errorf("got %v, want a lock that is not held", all)
	}
}

// A process that a run has left behind learns that the lock is released.
func TestAssert_afterRun(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.run("demo", "--", "sh", "-c", `echo "$STILE_HELD"`)
	c.expectExit(0)
	m.setenv("STILE_HELD", strings.TrimSpace(c.stdout.String()))
	m.stile("assert").expectExit(79, `lock "demo": not held any more`)
}

func TestAssert_invalidUse(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.stile("assert", "-q").expectExit(125, "no stile run around this command", "STILE_HELD is not set")
	m.stile("assert", "-o", "yaml").expectExit(125, "must be text or json")
	m.setenv("STILE_HELD", `[{"name":"demo","token":"2048","owner":"ann"}]`) // of an earlier version
	m.stile("assert").expectExit(125, `lock "demo"`, "cannot be asked")
	m.stile("assert", "other").expectExit(125, `no stile run around this command holds lock "other"`)
	m.stile("assert", "demo", "more").expectExit(125, "unexpected argument")
}

// The record of a lock is for processes of the same user.
func TestAssert_anotherUser(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t).asGuest(), shared(t)
	m.setenv("STILE_URL", s.url)
	uid := strconv.Itoa(m.uid)
	c := m.machine.run("demo", "--", "setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", stile, "assert")
	c.expectExit(125, `lock "demo": the stile run that holds it cannot be asked: `, "permission denied")
}
