package cli

import (
	"encoding/json"
	"errors"
	"iter"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
)

// noon is when the readings of these tests were made.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// ann and bob are entries as they should be.
func ann() stile.Entry {
	return stile.Entry{
		Token: 34816,
		Owner: stile.Owner{
			Host: "web-3", PID: 812, User: "ann", Command: "deploy.sh", Reason: "release 1.2",
			Labels: map[string]string{"team": "web", "env": "prod"},
			Since:  noon.Add(-194 * time.Second), Obtained: noon.Add(-192 * time.Second),
		},
		Session:   "694d98a1c2e45f",
		Remaining: 14 * time.Second,
	}
}

func bob() stile.Entry {
	return stile.Entry{
		Token:     36864,
		Owner:     stile.Owner{Host: "web-1", PID: 99, User: "bob", Command: "deploy.sh", Since: noon.Add(-2 * time.Minute)},
		Session:   "694d98a1c2e460",
		Remaining: 9500 * time.Millisecond,
	}
}

// foreign is what etcdctl lock leaves.
func foreign() stile.Entry {
	return stile.Entry{Token: 5120, Foreign: true, Session: "694d98a1c2e470", Remaining: 58 * time.Second}
}

// evil is what somebody writes who means no good.
func evil() stile.Entry {
	return stile.Entry{
		Token: 5376,
		Owner: stile.Owner{
			Host: "web\n3", User: "eve\x1b[2J", Command: "x\tnightly-backup\u202e\xff", Reason: "a\nholder b\u009b2J",
			Labels: map[string]string{"k\x00": "v\r"}, Since: time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC),
		},
		Session: "s\a1",
	}
}

func expectText(t *testing.T, got []byte, want string) {
	t.Helper()
	if want = strings.TrimPrefix(want, "\n"); string(got) != want {
		t.Errorf("written:\n%s\nwant:\n%s", got, want)
	}
}

// sequence yields lines, and then an error unless it is nil.
func sequence(err error, lines ...stile.Line) iter.Seq2[stile.Line, error] {
	return func(yield func(stile.Line, error) bool) {
		for _, l := range lines {
			if !yield(l, nil) {
				return
			}
		}
		if err != nil {
			yield(stile.Line{}, err)
		}
	}
}

// A recorder records what is written.
type recorder struct{ written []byte }

func (r *recorder) write(b []byte) error {
	r.written = append(r.written, b...)
	return nil
}

func atNoon() time.Time { return noon }

func overviewOf(t *testing.T, lines ...stile.Line) []byte {
	t.Helper()
	var r recorder
	if n, err := overview(sequence(nil, lines...), atNoon, r.write); err != nil || n != len(lines) {
		t.Fatalf("overview: got %d, %v; want %d", n, err, len(lines))
	}
	return r.written
}

func TestOverview(t *testing.T) {
	t.Parallel()
	shared := func(e stile.Entry) stile.Entry { e.Mode = line.Shared; return e }
	slot := func(e stile.Entry) stile.Entry { e.Mode = line.Slot(3); return e }
	expectText(t, overviewOf(
		t,
		stile.Line{Name: "deploy/web", Holders: []stile.Entry{ann()}, Waiters: []stile.Entry{bob(), foreign()}},
		stile.Line{Name: "etcdctl's", Holders: []stile.Entry{foreign()}},
		stile.Line{Name: "evil \u202ename", Holders: []stile.Entry{evil()}},
		stile.Line{Name: "odd", Waiters: []stile.Entry{ann()}},
		stile.Line{Name: "readers", Holders: []stile.Entry{shared(bob()), shared(ann()), shared(ann())}},
		stile.Line{Name: "builds", Holders: []stile.Entry{slot(ann()), slot(bob())}},
		stile.Line{Name: "says nothing", Holders: []stile.Entry{{Token: 256, Session: "694d"}}},
	), `
NAME               HOLDER                                           AGE    LEFT  WAITING
deploy/web         ann@web-3 pid 812 (deploy.sh)                    3m12s  14s   2
etcdctl's          unknown client, session 694d98a1c2e470           ?      58s   0
"evil \u202ename"  eve\x1b[2J@web\n3 (x\tnightly-backup\u202e\xff)  ?      ?     0
odd                nobody                                           ?      ?     1
readers            bob@web-1 pid 99 (deploy.sh) +2 (shared)         <2m1s  9s    0
builds             ann@web-3 pid 812 (deploy.sh) +1 (2 of 3 slots)  3m12s  14s   0
says nothing       unknown owner, session 694d                      ?      ?     0
`)
	expectText(t, overviewOf(t), "")
}

func TestOverview_longOwner(t *testing.T) {
	t.Parallel()
	e := ann()
	e.Owner.Command = strings.Repeat("世", 8000)
	got := overviewOf(t, stile.Line{Name: "a", Holders: []stile.Entry{e}})
	if widest := len([]rune(strings.Split(string(got), "\n")[1])); widest > 120 {
		t.Errorf("the table is %d characters wide:\n%s", widest, got)
	}
}

// The rows of a block are written before the next block is read. Columns only become wider.
func TestOverview_writesBlocks(t *testing.T) {
	t.Parallel()
	var r recorder
	names := func(yield func(stile.Line, error) bool) {
		for i := range 2 * rowsPerBlock {
			name := "short"
			switch i {
			case 0:
				name = "a longer one"
			case rowsPerBlock:
				name = "the longest of all"
				if got := strings.Count(string(r.written), "\n"); got != rowsPerBlock {
					t.Errorf("written before line %d is read: got %d rows, want %d", i, got, rowsPerBlock)
				}
			}
			if !yield(stile.Line{Name: name, Holders: []stile.Entry{ann()}}, nil) {
				return
			}
		}
	}
	if _, err := overview(names, atNoon, r.write); err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(string(r.written), "\n")
	for i, want := range map[int]string{
		1:                  "a longer one  ann@",
		rowsPerBlock - 1:   "short         ann@", // the heading is a row of the first block
		rowsPerBlock:       "short               ann@",
		rowsPerBlock + 1:   "the longest of all  ann@",
		2*rowsPerBlock - 1: "short               ann@",
		2 * rowsPerBlock:   "short               ann@",
	} {
		if !strings.HasPrefix(rows[i], want) {
			t.Errorf("row %d: got %q, want it to begin with %q", i, rows[i], want)
		}
	}
}

// What was read before an error is written, and the error is returned.
func TestOverview_error(t *testing.T) {
	t.Parallel()
	failure := errors.New("no answer")
	var r recorder
	_, err := overview(sequence(failure, stile.Line{Name: "a", Holders: []stile.Entry{ann()}}), atNoon, r.write)
	if err != failure {
		t.Errorf("got %v, want %v", err, failure)
	}
	expectText(t, r.written, `
NAME  HOLDER                         AGE    LEFT  WAITING
a     ann@web-3 pid 812 (deploy.sh)  3m12s  14s   0
`)
	r = recorder{}
	if _, err := overview(sequence(failure), atNoon, r.write); err != failure || len(r.written) > 0 {
		t.Errorf("without lines: got %v and %q, want only %v", err, r.written, failure)
	}
}

// An array that is written in parts reads like one that is written at once. After an error it is not closed.
func TestWriteJSONLines(t *testing.T) {
	t.Parallel()
	lines := []stile.Line{
		{Name: "a", Holders: []stile.Entry{ann(), evil()}, Waiters: []stile.Entry{bob()}, Remarks: []string{"x\ny"}},
		{Name: "evil \u202ename", Holders: []stile.Entry{}, Waiters: []stile.Entry{foreign()}},
	}
	for range 200 {
		lines = append(lines, lines[0])
	}
	for _, n := range []int{0, 1, len(lines)} {
		all := make([]jsonLine, 0, n)
		for _, l := range lines[:n] {
			all = append(all, asJSONLine(l))
		}
		want, err := asJSON(all, "  ")
		if err != nil {
			t.Fatal(err)
		}
		var r recorder
		if err := writeJSONLines(sequence(nil, lines[:n]...), r.write); err != nil {
			t.Fatal(err)
		}
		expectText(t, r.written, string(want))
		failure := errors.New("no answer")
		r = recorder{}
		if err := writeJSONLines(sequence(failure, lines[:n]...), r.write); err != failure {
			t.Errorf("%d lines, then an error: got %v, want %v", n, err, failure)
		}
		if n == 0 && len(r.written) > 0 || !strings.HasPrefix(string(want), string(r.written)) || json.Valid(r.written) {
			t.Errorf("%d lines, then an error: wrote\n%s", n, r.written)
		}
	}
}

func TestDetails(t *testing.T) {
	t.Parallel()
	slot := bob()
	slot.Mode = line.Slot(3)
	leader := ann()
	leader.Owner.Value = "web-3:80\x1b"
	expectText(t, lineDetails(stile.Line{
		Name:    "deploy/web",
		Holders: []stile.Entry{leader},
		Waiters: []stile.Entry{slot, foreign(), evil(), {Session: "7"}},
		Remarks: []string{"key \"x\" is\x1b[1m stray:\ndelete it"},
	}, noon), `
lock deploy/web: held, 4 waiting
holder    ann@web-3 pid 812 (deploy.sh)
          token 34816, exclusive, held for 3m12s, waited 2s, session 694d98a1c2e45f has 14s left
          reason: release 1.2
          value: web-3:80\x1b
          label: env=prod
          label: team=web
waiter 1  bob@web-1 pid 99 (deploy.sh)
          token 36864, slot/3, in line for 2m, session 694d98a1c2e460 has 9s left
waiter 2  unknown client, session 694d98a1c2e470
          token 5120, exclusive, in line for ?, session 694d98a1c2e470 has 58s left
waiter 3  eve\x1b[2J@web\n3 (x\tnightly-backup\u202e\xff)
          token 5376, exclusive, in line for ?, session s\a1 has ? left
          reason: a\nholder b\u009b2J
          label: k\x00=v\r
waiter 4  unknown owner, session 7
          no token, exclusive, in line for ?, session 7 has ? left
remark    key "x" is\x1b[1m stray:\ndelete it
`)
	expectText(t, lineDetails(stile.Line{Name: "a", Holders: []stile.Entry{bob(), bob()}}, noon)[:len("lock a: held by 2\n")],
		"lock a: held by 2\n")
	expectText(t, lineDetails(stile.Line{Name: "a"}, noon), "lock a: free\n")
	expectText(t, lineDetails(stile.Line{Name: "a", Remarks: []string{"odd"}}, noon), "lock a: free\nremark  odd\n")
}

func TestAges(t *testing.T) {
	t.Parallel()
	for want, ages := range map[string][]time.Duration{
		"0s":    {0, time.Second - 1, -time.Millisecond, -time.Minute}, // clocks differ by a little
		"3s":    {3 * time.Second, 3999 * time.Millisecond},
		"4m10s": {4*time.Minute + 10*time.Second},
		"4m":    {4 * time.Minute},
		"2h5m":  {2*time.Hour + 5*time.Minute + 59*time.Second},
		"2h":    {2*time.Hour + 59*time.Second},
		"3d4h":  {76*time.Hour + 59*time.Minute},
		"366d":  {366 * 24 * time.Hour},
		"?":     {-2 * time.Minute, 20 * 366 * 24 * time.Hour, math.MaxInt64, math.MinInt64},
	} {
		for _, age := range ages {
			if got := ageOf(stile.Entry{Owner: stile.Owner{Since: noon.Add(-age)}}, noon); got != want {
				t.Errorf("an age of %v is written %q, want %q", age, got, want)
			}
		}
	}
	for _, since := range []time.Time{{}, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if got := ageOf(stile.Entry{Owner: stile.Owner{Since: since}}, noon); got != "?" {
			t.Errorf("the age of what began at %v is written %q, want ?", since, got)
		}
	}
}

// What is said of how long a lock has been held is true, also when it is not known when its holder obtained it.
func TestHeldFor(t *testing.T) {
	t.Parallel()
	ago := func(d time.Duration) time.Time { return noon.Add(-d) }
	for _, tt := range []struct {
		what            string
		since, obtained time.Time
		age, text       string
	}{
		{"obtained after a wait", ago(5 * time.Minute), ago(3 * time.Minute), "3m", "held for 3m, waited 2m"},
		{"obtained at once", ago(3*time.Minute + 900*time.Millisecond), ago(3 * time.Minute), "3m", "held for 3m"},
		{"obtained this moment", ago(0), ago(0), "0s", "held for 0s"},
		{"joined this moment", ago(0), time.Time{}, "<1s", "held for less than 1s"},
		{"joined less than a second ago", ago(time.Second - 1), time.Time{}, "<1s", "held for less than 1s"},
		{"joined a second ago", ago(time.Second), time.Time{}, "<2s", "held for less than 2s"},
		{"joined almost a minute ago", ago(time.Minute - 1), time.Time{}, "<1m", "held for less than 1m"},
		{"joined a while ago", ago(250*time.Second + 900*time.Millisecond), time.Time{}, "<4m11s", "held for less than 4m11s"},
		{"joined hours ago", ago(2*time.Hour + 5*time.Minute + 59*time.Second), time.Time{}, "<2h6m", "held for less than 2h6m"},
		{"joined almost a day ago", ago(24*time.Hour - 1), time.Time{}, "<1d", "held for less than 1d"},
		{"joined days ago", ago(76*time.Hour + 59*time.Minute), time.Time{}, "<3d5h", "held for less than 3d5h"},
		{"joined on a host whose clock is ahead", noon.Add(time.Second), time.Time{}, "<1s", "held for less than 1s"},
		{"obtained on a host whose clock is ahead", noon.Add(time.Second), noon.Add(3 * time.Second), "0s", "held for 0s, waited 2s"},
		{"nothing is known", time.Time{}, time.Time{}, "?", "held for ?"},
		{"nobody knows when it joined", time.Time{}, ago(time.Minute), "1m", "held for 1m"},
		{"nonsense", ago(time.Minute), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), "?", "held for ?"},
		{"a wait that cannot be", ago(0), ago(time.Minute), "1m", "held for 1m"},
	} {
		e := stile.Entry{Owner: stile.Owner{Since: tt.since, Obtained: tt.obtained}}
		if age, text := heldFor(e, noon), holding(e, noon); age != tt.age || text != tt.text {
			t.Errorf("%s: written %q and %q, want %q and %q", tt.what, age, text, tt.age, tt.text)
		}
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                   "",
		`CORP\ann "x" 'y'`:   `CORP\ann "x" 'y'`,
		"世界 naïve 🔒":         "世界 naïve 🔒",
		"a\nb\r\tc":          `a\nb\r\tc`,
		"\x1b[31m\x07\x7f":   `\x1b[31m\a\x7f`,
		"\u009b2J":           `\u009b2J`,
		"\u202e\u2066\u200b": `\u202e\u2066\u200b`,
		"\u2028":             `\u2028`,
		"\xff\xc3":           `\xff\xc3`,
		`\n` + "\n":          `\n\n`,
	} {
		if got := plain(text); got != want {
			t.Errorf("plain(%q) returned %q, want %q", text, got, want)
		}
	}
}

// documented is the line of the example in docs/cli.md.
func documented() stile.Line {
	holder, waiter := ann(), foreign()
	holder.Owner.Labels = map[string]string{"team": "web"}
	holder.Owner.Since = time.Date(2026, 11, 21, 19, 4, 49, 250e6, time.UTC)
	holder.Owner.Obtained = holder.Owner.Since.Add(2 * time.Second)
	waiter.Token, waiter.Session, waiter.Remaining = 36864, "694d98a1c2e460", 9*time.Second
	return stile.Line{
		Name:    "orders/42",
		Holders: []stile.Entry{holder},
		Waiters: []stile.Entry{waiter},
		Remarks: []string{`key "orders/42/x" is not an entry of the lock: delete it`},
	}
}

// Programs read this. What is documented may be added to, but nothing is renamed or left out.
func TestJSON_asDocumented(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../../../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	got, err := asJSON(documented(), "  ")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(docs), "```json\n"+string(got)+"```\n") {
		t.Errorf("docs/cli.md does not have this example:\n%s", got)
	}
	for _, field := range []string{
		"name", "holders", "waiters", "remarks", "token", "mode", "owner", "foreign", "session", "remaining_ns",
		"host", "pid", "user", "command", "reason", "labels", "since", "obtained", "time",
	} {
		if !strings.Contains(string(docs), "`"+field+"`") {
			t.Errorf("docs/cli.md does not explain the field %s", field)
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	slot := bob()
	slot.Mode, slot.Token, slot.Remaining = line.Slot(3), math.MaxInt64, 0
	seenAt := time.Date(2026, 11, 21, 19, 8, 1, 123e6, time.UTC)
	empty := stile.Line{Name: "a", Holders: []stile.Entry{}, Waiters: []stile.Entry{}}
	for _, c := range []struct {
		what   string
		value  any
		indent string
		want   string
	}{
		{"ls of nothing", []stile.Line{}, "  ", "[]\n"},
		{"ls", []stile.Line{empty}, "  ", `[
  {
    "name": "a",
    "holders": [],
    "waiters": []
  }
]
`},
		{
			"watch",
			watchInJSON{seenAt, asJSONLine(empty)},
			"",
			`{"time":"2026-11-21T19:08:01.123Z","name":"a","holders":[],"waiters":[]}` + "\n",
		},
		{
			"break",
			broken{"a", slot, ""},
			"",
			`{"name":"a","token":"9223372036854775807","mode":"slot/3","owner":{"host":"web-1","pid":99,"user":"bob",` +
				`"command":"deploy.sh","since":"2026-11-21T11:58:00Z"},"session":"694d98a1c2e460"}` + "\n",
		},
		{
			"evil",
			broken{"<a>&\u202e", stile.Entry{Owner: stile.Owner{Command: "\x1b[2J\u009b\x7f\U000e0001\xff"}, Session: "1"}, argumentFor("<a>&\u202e")},
			"",
			`{"name":"<a>&\u202e","token":"0","mode":"exclusive","owner":` +
				`{"command":"\u001b[2J\u009b\u007f\udb40\udc01\ufffd"},"session":"1","argument":"\"<a>&\\u202e\""}` + "\n",
		},
	} {
		got, err := asJSON(c.value, c.indent)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != c.want {
			t.Errorf("%s: written:\n%s\nwant:\n%s", c.what, got, c.want)
		}
	}
}

func TestFormat(t *testing.T) {
	t.Parallel()
	f := formatText
	for _, good := range []format{"json", "text"} {
		if err := f.Set(string(good)); err != nil || f != good {
			t.Errorf("%s: %v, %v", good, f, err)
		}
	}
	for _, bad := range []string{"", "JSON", "yaml"} {
		if err := f.Set(bad); err == nil || !strings.Contains(err.Error(), "text or json") {
			t.Errorf("%q: %v, want an error that says what there is", bad, err)
		}
	}
}
