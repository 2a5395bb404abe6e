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

// stile runs stile with these arguments to its end.
func (m *machine) stile(args ...string) *command {
	m.t.Helper()
	c := m.command(args...).begin()
	c.code()
	return c
}

// prints checks that a command has succeeded and what it has printed.
func (c *command) prints(want string) {
	c.m.t.Helper()
	c.wants(0)
	if got := c.stdout.String(); got != want {
		c.m.t.Errorf("%v printed:\n%swant:\n%s", c.Args[1:], got, want)
	}
}

// show reads a line as programs do.
func (m *machine) show(name string) lib.Line {
	m.t.Helper()
	c := m.stile("show", "-o", "json", name)
	c.wants(0)
	return parsed[lib.Line](m.t, c.stdout.Bytes())
}

// parsed reads JSON in which there is nothing that is not documented.
func parsed[T any](t *testing.T, text []byte) (v T) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// waiter starts stile run with a command that does nothing, and returns when it is the n-th in line after the holder.
func (m *machine) waiter(n int, name string, args ...string) *command {
	m.t.Helper()
	c := m.runner(append(slices.Clone(args), name, "--", "true")...).begin()
	eventually(m.t, fmt.Sprintf("waiter %d", n), func() bool { return len(m.show(name).Waiters) == n })
	return c
}

func pids(entries []lib.Entry) (all []int) {
	for _, e := range entries {
		all = append(all, e.Owner.PID)
	}
	return all
}

func TestReadersTellWhoHoldsAndWhoWaits(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	began := time.Now()
	holder := m.start(sleeper, "--label", "team=web", "--label", "env=a=b", "--reason", "release \"1.2\"\n", "orders/42")
	first, second := m.waiter(1, "orders/42"), m.waiter(2, "orders/42")
	other := m.start(sleeper, "orders")

	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	who, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	// How long a session has left is asked for a second, and left out if there is no answer.
	var line lib.Line
	eventually(t, "a complete reading", func() bool {
		line = m.show("orders/42")
		return !slices.ContainsFunc(append(slices.Clone(line.Holders), line.Waiters...), func(e lib.Entry) bool { return e.Remaining == 0 })
	})
	if got, want := fmt.Sprint(pids(line.Holders), pids(line.Waiters)),
		fmt.Sprint([]int{holder.Process.Pid}, []int{first.Process.Pid, second.Process.Pid}); got != want {
		t.Errorf("the line is %s, want %s", got, want)
	}
	owner := line.Holders[0].Owner
	if since := owner.Since; since.Before(began) || since.After(time.Now()) {
		t.Errorf("the holder joined at %v, want it between %v and now", since, began)
	}
	if obtained := owner.Obtained; !obtained.IsZero() && (obtained.Before(owner.Since) || obtained.After(time.Now())) {
		t.Errorf("the holder joined at %v and obtained the lock at %v", owner.Since, obtained)
	}
	if got, want := fmt.Sprintf("%q", fmt.Sprint(owner.Host, owner.User, owner.Command, owner.Reason, owner.Labels)),
		fmt.Sprintf("%q", fmt.Sprint(host, who.Username, "sh", "release \"1.2\"\n", map[string]string{"team": "web", "env": "a=b"})); got != want {
		t.Errorf("the holder is %s, want %s", got, want)
	}
	all := append(line.Holders, line.Waiters...)
	for i, e := range all {
		if e.Token == 0 || i > 0 && e.Token <= all[i-1].Token || e.Session == "" || e.Remaining <= 0 || e.Remaining > time.Minute {
			t.Errorf("entry %d is %+v", i, e)
		}
	}

	complete := func(args ...string) (c *command) {
		t.Helper()
		eventually(t, "a complete reading", func() bool {
			c = m.stile(args...)
			c.wants(0)
			return strings.Count(c.stdout.String(), "s left") == len(all) || args[0] == "ls" && !strings.Contains(c.stdout.String(), "?")
		})
		return c
	}
	var c *command
	id := fmt.Sprintf(`%s@%s pid `, who.Username, host)
	entry := `%s%d \(%s\)
          token %d, exclusive, %s, session \w+ has \d+s left
`
	const held, waits = `held for \d+s(, waited \d+s)?`, `in line for \d+s`
	eventually(t, "the holders to tell since when they have their locks", func() bool {
		return !m.show("orders/42").Holders[0].Owner.Obtained.IsZero() && !m.show("orders").Holders[0].Owner.Obtained.IsZero()
	})
	c = complete("show", "orders/42")
	want := "lock orders/42: held, 2 waiting\nholder    " + fmt.Sprintf(entry, id, holder.Process.Pid, "sh", all[0].Token, held) +
		"          reason: release \"1.2\"\\\\n\n          label: env=a=b\n          label: team=web\n" +
		"waiter 1  " + fmt.Sprintf(entry, id, first.Process.Pid, "true", all[1].Token, waits) +
		"waiter 2  " + fmt.Sprintf(entry, id, second.Process.Pid, "true", all[2].Token, waits)
	if !regexp.MustCompile("^" + want + "$").MatchString(c.stdout.String()) {
		t.Errorf("show printed:\n%swant a match for:\n%s", c.stdout, want)
	}

	c = complete("ls")
	var rows []string
	for row := range strings.Lines(c.stdout.String()) {
		rows = append(rows, regexp.MustCompile(`  +\d+s`).ReplaceAllString(strings.Join(strings.Fields(row), " "), ""))
	}
	row := `%s ` + id + `%d \(sh\) \d+s \d+s %d`
	table := "^NAME HOLDER AGE LEFT WAITING\n" + fmt.Sprintf(row, "orders", other.Process.Pid, 0) + "\n" +
		fmt.Sprintf(row, "orders/42", holder.Process.Pid, 2) + "$"
	if !regexp.MustCompile(table).MatchString(strings.Join(rows, "\n")) {
		t.Errorf("ls printed:\n%swant a match for:\n%s", c.stdout, table)
	}
	c = m.stile("ls", "orders/", "-o", "json")
	c.wants(0)
	if lines := parsed[[]lib.Line](t, c.stdout.Bytes()); len(lines) != 1 || lines[0].Name != "orders/42" || len(lines[0].Waiters) != 2 {
		t.Errorf("ls orders/ printed %s", c.stdout)
	}
}

func TestOtherClientsAreShown(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
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
		c.wants(0)
		if !strings.Contains(c.stdout.String(), foreign) {
			t.Errorf("%v does not show %q:\n%s", args, foreign, c.stdout)
		}
	}
	if said := m.stile("show", "demo").stdout.String(); !strings.Contains(said, "\nremark  key \""+s.prefix+"demo/stray\" is not an entry") {
		t.Errorf("show does not tell of the stray key:\n%s", said)
	}
	m.stile("wait", "-n", "demo").wants(75, `"demo"`, foreign)
	m.stile("break", "demo").wants(125, foreign, "--token")
}

func TestNothingIsHeld(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	for _, url := range []string{"local:", "mem:", s.url} {
		m.set("STILE_URL", url)
		m.stile("ls").prints("")
		m.stile("ls", "-o", "json", "deploy").prints("[]\n")
		m.stile("show", "demo").prints("lock demo: free\n")
		m.stile("show", "-o", "json", "demo").prints("{\n  \"name\": \"demo\",\n  \"holders\": [],\n  \"waiters\": []\n}\n")
		m.stile("wait", "demo").prints("")
		m.stile("wait", "-n", "demo").prints("")
		m.stile("wait", "-o", "json", "demo").prints("{\n  \"name\": \"demo\",\n  \"holders\": [],\n  \"waiters\": []\n}\n")
		m.stile("break", "demo", "--token", "34816").wants(1, `"demo"`, "34816", "nothing changed")
		m.stile("break", "demo").wants(125, `"demo"`, "--token is required", "nobody holds")
	}
	if m.server() == 0 {
		t.Error("no local server was started for the readers")
	}
}

func TestAtATerminalAnEmptyListIsExplained(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.set("STILE_URL", "mem:")
	for prefix, want := range map[string]string{"": "stile: no lock is held\r\n", "x": `whose name begins with "x"`} {
		c := m.at("sh", "-c", `"$0" ls $1; echo code $?`, stile, prefix)
		c.sees(want)
		c.sees("code 0")
	}
}

func TestBadUseOfTheReaders(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.set("STILE_URL", "etcd://127.0.0.1:1") // where nothing listens: asking it would be another error
	var all []*command
	uses := []struct{ line, said string }{
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
		all = append(all, m.command(strings.Split(use.line, " ")...).begin())
	}
	for i, use := range uses {
		all[i].wants(125, use.said)
	}
}

func TestHelpOfTheReadersHasExamples(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, verb := range []string{"ls", "show", "watch", "wait", "break"} {
		c := m.stile(verb, "--help")
		c.wants(0)
		if !strings.Contains(c.stdout.String(), "Examples:\n") || !strings.Contains(c.stdout.String(), "\n  stile "+verb+" ") {
			t.Errorf("the help of %s has no examples:\n%s", verb, c.stdout)
		}
	}
}

func TestWhatCannotBeWrittenIsAFailure(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.set("STILE_URL", "mem:")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	c := m.command("show", "demo")
	c.Cmd.Stdout = full
	c.begin().wants(125, "no space left")
}

func TestBreakingAHoldStopsItsCommand(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	victim := m.start(listening, "demo")
	next := m.waiter(1, "demo")
	line := m.show("demo")
	token, wrong := strconv.FormatUint(line.Holders[0].Token, 10), strconv.FormatUint(line.Holders[0].Token-256, 10)
	who := fmt.Sprintf("pid %d (sh)", victim.Process.Pid)

	m.stile("break", "demo").wants(125, `"demo"`, who, "--token "+token)
	m.stile("break", "demo", "--token", wrong).wants(1, `"demo"`, wrong, "nothing changed", "stile show demo")
	m.stile("break", "other", "--token", token).wants(1, `"other"`)
	if after := m.show("demo"); fmt.Sprint(pids(after.Holders), pids(after.Waiters)) != fmt.Sprint(pids(line.Holders), pids(line.Waiters)) {
		t.Errorf("a wrong token has changed the line %+v to %+v", line, after)
	}

	c := m.stile("break", "demo", "--token", token)
	c.wants(0)
	if got, want := c.stdout.String(), who+" from lock demo: token "+token+", exclusive, in line for "; !strings.HasPrefix(got, "removed holder ") ||
		!strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("break printed %q, want one line with %q", got, want)
	}
	victim.wants(79, `"demo"`, "was broken, or its lease expired", "stopping the command")
	if got := m.read("log"); got != "told\n" {
		t.Errorf("the victim's command was not asked to end: %q", got)
	}
	next.wants(0)
	m.stile("break", "demo", "--token", token).wants(1, "nothing changed")
}

func TestBreakingAWaiterSendsItToTheEndOfTheLine(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	holder := m.start(sleeper, "demo")
	first, second := m.waiter(1, "demo"), m.waiter(2, "demo")
	token := m.show("demo").Waiters[0].Token
	c := m.stile("break", "demo", "--token", strconv.FormatUint(token, 10), "-o", "json")
	c.wants(0)
	broken := parsed[struct {
		Name string `json:"name"`
		lib.Entry
	}](t, c.stdout.Bytes())
	if broken.Name != "demo" || broken.Token != token || broken.Owner.PID != first.Process.Pid {
		t.Errorf("break printed %s, want the entry of process %d with token %d", c.stdout, first.Process.Pid, token)
	}
	want := fmt.Sprint([]int{second.Process.Pid, first.Process.Pid})
	eventually(t, "the broken one at the end", func() bool { return fmt.Sprint(pids(m.show("demo").Waiters)) == want })

	text := m.stile("break", "demo", "--token", strconv.FormatUint(m.show("demo").Waiters[0].Token, 10))
	if text.wants(0); !strings.HasPrefix(text.stdout.String(), "removed waiter ") {
		t.Errorf("of a waiter break printed %q", text.stdout)
	}
	eventually(t, "both in line", func() bool { return len(m.show("demo").Waiters) == 2 })
	holder.signal(syscall.SIGTERM)
	holder.wants(128 + 15)
	first.wants(0)
	second.wants(0)
}

// Other clients call their locks as they like. What ls prints of it is what show, wait and break take.
func TestWhateverIsListedCanBeShownAndBroken(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
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
	c.wants(0)
	lines := parsed[[]struct {
		lib.Line
		Argument string `json:"argument"`
	}](t, c.stdout.Bytes())
	if len(lines) != len(names) {
		t.Fatalf("ls lists %s", c.stdout)
	}
	table := m.stile("ls").stdout.String()
	for _, l := range lines {
		arg := cmp.Or(l.Argument, l.Name)
		if !slices.Contains(slices.Collect(maps.Values(names)), arg) || !strings.Contains(table, "\n"+arg+" ") {
			t.Errorf("%q is listed as %s, which is not as expected, or not what the table has:\n%s", l.Name, arg, table)
		}
		shown := m.stile("show", arg)
		if shown.wants(0); !strings.HasPrefix(shown.stdout.String(), "lock "+arg+": held\n") {
			t.Errorf("show %s prints %s", arg, shown.stdout)
		}
		m.stile("wait", "-n", arg).wants(75, "is held by")
		broken := m.stile("break", arg, "--token", strconv.FormatUint(l.Holders[0].Token, 10))
		if broken.wants(0); !strings.Contains(broken.stdout.String(), "from lock "+arg+": ") {
			t.Errorf("break %s prints %s", arg, broken.stdout)
		}
	}
	m.stile("ls").prints("")
}

func TestAPathIsTheSameLockForEveryVerb(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	c := m.start(listening, "./x.lock")
	name := strings.TrimPrefix(m.path("x.lock"), "/")
	for _, arg := range []string{"./x.lock", m.path("x.lock"), name, "../" + filepath.Base(m.dir) + "/x.lock"} {
		if l := m.show(arg); l.Name != name || len(l.Holders) != 1 {
			t.Errorf("%s is %+v", arg, l)
		}
		m.run("-n", arg, "--", "true").wants(75, strconv.Quote(name)+" is held by")
		m.stile("wait", "-n", arg).wants(75, strconv.Quote(name)+" is held by")
	}
	for _, prefix := range []string{"./", "./x", m.dir + "/", "/"} {
		if ls := m.stile("ls", prefix); ls.code() != 0 || strings.Count(ls.stdout.String(), "\n") != 2 {
			t.Errorf("ls %s prints %s%s", prefix, ls.stdout, ls.stderr)
		}
	}
	m.offers([]string{"./x.lock"}, "show", "./x")
	m.stile("break", "./x.lock", "--token", strconv.FormatUint(m.show(name).Holders[0].Token, 10)).wants(0)
	c.wants(79, "was broken")
}

// watching is a stile watch that writes into a file.
func (m *machine) watching(file string, args ...string) *command {
	m.t.Helper()
	out, err := os.Create(m.path(file))
	if err != nil {
		m.t.Fatal(err)
	}
	defer out.Close()
	c := m.command(append([]string{"watch"}, args...)...)
	c.Cmd.Stdout = out
	return c.begin()
}

func TestWatchSeesTheHandOver(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	old := m.start(sleeper, "deploy/web")
	w, wj := m.watching("events", "deploy/"), m.watching("objects", "-o", "json", "deploy/")
	m.await("events", "deploy/web  holds")
	type object struct {
		Time time.Time `json:"time"`
		lib.Line
	}
	objects := func() (all []object, states []string) {
		for text := range strings.Lines(m.read("objects")) {
			if strings.HasSuffix(text, "\n") {
				o := parsed[object](t, []byte(text))
				all, states = append(all, o), append(states, fmt.Sprint(pids(o.Holders), pids(o.Waiters)))
			}
		}
		return all, slices.Compact(states) // a hold that says when it was obtained is a change too
	}
	// Both have to see a state before there is another: watch may leave out those that are over at once.
	seen := 0
	another := func() {
		t.Helper()
		seen++
		eventually(t, fmt.Sprintf("%d states", seen), func() bool { _, states := objects(); return len(states) >= seen })
	}
	another()

	next := m.runner("deploy/web", "--", "sh", "-c", "read end <end").begin()
	m.await("events", "deploy/web  waits")
	another()
	m.run("elsewhere", "--", "true").wants(0)
	line := m.show("deploy/web")
	old.signal(syscall.SIGTERM)
	old.wants(128 + 15)
	m.await("events", fmt.Sprintf("deploy/web  holds  token %d", line.Waiters[0].Token))
	another()
	m.tellEnd()
	next.wants(0)
	m.await("events", fmt.Sprintf("deploy/web  ended  token %d", line.Waiters[0].Token))
	m.await("objects", `"holders":[],"waiters":[]}`)

	a := fmt.Sprintf("token %d  %v", line.Holders[0].Token, line.Holders[0].Owner)
	b := fmt.Sprintf("token %d  %v", line.Waiters[0].Token, line.Waiters[0].Owner)
	want := "T  deploy/web  holds  " + a + "\nT  deploy/web  waits  " + b + "\nT  deploy/web  ended  " + a +
		"\nT  deploy/web  holds  " + b + "\nT  deploy/web  ended  " + b + "\n"
	got := regexp.MustCompile(`(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`).ReplaceAllString(m.read("events"), "T")
	if got != want {
		t.Errorf("watch printed:\n%swant:\n%s", got, want)
	}
	all, states := objects()
	var at time.Time
	for _, o := range all {
		if o.Name != "deploy/web" || o.Time.Before(at) || time.Since(o.Time) > within {
			t.Errorf("a reading of lock %q at %v, after one at %v", o.Name, o.Time, at)
		}
		at = o.Time
	}
	one, two := old.Process.Pid, next.Process.Pid
	if got, want := strings.Join(states, ", "), fmt.Sprintf("[%d] [], [%d] [%d], [%d] [], [] []", one, one, two, two); got != want {
		t.Errorf("watch -o json has shown %s, want %s", got, want)
	}

	// As tail -f would: the shell says 130 and 143.
	w.signal(syscall.SIGINT)
	wj.signal(syscall.SIGTERM)
	for c, sig := range map[*command]syscall.Signal{w: syscall.SIGINT, wj: syscall.SIGTERM} {
		c.wants(-1)
		if status := c.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != sig {
			t.Errorf("%v has ended with %v, want signal %v", c.Args, c.ProcessState, sig)
		}
	}
}

// Somebody looks for one event and has enough: that must not take until the next one.
func TestWatchEndsWhenNobodyReadsIt(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	m.start(sleeper, "demo")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := m.command("watch")
	c.Cmd.Stdout = w
	c.begin()
	w.Close()
	event, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || !strings.Contains(event, "demo  holds") {
		t.Errorf("the reader got %q, %v", event, err)
	}
	r.Close()
	c.wants(128 + int(syscall.SIGPIPE))
}

func TestReadersSurviveTheStoreGoingAway(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	args := []string{"--listen", testservers.FreeAddress(t), "--data", m.path("data")}
	s := m.serve(args...)
	url := s.found("url")
	m.set("STILE_URL", url)
	cli := client(t, strings.TrimPrefix(url, "etcd://"))
	hold(t, cli, "demo")
	watch := m.command()
	watch.Path, watch.Args = "/bin/sh", []string{"sh", "-c", `exec "$0" watch >events 2>errors`, stile}
	watch.begin()
	m.await("events", "demo  holds")
	wait := m.at("sh", "-c", `"$0" wait demo; echo code $?`, stile)
	wait.sees("; waited ")

	s.kill()
	m.await("errors", "; trying again\n")
	wait.sees("; trying again\r\n")
	wait.sees("; waited ")
	m.serve(args...)
	m.await("errors", "stile: the store can be read again\n")
	wait.sees("stile: the store can be read again\r\n")

	evict(t, cli, "demo")
	m.await("events", "demo  ended")
	wait.sees("code 0")
	if said := m.read("errors"); strings.Count(said, "\n") != 2 {
		t.Errorf("want one line about the outage and one about its end: %s", said)
	}
}

// hold makes an entry that needs nobody to keep it for a while.
func hold(t *testing.T, cli *clientv3.Client, name string) {
	t.Helper()
	lease, err := cli.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprintf("%s/%x", name, lease.ID)
	if _, err := cli.Put(t.Context(), key, "", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
}

func TestWaitReturnsWhenTheLockIsFree(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	holder := m.start(sleeper, "demo")
	next := m.runner("demo", "--", "sh", "-c", "touch begun; read end <end").begin()
	waiters := []*command{
		m.command("wait", "demo").begin(),
		m.command("wait", "-w", "300", "demo").begin(),
		m.command("wait", "-o", "json", "demo").begin(),
	}
	eventually(t, "a second in line", func() bool { return len(m.show("demo").Waiters) == 1 })
	holder.signal(syscall.SIGTERM)
	holder.wants(128 + 15)
	eventually(t, "the next holder", func() bool { return m.exists("begun") })
	if line := m.show("demo"); len(line.Waiters) > 0 {
		t.Errorf("those who only wait stand in line: %+v", line)
	}
	told := time.Now()
	m.tellEnd()
	next.wants(0)
	for _, w := range waiters {
		if w.wants(0); w.ended.Before(told) {
			t.Errorf("%v has ended while the lock was held", w.Args)
		}
	}
	if line := parsed[lib.Line](t, waiters[2].stdout.Bytes()); line.Name != "demo" || len(line.Holders) != 0 {
		t.Errorf("wait -o json printed %s", waiters[2].stdout)
	}
}

func TestWaitGivesUp(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	holder := m.start(sleeper, "demo")
	who := fmt.Sprintf("held by %s", m.show("demo").Holders[0].Owner)
	m.stile("wait", "-n", "demo").wants(75, `"demo"`, who)
	m.stile("wait", "--nonblock", "demo").wants(75, `"demo"`, who)
	m.stile("wait", "-w", "0", "demo").wants(75, `"demo"`, who)
	began := time.Now()
	m.stile("wait", "-w", "0.2", "demo").wants(75, `"demo"`, "200ms", who)
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("gave up after %v", took)
	}
	c := m.stile("wait", "--wait", "1ms", "-o", "json", "demo")
	c.wants(75, `"demo"`, who)
	if line := parsed[lib.Line](t, c.stdout.Bytes()); fmt.Sprint(pids(line.Holders)) != fmt.Sprint([]int{holder.Process.Pid}) {
		t.Errorf("wait -o json printed %s", c.stdout)
	}
}

func TestASignalEndsTheWait(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.start(sleeper, "--url", s.url, "demo")
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		w := newWire(t, s.endpoint())
		c := m.command("wait", "--url", s.through(w), "demo").begin()
		eventually(t, "a connection", w.used.Load) // by then it listens to signals
		c.signal(sig)
		c.wants(128 + int(sig))
	}
}

func TestWaitingAtATerminalIsShown(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	holder := m.start(sleeper, "demo")
	c := m.at("sh", "-c", `"$0" wait demo; echo code $?`, stile)
	c.sees(`"demo": held by `)
	c.sees(fmt.Sprintf("pid %d (sh) since ", holder.Process.Pid))
	c.sees("; waited ") // again, and so on
	c.sees("; waited ")
	holder.signal(syscall.SIGTERM)
	c.sees("\r\x1b[K")
	c.sees("code 0\r\n")
}
