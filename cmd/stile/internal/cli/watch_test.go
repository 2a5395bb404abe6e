package cli

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
)

// lineOf is a line of which the first entry holds the lock.
func lineOf(name string, entries ...stile.Entry) stile.Line {
	l := stile.Line{Name: name, Holders: []stile.Entry{}, Waiters: []stile.Entry{}}
	for i, e := range entries {
		if i == 0 {
			l.Holders = append(l.Holders, e)
		} else {
			l.Waiters = append(l.Waiters, e)
		}
	}
	return l
}

// eventsOf reads one line after the other, and returns what each reading has shown: events without their time, and tokens
// instead of owners.
func eventsOf(t *testing.T, readings ...[]stile.Line) []string {
	t.Helper()
	w := watch{reader: reader{format: formatText}}
	var all []string
	for _, lines := range readings {
		b, err := w.write(lines, noon)
		if err != nil {
			t.Fatal(err)
		}
		var shown []string
		for text := range strings.Lines(string(b)) {
			at, rest, _ := strings.Cut(text, "  ")
			if want := noon.Local().Format("2006-01-02 15:04:05"); at != want {
				t.Errorf("an event at %q, want %q", at, want)
			}
			shown = append(shown, strings.Join(strings.Fields(rest)[:4], " "))
		}
		all = append(all, strings.Join(shown, ", "))
	}
	return all
}

func TestWatch_events(t *testing.T) {
	t.Parallel()
	entry := func(token uint64) stile.Entry { return stile.Entry{Token: token} }
	one, two, three, four := entry(1), entry(2), entry(3), entry(4)
	type readings [][]stile.Line
	for name, c := range map[string]struct {
		readings readings
		last     string
	}{
		"at first all that there is": {
			readings{{lineOf("a", one, two), lineOf("b", one)}},
			"a holds token 1, a waits token 2, b holds token 1",
		},
		"nothing": {readings{{lineOf("a", one, two)}, {lineOf("a", one, two)}}, ""},
		"joining": {readings{{lineOf("a", one)}, {lineOf("a", one, two, three)}}, "a waits token 2, a waits token 3"},
		"taking":  {readings{{}, {lineOf("a", one)}}, "a holds token 1"},
		"letting go": {
			readings{{lineOf("a", one), lineOf("b", one)}, {lineOf("b", one)}},
			"a ended token 1",
		},
		"giving up": {readings{{lineOf("a", one, two)}, {lineOf("a", one)}}, "a left token 2"},
		"hand-over": {
			readings{{lineOf("a", one, two, three)}, {lineOf("a", two, three)}},
			"a ended token 1, a holds token 2",
		},
		"the next holder was never seen waiting": {
			readings{{lineOf("a", one)}, {lineOf("a", two)}},
			"a ended token 1, a holds token 2",
		},
		"much at once": {
			readings{{lineOf("a", one, two, three)}, {lineOf("a", three, four)}},
			"a ended token 1, a left token 2, a holds token 3, a waits token 4",
		},
		"over and again": {
			readings{{lineOf("a", one)}, {}, {lineOf("a", two)}},
			"a holds token 2",
		},
		"two locks": {
			readings{{lineOf("b", one)}, {lineOf("a", two), lineOf("b", one), lineOf("c", three)}, {lineOf("b", four)}},
			"a ended token 2, b ended token 1, b holds token 4, c ended token 3",
		},
	} {
		got := eventsOf(t, c.readings...)
		if last := got[len(got)-1]; last != c.last {
			t.Errorf("%s: the last reading shows %q, want %q", name, last, c.last)
		}
	}
}

// Some stores give a token only to who holds the lock, and an entry may pass to another session.
func TestWatch_identity(t *testing.T) {
	t.Parallel()
	early := bob()
	early.Token = 0
	moved := bob()
	moved.Session = "another"
	if got := eventsOf(t,
		[]stile.Line{lineOf("a", ann(), early)},
		[]stile.Line{lineOf("a", ann(), bob())},
		[]stile.Line{lineOf("a", bob())},
		[]stile.Line{lineOf("a", moved)},
	); got[1] != "" || got[2] != "a ended token 34816, a holds token 36864" || got[3] != "" {
		t.Errorf("the readings show %q", got)
	}
}

func TestWatch_text(t *testing.T) {
	t.Parallel()
	w := watch{reader: reader{format: formatText}}
	odd := lineOf("a\u202e", ann(), evil())
	odd.Remarks = []string{"stray\nkey"}
	b, err := w.write([]stile.Line{odd}, noon)
	if err != nil {
		t.Fatal(err)
	}
	expectText(t, b, strings.ReplaceAll(`
AT  "a\u202e"  holds  token 34816  ann@web-3 pid 812 (deploy.sh)
AT  "a\u202e"  waits  token 5376  eve\x1b[2J@web\n3 (x\tnightly-backup\u202e\xff)
AT  "a\u202e"  remark stray\nkey
`, "AT", noon.Local().Format("2006-01-02 15:04:05")))
	odd.Holders[0].Remaining--
	if b, _ := w.write([]stile.Line{odd}, noon); len(b) > 0 {
		t.Errorf("though nothing has happened, written:\n%s", b)
	}
}

// The number of slots that are taken is that after the change.
func TestWatch_modes(t *testing.T) {
	t.Parallel()
	slot := func(e stile.Entry) stile.Entry { e.Mode = line.Slot(3); return e }
	sharer := ann()
	sharer.Mode = line.Shared
	w := watch{reader: newReader(Stdio{})}
	both := lineOf("s", slot(ann()), slot(bob()))
	both.Holders, both.Waiters = append(both.Holders, both.Waiters...), nil
	limited := lineOf("s", slot(ann()))
	limited.Limit = 2
	for _, c := range []struct {
		read []stile.Line
		want string
	}{
		{[]stile.Line{lineOf("r", sharer), both}, `
AT  r  holds  token 34816  ann@web-3 pid 812 (deploy.sh) (shared)
AT  s  holds  token 34816  ann@web-3 pid 812 (deploy.sh) (2 of 3 slots)
AT  s  holds  token 36864  bob@web-1 pid 99 (deploy.sh) (2 of 3 slots)
`},
		{[]stile.Line{lineOf("r", sharer), limited}, `
AT  s  ended  token 36864  bob@web-1 pid 99 (deploy.sh) (1 of 2 slots)
AT  s  limit 2 slots, of 3 asked for
`},
		{[]stile.Line{lineOf("r", sharer)}, `
AT  s  ended  token 34816  ann@web-3 pid 812 (deploy.sh) (0 of 2 slots)
`},
	} {
		b, err := w.write(c.read, noon)
		if err != nil {
			t.Fatal(err)
		}
		expectText(t, b, strings.ReplaceAll(c.want, "AT", noon.Local().Format(time.DateTime)))
	}
}

func TestWatch_json(t *testing.T) {
	t.Parallel()
	w := watch{reader: reader{format: formatJSON}}
	small := stile.Entry{Token: 1, Session: "s", Remaining: time.Second}
	later := small
	later.Remaining = time.Minute
	for i, c := range []struct {
		lines []stile.Line
		want  string
	}{
		{
			[]stile.Line{lineOf("a", small), lineOf("b", small)}, `
{"time":"2026-11-21T12:00:00.001Z","name":"a","holders":[{"token":"1","mode":"exclusive","owner":{},"session":"s","remaining_ns":1000000000}],"waiters":[]}
{"time":"2026-11-21T12:00:00.001Z","name":"b","holders":[{"token":"1","mode":"exclusive","owner":{},"session":"s","remaining_ns":1000000000}],"waiters":[]}
`,
		},
		{[]stile.Line{lineOf("a", later), lineOf("b", later)}, ""},
		{[]stile.Line{lineOf("a", later)}, `{"time":"2026-11-21T12:00:00.001Z","name":"b","holders":[],"waiters":[]}` + "\n"},
		{[]stile.Line{lineOf("a", later)}, ""},
	} {
		b, err := w.write(c.lines, noon.Add(1999*time.Microsecond).In(time.FixedZone("", 3600)))
		if err != nil {
			t.Fatal(err)
		}
		t.Log("reading", i)
		expectText(t, b, c.want)
	}
}

func TestOutage_reportedOnce(t *testing.T) {
	t.Parallel()
	var o outage
	gone := errors.New("store is gone")
	for i, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{gone, "store is gone; trying again"},
		{gone, ""},
		{nil, "the store can be read again"},
		{nil, ""},
		{gone, "store is gone; trying again"},
	} {
		if got := o.update(c.err); got != c.want {
			t.Errorf("reading %d: told %q, want %q", i, got, c.want)
		}
	}
}
