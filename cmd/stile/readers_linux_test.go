package main_test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	lib "github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
)

// stile runs stile with these arguments and waits until it ends.
func (m *machine) stile(args ...string) *command {
	m.t.Helper()
	c := m.command(args...).spawn()
	c.exitCode()
	return c
}

// expectOutput checks that a command succeeds and prints want.
func (c *command) expectOutput(want string) {
	c.m.t.Helper()
	c.expectExit(0)
	if got := c.stdout.String(); got != want {
		c.m.t.Errorf("%v: got:\n%swant:\n%s", c.Args[1:], got, want)
	}
}

// show returns a lock's line, as programs read it.
func (m *machine) show(name string) lib.Line {
	m.t.Helper()
	c := m.stile("show", "-o", "json", name)
	c.expectExit(0)
	return decodeJSON[lib.Line](m.t, c.stdout.Bytes())
}

// decodeJSON decodes JSON. Undocumented fields are an error.
func decodeJSON[T any](t testing.TB, text []byte) (v T) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// startWaiter starts stile run with a command that does nothing. It returns when the line has n
// waiters.
func (m *machine) startWaiter(n int, name string, args ...string) *command {
	m.t.Helper()
	c := m.runCommand(append(slices.Clone(args), name, "--", "true")...).spawn()
	eventually(m.t, fmt.Sprintf("waiter %d", n), func() bool { return len(m.show(name).Waiters) == n })
	return c
}

func pids(entries []lib.Entry) (all []int) {
	for _, e := range entries {
		all = append(all, e.Owner.PID)
	}
	return all
}

func TestShow_holderAndWaiters(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	began := time.Now()
	holder := m.start(sleepScript, "--label", "team=web", "--label", "env=a=b", "--reason", "release \"1.2\"\n", "orders/42")
	first, second := m.startWaiter(1, "orders/42"), m.startWaiter(2, "orders/42")
	other := m.start(sleepScript, "orders")

	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	// The remaining TTL of a session is left out if the store does not answer within a second.
	var line lib.Line
	eventually(t, "remaining TTLs of all entries", func() bool {
		line = m.show("orders/42")
		return !slices.ContainsFunc(append(slices.Clone(line.Holders), line.Waiters...), func(e lib.Entry) bool { return e.Remaining == 0 })
	})
	if got, want := fmt.Sprint(pids(line.Holders), pids(line.Waiters)),
		fmt.Sprint([]int{holder.Process.Pid}, []int{first.Process.Pid, second.Process.Pid}); got != want {
		t.Errorf("got line %s, want %s", got, want)
	}
	owner := line.Holders[0].Owner
	if since := owner.Since; since.Before(began) || since.After(time.Now()) {
		t.Errorf("the holder joined at %v, want a time between %v and now", since, began)
	}
	if obtained := owner.Obtained; !obtained.IsZero() && (obtained.Before(owner.Since) || obtained.After(time.Now())) {
		t.Errorf("got Obtained %[2]v, want a time between Since (%[1]v) and now", owner.Since, obtained)
	}
	if got, want := fmt.Sprintf("%q", fmt.Sprint(owner.Host, owner.User, owner.Command, owner.Reason, owner.Labels)),
		fmt.Sprintf("%q", fmt.Sprint(host, me.Username, "sh", "release \"1.2\"\n", map[string]string{"team": "web", "env": "a=b"})); got != want {
		t.Errorf("got holder %s, want %s", got, want)
	}
	all := append(line.Holders, line.Waiters...)
	for i, e := range all {
		if e.Token == 0 || i > 0 && e.Token <= all[i-1].Token || e.Session == "" || e.Remaining <= 0 || e.Remaining > 5*time.Minute {
			t.Errorf("entry %d has an invalid token, session or remaining TTL: %+v", i, e)
		}
	}

	runUntilComplete := func(args ...string) (c *command) {
		t.Helper()
		eventually(t, "remaining TTLs of all entries", func() bool {
			c = m.stile(args...)
			c.expectExit(0)
			return strings.Count(c.stdout.String(), "s left") == len(all) || args[0] == "ls" && !strings.Contains(c.stdout.String(), "?")
		})
		return c
	}
	var c *command
	id := fmt.Sprintf(`%s@%s pid `, me.Username, host)
	entry := `%s%d \(%s\)
          token %d, exclusive, %s, session \w+ has [0-9ms]+ left
`
	const held, waits = `held for [0-9ms]+(, waited [0-9ms]+)?`, `in line for [0-9ms]+`
	eventually(t, "time of admission of both holders", func() bool {
		return !m.show("orders/42").Holders[0].Owner.Obtained.IsZero() && !m.show("orders").Holders[0].Owner.Obtained.IsZero()
	})
	c = runUntilComplete("show", "orders/42")
	want := "lock orders/42: held, 2 waiting\nholder    " + fmt.Sprintf(entry, id, holder.Process.Pid, "sh", all[0].Token, held) +
		"          reason: release \"1.2\"\\\\n\n          label: env=a=b\n          label: team=web\n" +
		"waiter 1  " + fmt.Sprintf(entry, id, first.Process.Pid, "true", all[1].Token, waits) +
		"waiter 2  " + fmt.Sprintf(entry, id, second.Process.Pid, "true", all[2].Token, waits)
	if !regexp.MustCompile("^" + want + "$").MatchString(c.stdout.String()) {
		t.Errorf("show: got:\n%swant a match for:\n%s", c.stdout, want)
	}

	c = runUntilComplete("ls")
	var rows []string
	for row := range strings.Lines(c.stdout.String()) {
		rows = append(rows, strings.Join(strings.Fields(row), " "))
	}
	row := `%s ` + id + `%d \(sh\) [0-9ms]+ [0-9ms]+ %d`
	table := "^NAME HOLDER AGE LEFT WAITING\n" + fmt.Sprintf(row, "orders", other.Process.Pid, 0) + "\n" +
		fmt.Sprintf(row, "orders/42", holder.Process.Pid, 2) + "$"
	if !regexp.MustCompile(table).MatchString(strings.Join(rows, "\n")) {
		t.Errorf("ls: got:\n%swant a match for:\n%s", c.stdout, table)
	}
	c = m.stile("ls", "orders/", "-o", "json")
	c.expectExit(0)
	if lines := decodeJSON[[]lib.Line](t, c.stdout.Bytes()); len(lines) != 1 || lines[0].Name != "orders/42" || len(lines[0].Waiters) != 2 {
		t.Errorf("ls orders/: got %s, want one line with two waiters", c.stdout)
	}
}

func TestShow_foreignClient(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	cli := s.client(t)
	session, err := concurrency.NewSession(cli, concurrency.WithTTL(60))
	if err != nil {
		t.Fatal(err)
	}
	if err := concurrency.NewMutex(session, "demo").Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := cli.Put(t.Context(), "demo/stray", "nobody's"); err != nil {
		t.Fatal(err)
	}
	foreign := fmt.Sprintf("unknown client, session %x", session.Lease())
	for _, args := range [][]string{{"ls"}, {"show", "demo"}} {
		c := m.stile(args...)
		c.expectExit(0)
		if !strings.Contains(c.stdout.String(), foreign) {
			t.Errorf("%v does not show %q:\n%s", args, foreign, c.stdout)
		}
	}
	if stdout := m.stile("show", "demo").stdout.String(); !strings.Contains(stdout, "\nremark  key \""+s.prefix+"demo/stray\" is not an entry") {
		t.Errorf("show does not report the stray key:\n%s", stdout)
	}
	m.stile("wait", "-n", "demo").expectExit(75, `"demo"`, foreign)
	m.stile("break", "demo").expectExit(125, foreign, "--token")
}

func TestCommands_freeLock(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	for _, url := range []string{"local:", "mem:", s.url} {
		m.setenv("STILE_URL", url)
		m.stile("ls").expectOutput("")
		m.stile("ls", "-o", "json", "deploy").expectOutput("[]\n")
		m.stile("show", "demo").expectOutput("lock demo: free\n")
		m.stile("show", "-o", "json", "demo").expectOutput("{\n  \"name\": \"demo\",\n  \"holders\": [],\n  \"waiters\": []\n}\n")
		m.stile("wait", "demo").expectOutput("")
		m.stile("wait", "-n", "demo").expectOutput("")
		m.stile("wait", "-o", "json", "demo").expectOutput("{\n  \"name\": \"demo\",\n  \"holders\": [],\n  \"waiters\": []\n}\n")
		m.stile("break", "demo", "--token", "34816").expectExit(1, `"demo"`, "34816", "nothing changed")
		m.stile("break", "demo").expectExit(125, `"demo"`, "--token is required", "nobody holds")
	}
	if m.serverPID() == 0 {
		t.Error("no local server was started")
	}
}

func TestLs_emptyOnTerminal(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.setenv("STILE_URL", "mem:")
	for prefix, want := range map[string]string{"": "stile: no lock is held\r\n", "x": `whose name begins with "x"`} {
		c := m.atTerminal("sh", "-c", `"$0" ls $1; echo code $?`, stile, prefix)
		c.awaitScreen(want)
		c.awaitScreen("code 0")
	}
}

func TestCommands_invalidArguments(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.setenv("STILE_URL", "etcd://127.0.0.1:1") // nothing listens there, so using the store would fail with another error
	var all []*command
	uses := []struct{ line, want string }{
		{"show", "missing lock name: stile show [flags] NAME; see stile show --help"},
		{"wait", "missing lock name"},
		{"break --token 1", "missing lock name"},
		{"show a b", `unexpected argument "b"`},
		{"ls a b", `unexpected argument "b": stile ls [flags] [PREFIX]; see stile ls --help`},
		{"watch a b", `unexpected argument "b"`},
		{"ls a\a", `invalid lock name prefix "a\a"`},
		{"watch a\a", `invalid lock name prefix "a\a"`},
		{"ls -o yaml", `invalid argument "yaml" for "-o, --output" flag: must be text or json; see stile ls --help`},
		{"break a --token x", `invalid argument "x" for "--token"`},
		{"break a --token -1", `invalid argument "-1" for "--token"`},
		{"wait -n -w 1 a", "-n and -w contradict each other"},
		{"wait -w -1 a", "negative"},
		{"ls", "127.0.0.1:1"},
		{"show a", "127.0.0.1:1"},
		{"watch", "127.0.0.1:1"},
		{"wait a", "127.0.0.1:1"},
		{"break a --token 1", "127.0.0.1:1"},
	}
	for _, use := range uses {
		all = append(all, m.command(strings.Split(use.line, " ")...).spawn())
	}
	for i, use := range uses {
		all[i].expectExit(125, use.want)
	}
}

func TestHelp_readCommandsHaveExamples(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, verb := range []string{"ls", "show", "watch", "wait", "break", "graph", "slots", "top", "trace"} {
		c := m.stile(verb, "--help")
		c.expectExit(0)
		if !strings.Contains(c.stdout.String(), "Examples:\n") || !strings.Contains(c.stdout.String(), "\n  stile "+verb+" ") {
			t.Errorf("the help of %s has no examples:\n%s", verb, c.stdout)
		}
	}
}

func TestShow_writeError(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.setenv("STILE_URL", "mem:")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	c := m.command("show", "demo")
	c.Cmd.Stdout = full
	c.spawn().expectExit(125, "no space left")
}

func TestBreak_holder(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	broken := m.start(trapTermScript, "-k", "110", "demo")
	next := m.startWaiter(1, "demo")
	line := m.show("demo")
	token, wrong := strconv.FormatUint(line.Holders[0].Token, 10), strconv.FormatUint(line.Holders[0].Token-256, 10)
	owner := fmt.Sprintf("pid %d (sh)", broken.Process.Pid)

	m.stile("break", "demo").expectExit(125, `"demo"`, owner, "--token "+token)
	m.stile("break", "demo", "--token", wrong).expectExit(1, `"demo"`, wrong, "nothing changed", "stile show demo")
	m.stile("break", "other", "--token", token).expectExit(1, `"other"`)
	if after := m.show("demo"); fmt.Sprint(pids(after.Holders), pids(after.Waiters)) != fmt.Sprint(pids(line.Holders), pids(line.Waiters)) {
		t.Errorf("with a wrong token: got line %+[2]v, want it unchanged: %+[1]v", line, after)
	}

	c := m.stile("break", "demo", "--token", token)
	c.expectExit(0)
	if got, want := c.stdout.String(), owner+" from lock demo: token "+token+", exclusive, held for "; !strings.HasPrefix(got, "removed holder ") ||
		!strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("break: got %q, want one line with %q", got, want)
	}
	broken.expectExit(79, `"demo"`, "was broken, or its lease expired", "stopping the command")
	if got := m.read("log"); got != "TERM\n" {
		t.Errorf("got log %q of the command whose hold was broken, want one TERM", got)
	}
	next.expectExit(0)
	m.stile("break", "demo", "--token", token).expectExit(1, "nothing changed")
}

func TestBreak_waiter(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	holder := m.start(sleepScript, "demo")
	first, second := m.startWaiter(1, "demo"), m.startWaiter(2, "demo")
	token := m.show("demo").Waiters[0].Token
	c := m.stile("break", "demo", "--token", strconv.FormatUint(token, 10), "-o", "json")
	c.expectExit(0)
	broken := decodeJSON[struct {
		Name string `json:"name"`
		lib.Entry
	}](t, c.stdout.Bytes())
	if broken.Name != "demo" || broken.Token != token || broken.Owner.PID != first.Process.Pid {
		t.Errorf("break: got %s, want the entry of process %d with token %d", c.stdout, first.Process.Pid, token)
	}
	want := fmt.Sprint([]int{second.Process.Pid, first.Process.Pid})
	eventually(t, "removed waiter at the end of the line", func() bool { return fmt.Sprint(pids(m.show("demo").Waiters)) == want })

	text := m.stile("break", "demo", "--token", strconv.FormatUint(m.show("demo").Waiters[0].Token, 10))
	if text.expectExit(0); !strings.HasPrefix(text.stdout.String(), "removed waiter ") {
		t.Errorf("break: got %q, want removed waiter", text.stdout)
	}
	eventually(t, "both waiters in line", func() bool { return len(m.show("demo").Waiters) == 2 })
	holder.signal(syscall.SIGTERM)
	holder.expectExit(128 + 15)
	first.expectExit(0)
	second.expectExit(0)
}

// Other clients choose lock names freely. The name that ls prints must be usable as an argument of
// show, wait and break.
func TestCommands_foreignNames(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	cli := s.client(t)
	names := map[string]string{
		"/a": `"/a"`, "a/": "a/", "b//c": "b//c", "two\nlines": `"two\nlines"`, "\xff\xfe": `"\xff\xfe"`, "./x": `"./x"`, `"q"`: `"\"q\""`,
		"tab\there": `"tab\there"`, "bidi\u202e": `"bidi\u202e"`, "plain": "plain", " space ": `" space "`,
	}
	for name := range names {
		lease, err := cli.Grant(t.Context(), 600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cli.Put(t.Context(), fmt.Sprintf("%s/%x", name, lease.ID), "", clientv3.WithLease(lease.ID)); err != nil {
			t.Fatal(err)
		}
	}
	c := m.stile("ls", "-o", "json")
	c.expectExit(0)
	lines := decodeJSON[[]struct {
		lib.Line
		Argument string `json:"argument"`
	}](t, c.stdout.Bytes())
	if len(lines) != len(names) {
		t.Fatalf("ls: got %s, want all names", c.stdout)
	}
	table := m.stile("ls").stdout.String()
	for _, l := range lines {
		arg := cmp.Or(l.Argument, l.Name)
		if !slices.Contains(slices.Collect(maps.Values(names)), arg) || !strings.Contains(table, "\n"+arg+" ") {
			t.Errorf("%q has the argument %s, which is unexpected or not in the table:\n%s", l.Name, arg, table)
		}
		shown := m.stile("show", arg)
		if shown.expectExit(0); !strings.HasPrefix(shown.stdout.String(), "lock "+arg+": held\n") {
			t.Errorf("show %s: got %s", arg, shown.stdout)
		}
		m.stile("wait", "-n", arg).expectExit(75, "is held by")
		broken := m.stile("break", arg, "--token", strconv.FormatUint(l.Holders[0].Token, 10))
		if broken.expectExit(0); !strings.Contains(broken.stdout.String(), "from lock "+arg+": ") {
			t.Errorf("break %s: got %s", arg, broken.stdout)
		}
	}
	m.stile("ls").expectOutput("")
}

func TestCommands_paths(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.start(trapTermScript, "./x.lock")
	name := strings.TrimPrefix(m.path("x.lock"), "/")
	for _, arg := range []string{"./x.lock", m.path("x.lock"), name, "../" + filepath.Base(m.dir) + "/x.lock"} {
		if l := m.show(arg); l.Name != name || len(l.Holders) != 1 {
			t.Errorf("show %s: got %+v, want one holder of the lock with the full path", arg, l)
		}
		m.run("-n", arg, "--", "true").expectExit(75, strconv.Quote(name)+" is held by")
		m.stile("wait", "-n", arg).expectExit(75, strconv.Quote(name)+" is held by")
	}
	for _, prefix := range []string{"./", "./x", m.dir + "/", "/"} {
		if ls := m.stile("ls", prefix); ls.exitCode() != 0 || strings.Count(ls.stdout.String(), "\n") != 2 {
			t.Errorf("ls %s: got %s%s, want one lock", prefix, ls.stdout, ls.stderr)
		}
	}
	m.expectCompletions([]string{"./x.lock"}, "show", "./x")
	m.stile("break", "./x.lock", "--token", strconv.FormatUint(m.show(name).Holders[0].Token, 10)).expectExit(0)
	c.expectExit(79, "was broken")
}

// startWatch starts a stile watch that writes to a file.
func (m *machine) startWatch(file string, args ...string) *command {
	m.t.Helper()
	out, err := os.Create(m.path(file))
	if err != nil {
		m.t.Fatal(err)
	}
	defer out.Close()
	c := m.command(append([]string{"watch"}, args...)...)
	c.Cmd.Stdout = out
	return c.spawn()
}

func TestWatch_handOver(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	previous := m.start(sleepScript, "deploy/web")
	w, wj := m.startWatch("events", "deploy/"), m.startWatch("objects", "-o", "json", "deploy/")
	m.awaitFile("events", "deploy/web  holds")
	type object struct {
		Time time.Time `json:"time"`
		lib.Line
	}
	objects := func() (all []object, states []string) {
		for text := range strings.Lines(m.read("objects")) {
			if strings.HasSuffix(text, "\n") {
				o := decodeJSON[object](t, []byte(text))
				all, states = append(all, o), append(states, fmt.Sprint(pids(o.Holders), pids(o.Waiters)))
			}
		}
		return all, slices.Compact(states) // a holder that adds its time of admission is a change too
	}
	// Both commands have to print a state before the next change: watch may skip states that end at
	// once.
	seen := 0
	awaitState := func() {
		t.Helper()
		seen++
		eventually(t, fmt.Sprintf("%d states", seen), func() bool { _, states := objects(); return len(states) >= seen })
	}
	awaitState()

	next := m.runCommand("deploy/web", "--", "sh", "-c", "read end <end").spawn()
	m.awaitFile("events", "deploy/web  waits")
	awaitState()
	m.run("elsewhere", "--", "true").expectExit(0)
	line := m.show("deploy/web")
	previous.signal(syscall.SIGTERM)
	previous.expectExit(128 + 15)
	m.awaitFile("events", fmt.Sprintf("deploy/web  holds  token %d", line.Waiters[0].Token))
	awaitState()
	m.endScript()
	next.expectExit(0)
	m.awaitFile("events", fmt.Sprintf("deploy/web  ended  token %d", line.Waiters[0].Token))
	m.awaitFile("objects", `"holders":[],"waiters":[]}`)

	a := fmt.Sprintf("token %d  %v", line.Holders[0].Token, line.Holders[0].Owner)
	b := fmt.Sprintf("token %d  %v", line.Waiters[0].Token, line.Waiters[0].Owner)
	want := "T  deploy/web  holds  " + a + "\nT  deploy/web  waits  " + b + "\nT  deploy/web  ended  " + a +
		"\nT  deploy/web  holds  " + b + "\nT  deploy/web  ended  " + b + "\n"
	got := regexp.MustCompile(`(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`).ReplaceAllString(m.read("events"), "T")
	if got != want {
		t.Errorf("watch: got:\n%swant:\n%s", got, want)
	}
	all, states := objects()
	var last time.Time
	for _, o := range all {
		if o.Name != "deploy/web" || o.Time.Before(last) || time.Since(o.Time) > testTimeout {
			t.Errorf("got lock %q at %v after one at %v", o.Name, o.Time, last)
		}
		last = o.Time
	}
	one, two := previous.Process.Pid, next.Process.Pid
	if got, want := strings.Join(states, ", "), fmt.Sprintf("[%d] [], [%d] [%d], [%d] [], [] []", one, one, two, two); got != want {
		t.Errorf("watch -o json: got states %s, want %s", got, want)
	}

	// watch ends by the signal, like tail -f: the shell's exit status is 130 and 143.
	w.signal(syscall.SIGINT)
	wj.signal(syscall.SIGTERM)
	for c, sig := range map[*command]syscall.Signal{w: syscall.SIGINT, wj: syscall.SIGTERM} {
		c.expectExit(-1)
		if status := c.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != sig {
			t.Errorf("%v: got %v, want signal %v", c.Args, c.ProcessState, sig)
		}
	}
}

// A reader may end after the first event, as head -n 1 does. watch must notice that before the next
// event.
func TestWatch_closedPipe(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.start(sleepScript, "demo")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := m.command("watch")
	c.Cmd.Stdout = w
	c.spawn()
	w.Close()
	event, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || !strings.Contains(event, "demo  holds") {
		t.Errorf("got %q, %v, want the event of the holder", event, err)
	}
	r.Close()
	c.expectExit(128 + int(syscall.SIGPIPE))
}

func TestCommands_storeOutage(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	args := []string{"--listen", testservers.FreeAddress(t), "--data", m.path("data")}
	s := m.serve(args...)
	url := s.readyValue("url")
	m.setenv("STILE_URL", url)
	cli := client(t, strings.TrimPrefix(url, "etcd://"))
	putHolder(t, cli, "demo")
	watch := m.command()
	watch.Path, watch.Args = "/bin/sh", []string{"sh", "-c", `exec "$0" watch >events 2>errors`, stile}
	watch.spawn()
	m.awaitFile("events", "demo  holds")
	wait := m.atTerminal("sh", "-c", `"$0" wait demo; echo code $?`, stile)
	wait.awaitScreen("; waited ")

	s.kill()
	m.awaitFile("errors", "; trying again\n")
	wait.awaitScreen("; trying again\r\n")
	wait.awaitScreen("; waited ")
	m.serve(args...)
	m.awaitFile("errors", "stile: the store can be read again\n")
	wait.awaitScreen("stile: the store can be read again\r\n")

	evict(t, cli, "demo")
	m.awaitFile("events", "demo  ended")
	wait.awaitScreen("code 0")
	if stderr := m.read("errors"); strings.Count(stderr, "\n") != 2 {
		t.Errorf("got %s, want one line about the outage and one about its end", stderr)
	}
}

func TestWait_returnsWhenFree(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	holder := m.start(sleepScript, "demo")
	next := m.runCommand("demo", "--", "sh", "-c", "touch holding; read end <end").spawn()
	waiters := []*command{
		m.command("wait", "demo").spawn(),
		m.command("wait", "-w", "300", "demo").spawn(),
		m.command("wait", "-o", "json", "demo").spawn(),
	}
	eventually(t, "a waiter", func() bool { return len(m.show("demo").Waiters) == 1 })
	holder.signal(syscall.SIGTERM)
	holder.expectExit(128 + 15)
	eventually(t, "the next holder", func() bool { return m.exists("holding") })
	if line := m.show("demo"); len(line.Waiters) > 0 {
		t.Errorf("stile wait has joined the line: %+v", line)
	}
	endedHold := time.Now()
	m.endScript()
	next.expectExit(0)
	for _, w := range waiters {
		if w.expectExit(0); w.ended.Before(endedHold) {
			t.Errorf("%v ended while the lock was held", w.Args)
		}
	}
	if line := decodeJSON[lib.Line](t, waiters[2].stdout.Bytes()); line.Name != "demo" || len(line.Holders) != 0 {
		t.Errorf("wait -o json: got %s", waiters[2].stdout)
	}
}

func TestWait_timeout(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	holder := m.start(sleepScript, "demo")
	heldBy := fmt.Sprintf("held by %s", m.show("demo").Holders[0].Owner)
	m.stile("wait", "-n", "demo").expectExit(75, `"demo"`, heldBy)
	m.stile("wait", "--nonblock", "demo").expectExit(75, `"demo"`, heldBy)
	m.stile("wait", "-w", "0", "demo").expectExit(75, `"demo"`, heldBy)
	began := time.Now()
	m.stile("wait", "-w", "0.2", "demo").expectExit(75, `"demo"`, "200ms", heldBy)
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("gave up after %v, want 200ms or more", took)
	}
	c := m.stile("wait", "--wait", "1ms", "-o", "json", "demo")
	c.expectExit(75, `"demo"`, heldBy)
	if line := decodeJSON[lib.Line](t, c.stdout.Bytes()); fmt.Sprint(pids(line.Holders)) != fmt.Sprint([]int{holder.Process.Pid}) {
		t.Errorf("wait -o json: got %s", c.stdout)
	}
}

func TestWait_signals(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.start(sleepScript, "--url", s.url, "demo")
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		c := m.command("wait", "--url", s.url, "demo").spawn()
		eventually(t, "a connection", func() bool { return len(ipSockets(t, c.Process.Pid)) > 0 }) // by then the command handles signals
		c.signal(sig)
		c.expectExit(128 + int(sig))
	}
}

func TestWait_onTerminal(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	holder := m.start(sleepScript, "demo")
	c := m.atTerminal("sh", "-c", `"$0" wait demo; echo code $?`, stile)
	c.awaitScreen(`"demo": held by `)
	c.awaitScreen(fmt.Sprintf("pid %d (sh) since ", holder.Process.Pid))
	c.awaitScreen("; waited ") // the line is updated each second
	c.awaitScreen("; waited ")
	holder.signal(syscall.SIGTERM)
	c.awaitScreen("\r\x1b[K")
	c.awaitScreen("code 0\r\n")
}
