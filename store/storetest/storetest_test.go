package storetest_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/store/storetest"
	"github.com/stilelock/stile/store/storetest/internal/broken"
)

// The tests check that the suite fails, and a failing test fails its whole binary. So the binary
// runs itself with the name of a bug in its environment, and TestSuite then runs the suite on the
// store with that bug.
const plantedBug = "STORETEST_PLANTED_BUG"

func TestSuite(t *testing.T) {
	plant := func(m *memstore.Store) store.Store { return m }
	if name := os.Getenv(plantedBug); name != "" {
		plant = bugNamed(t, name).Plant
	}
	stores := make(map[store.Store]*memstore.Store)
	storetest.Run(t, storetest.Harness{
		Open: func(*testing.T) store.Store {
			m := memstore.New()
			st := &planted{plant(m)}
			stores[st] = m
			return st
		},
		Cut: func(_ *testing.T, st store.Store, session string) (heal func()) {
			return cutOff(stores[st], session)
		},
		Run: synctest.Test, TTL: time.Hour, Grace: grace,
	})
}

const grace = time.Minute

// planted wraps a store in a pointer, so that any store can be a map key.
type planted struct{ store.Store }

// cutOff drops all requests of a session and delays its notifications by half of Grace.
func cutOff(m *memstore.Store, session string) (heal func()) {
	m.SetFaults(func(c memstore.Call) memstore.Fault {
		switch {
		case c.Session != session:
			return memstore.Fault{}
		case c.Op == memstore.Notify:
			return memstore.Fault{Delay: grace / 2}
		default:
			return memstore.Fault{Drop: true}
		}
	})
	return func() { m.SetFaults(nil) }
}

func bugNamed(t *testing.T, name string) broken.Bug {
	t.Helper()
	for _, b := range broken.Bugs() {
		if b.Name == name {
			return b
		}
	}
	t.Fatalf("unknown bug %q", name)
	panic("unreachable")
}

func TestSuite_acceptsStoreWithoutBugs(t *testing.T) {
	t.Parallel()
	out, err := runSuite(t, "", "TestSuite")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if bytes.Contains(out, []byte("--- SKIP")) {
		t.Errorf("some tests were skipped, so this run does not show that they accept a correct store\n%s", out)
	}
	// A test that no bug has to fail may be unable to fail.
	caught := make(map[string]bool)
	for _, bug := range broken.Bugs() {
		caught["TestSuite/"+rewritten(bug.Caught)] = true
	}
	for test := range tests(out, "PASS") {
		if strings.Count(test, "/") == 2 && !caught[test] {
			t.Errorf("no bug shows that %q can fail", test)
		}
	}
}

// runSuite runs this binary again with a bug and returns its output. The timeout detects a suite
// that hangs: a failing test ends long before it.
func runSuite(t *testing.T, bug, run string) ([]byte, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var pattern []string
	for part := range strings.SplitSeq(run, "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run="+strings.Join(pattern, "/"), "-test.timeout=2m", "-test.v")
	// A race-enabled binary would sleep for a second before it exits.
	cmd.Env = append(os.Environ(), plantedBug+"="+bug, "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	if bytes.Contains(out, []byte("\npanic: ")) {
		return out, errors.New("the suite panicked")
	}
	return out, err
}

var result = regexp.MustCompile(`(?m)^\s*--- (\w+): (.+) \([0-9.]+s\)$`)

// tests returns the names of the tests with the given result, such as "PASS".
func tests(out []byte, how string) map[string]bool {
	found := make(map[string]bool)
	for _, m := range result.FindAllSubmatch(out, -1) {
		if string(m[1]) == how {
			found[string(m[2])] = true
		}
	}
	return found
}

// rewritten returns the name that package testing prints for a test.
func rewritten(name string) string { return strings.ReplaceAll(name, " ", "_") }
