package cli

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/supervise"
	"github.com/stilelock/stile/store"
)

func TestDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0":     0,
		"5":     5 * time.Second,
		"0.5":   500 * time.Millisecond,
		".25":   250 * time.Millisecond,
		"1e1":   10 * time.Second,
		"5s":    5 * time.Second,
		"1m30s": 90 * time.Second,
		"250ms": 250 * time.Millisecond,
		"0s":    0,
	} {
		var d duration
		if err := d.Set(text); err != nil || time.Duration(d) != want {
			t.Errorf("%q: %v, %v, want %v", text, time.Duration(d), err, want)
		}
	}
	for _, text := range []string{"", "-1", "-1s", "NaN", "Inf", "-Inf", "1e300", "soon", "5 s", "5d", "0x10"} {
		d := duration(time.Hour)
		if err := d.Set(text); err == nil {
			t.Errorf("%q: taken for %v", text, time.Duration(d))
		} else if time.Duration(d) != time.Hour {
			t.Errorf("%q: refused, and set to %v all the same", text, time.Duration(d))
		}
	}
}

// What the command is told of its TTL it can pass on to --ttl, and to timeout(1).
func TestDuration_inSecondsRoundTrip(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		15 * time.Second:        "15",
		1500 * time.Millisecond: "1.5",
		5 * time.Minute:         "300",
	} {
		text := inSeconds(d)
		var again duration
		if err := again.Set(text); text != want || err != nil || time.Duration(again) != d {
			t.Errorf("%v is %q, want %q; read again it is %v, %v", d, text, want, time.Duration(again), err)
		}
	}
}

func TestCommandLine_split(t *testing.T) {
	t.Parallel()
	plain := commandLine{verb: "stile run"}
	for _, args := range [][]string{
		{"n", "--", "cmd", "-x", "--", "y"},
		{"n", "cmd", "-x", "--", "y"},
	} {
		names, argv, err := plain.split(args)
		if err != nil || !slices.Equal(names, []string{"n"}) || len(argv) != 4 || argv[0] != "cmd" || argv[1] != "-x" || argv[2] != "--" {
			t.Errorf("%q: %q, %q, %v", args, names, argv, err)
		}
	}
	// After the dashes everything is the command, whatever it looks like.
	if _, argv, err := plain.split([]string{"n", "--", "-n"}); err != nil || len(argv) != 1 || argv[0] != "-n" {
		t.Errorf("a command called -n: %q, %v", argv, err)
	}
	for _, args := range [][]string{{}, {"n"}, {"n", "--"}, {"n", "-n", "--", "cmd"}} {
		if _, _, err := plain.split(args); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

func TestCommandLine_shellLine(t *testing.T) {
	t.Parallel()
	plain := commandLine{verb: "stile run"}
	for _, c := range []struct {
		args    []string
		lineSet bool
	}{
		{[]string{"n"}, true},
		{[]string{"n", "--"}, true},
		{[]string{"n", "-c", "a; b"}, false},
		{[]string{"n", "--command", "a; b"}, false},
	} {
		names, argv, err := commandLine{"stile run", false, c.lineSet, "a; b"}.split(c.args)
		if err != nil || !slices.Equal(names, []string{"n"}) || len(argv) != 3 || argv[0] != "sh" || argv[1] != "-c" || argv[2] != "a; b" {
			t.Errorf("%q: %q, %q, %v", c.args, names, argv, err)
		}
	}
	// After the dashes it is a command, if an odd one.
	if _, argv, err := plain.split([]string{"n", "--", "-c", "x"}); err != nil || len(argv) != 2 {
		t.Errorf("a command called -c: %q, %v", argv, err)
	}
	for _, c := range []struct {
		args    []string
		lineSet bool
	}{
		{[]string{"n", "--", "cmd"}, true},
		{[]string{"n", "cmd"}, true},
		{[]string{"n", "-c", "a"}, true},
		{[]string{"n", "-c"}, false},
		{[]string{"n", "-c", "a", "b"}, false},
		{[]string{}, true},
	} {
		if _, argv, err := (commandLine{"stile run", false, c.lineSet, "a; b"}).split(c.args); err == nil {
			t.Errorf("%q: no error, but %q", c.args, argv)
		}
	}
}

func TestLabels(t *testing.T) {
	t.Parallel()
	got, err := labels([]string{"team=web", "empty=", "url=a=b", "team=db"})
	want := map[string]string{"team": "db", "empty": "", "url": "a=b"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, bad := range []string{"", "team", "=web"} {
		if got, err := labels([]string{bad}); err == nil {
			t.Errorf("%q: no error, but %v", bad, got)
		}
	}
}

// Renewals must have time to arrive before the command is told to end; and what is told to be possible is.
func TestRun_killAfterIsPartOfTTL(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]time.Duration{
		time.Second:      250 * time.Millisecond,
		15 * time.Second: 3750 * time.Millisecond,
		20 * time.Second: 5 * time.Second,
		5 * time.Minute:  5 * time.Second,
	} {
		r := execution{request: request{ttl: duration(ttl), names: []string{"n"}}, signal: "TERM", argv: []string{"x"}}
		if err := r.check(); err != nil {
			t.Errorf("TTL %v: %v", ttl, err)
		}
		if got, err := r.killAfterUnder(store.Terms{TTL: ttl}); err != nil || got != want {
			t.Errorf("TTL %v: %v, %v, want %v", ttl, got, err, want)
		}
		r.killAfter, r.killSet = duration(supervise.MaxKillAfter(ttl)), true
		if err := r.check(); err != nil {
			t.Errorf("TTL %v: the longest possible is refused: %v", ttl, err)
		}
		r.killAfter++
		if err := r.check(); err == nil {
			t.Errorf("TTL %v: %v to kill it is taken", ttl, &r.killAfter)
		}
		if ttl == stile.MaxTTL {
			continue
		}
		r.ttl = duration(supervise.MinTTL(time.Duration(r.killAfter)))
		if err := r.check(); err != nil {
			t.Errorf("%v to kill it: the TTL that is recommended is refused: %v", &r.killAfter, err)
		}
	}
}

// With --all the dashes end the names.
func TestCommandLine_all(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args        []string
		shellLine   bool
		names, argv []string // no names: refused
	}{
		{[]string{"a", "b", "--", "cmd", "-x", "--"}, false, []string{"a", "b"}, []string{"cmd", "-x", "--"}},
		{[]string{"a", "--", "cmd"}, false, []string{"a"}, []string{"cmd"}},
		{[]string{"a", "b"}, true, []string{"a", "b"}, []string{"sh", "-c", "a; b"}},
		{[]string{"a", "b", "--"}, true, []string{"a", "b"}, []string{"sh", "-c", "a; b"}},
		{[]string{"a", "b", "--", "cmd"}, true, nil, nil},
		{[]string{"a", "b", "cmd"}, false, nil, nil},
		{[]string{"a", "b", "--"}, false, nil, nil},
		{[]string{"--", "cmd"}, false, nil, nil},
	} {
		names, argv, err := commandLine{"stile run", true, c.shellLine, "a; b"}.split(c.args)
		if !slices.Equal(names, c.names) || !slices.Equal(argv, c.argv) || (err == nil) != (c.names != nil) {
			t.Errorf("%q: got %q, %q, %v; want %q, %q", c.args, names, argv, err, c.names, c.argv)
		}
	}
}
