package main_test

import (
	"os/exec"
	"strings"
	"testing"
)

// Scripts written for flock(1) behave the same with "stile run" in place of "flock". $LOCK is
// either of them.
func TestRun_flockScripts(t *testing.T) {
	t.Parallel()
	flock, err := exec.LookPath("flock")
	if err != nil {
		t.Skipf("SKIPPED: this test needs flock: %v", err)
	}
	for name, script := range map[string]string{
		"success":                      `$LOCK x true; echo $?`,
		"failure":                      `$LOCK x sh -c 'exit 3'; echo $?`,
		"signal":                       `$LOCK x sh -c 'kill -TERM $$'; echo $?`,
		"shell line":                   `$LOCK x -c 'echo a; exit 4'; echo $?`,
		"arguments":                    `$LOCK x printf '<%s>' -n 'a b' -- '*' ''; echo $?`,
		"no interpreter":               `printf 'echo read by the shell' >script; chmod +x script; $LOCK x ./script; echo $?`,
		"stdin":                        `echo in | $LOCK x cat`,
		"conflict, nonblocking":        `$LOCK x sh -c '$LOCK -n -E 9 x echo no; echo $?'; echo $?`,
		"conflict, timeout":            `$LOCK x sh -c '$LOCK -w 0.2 -E 9 x echo no; echo $?'; echo $?`,
		"conflict, zero timeout":       `$LOCK x sh -c '$LOCK -w 0 -E 9 x echo no; echo $?'; echo $?`,
		"conflict, long form":          `$LOCK x sh -c '$LOCK --nonblock --conflict-exit-code 9 x echo no; echo $?'`,
		"wait, free in time":           `$LOCK x sh -c 'touch held; sleep 0.5; echo first' & while ! test -e held; do sleep 0.01; done; $LOCK -w 300 x echo second; wait`,
		"one after another":            `for i in 1 2 3; do $LOCK -n x echo $i; done`,
		"alternative":                  `$LOCK x sh -c '$LOCK -n x true || echo "the lock is held"'`,
		"two locks":                    `$LOCK x $LOCK -n y echo both`,
		"path":                         `$LOCK $PWD/x sh -c '$LOCK -n -E 9 ./x echo no; echo $?'; $LOCK ./x echo $?`,
		"path in the parent directory": `mkdir d; cd d; $LOCK ../x sh -c 'cd ..; $LOCK -n -E 9 ./x echo no; echo $?'`,
		"flags without effect":         `$LOCK -x -o ./x echo a; $LOCK -e ./x echo b; $LOCK --exclusive --close ./x echo c; $LOCK -xn ./x echo d`,
		"shared":                       `$LOCK -s ./x $LOCK --shared ./x echo both; $LOCK ./x $LOCK -s -n -E 9 ./x echo no; echo $?`,
		"exclusive behind shared":      `$LOCK -s ./x $LOCK -n -E 9 -x ./x echo no; echo $?; $LOCK -sn ./x echo free`,
		"other names of flags":         `$LOCK ./x sh -c '$LOCK --nb -E 9 ./x echo no; echo $?; $LOCK --timeout 0.2 -E 8 ./x echo no; echo $?'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compare(t, script, shared(t).url, "LOCK="+flock, "LOCK="+stile+" run")
		})
	}
}

// Flags of flock(1) that stile does not support are refused with an explanation.
func TestRun_unsupportedFlockFlags(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.setenv("STILE_URL", "etcd://127.0.0.1:1") // nothing listens there, so using the store would fail with another error
	for _, c := range []struct {
		args  []string
		parts []string
	}{
		{[]string{"-u", "9"}, []string{"--unlock", "no file descriptor"}},
		{[]string{"-F", "x", "true"}, []string{"--no-fork", "has to stay"}},
		{[]string{"-n", "9"}, []string{`"9"`, "no form for file descriptors"}},
		{[]string{"-E", "foo", "x", "true"}, []string{`invalid argument "foo" for "-E, --conflict-exit-code" flag: must be a number from 0 to 255`}},
		{[]string{"/", "true"}, []string{"invalid lock name"}},
	} {
		m.run(c.args...).expectExit(125, c.parts...)
	}
}

// Scripts written for timeout(1) behave the same with "stile run --run-timeout". $TOOL is either of
// them.
func TestRun_timeoutScripts(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("timeout"); err != nil {
		t.Skipf("SKIPPED: this test needs timeout: %v", err)
	}
	const limit = `limit() { if test $TOOL = timeout; then timeout "$@"; else
		duration=$1; shift; $TOOL run --run-timeout $duration --ttl 300 -k 110 x -- "$@"; fi; }; `
	for name, script := range map[string]string{
		"in time":              `limit 300 sh -c 'echo done; exit 3'; echo $?`,
		"too long":             `limit 0.3 sleep 60; echo $?`,
		"no limit":             `limit 0 sh -c 'sleep 0.1; exit 3'; echo $?`,
		"exit code of its own": `limit 20 sh -c 'trap "echo TERM; exit 7" TERM; ` + sleepLoop + `'; echo $?`,
		"not found":            `limit 300 no-such-command; echo $?`,
		"no executable":        `touch file; limit 300 ./file; echo $?`,
		"killed by signal":     `limit 300 sh -c 'kill -KILL $$'; echo $?`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compare(t, limit+script, shared(t).url, "TOOL=timeout", "TOOL="+stile)
		})
	}
}

// compare runs a script once with each of the variables, and checks that it prints the same.
func compare(t *testing.T, script, url string, vars ...string) {
	t.Helper()
	var commands []*command
	for _, v := range vars {
		m := newMachine(t)
		m.setenv("STILE_URL", url)
		c := m.command()
		name, value, _ := strings.Cut(v, "=")
		c.Env = append(c.Env, name+"="+value)
		c.Path, c.Args = "/bin/sh", []string{"sh", "-c", "export " + name + "; " + script}
		commands = append(commands, c.spawn())
	}
	var printed []string
	for i, c := range commands {
		if code := c.exitCode(); code != 0 {
			t.Errorf("with %s the script's exit code is %d: %s", vars[i], code, c.stderr)
		}
		printed = append(printed, c.stdout.String())
	}
	for i, p := range printed[1:] {
		if p != printed[0] {
			t.Errorf("with %s the script prints\n%swith %s\n%s", vars[0], printed[0], vars[i+1], p)
		}
	}
}
