package history_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/history"
)

const day = 24 * time.Hour

var midnight = time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)

func success(called time.Time) *history.Attempt { return &history.Attempt{Called: called, Token: 1} }

func failure(token uint64) *history.Attempt {
	return &history.Attempt{Called: midnight, ExitCode: 3, Token: token}
}

func TestHistory_judge(t *testing.T) {
	const s = time.Second
	last := success(midnight)
	for _, c := range []struct {
		what    string
		job     history.Job
		call    history.Call
		now     time.Time // that of the call if zero
		verdict history.Verdict
	}{
		{"never run", history.Job{}, history.Call{At: midnight, Every: day}, time.Time{}, history.Run},
		{"one tick, other host, clock ahead", history.Job{Success: last}, history.Call{At: midnight.Add(s), Every: day}, time.Time{}, history.Succeeded},
		{"one tick, clock behind", history.Job{Success: last}, history.Call{At: midnight.Add(-s), Every: day}, time.Time{}, history.Succeeded},
		{"clock behind by almost D/10", history.Job{Success: last}, history.Call{At: midnight.Add(-day/10 + s), Every: day}, time.Time{}, history.Succeeded},
		{"just before 0.9 D", history.Job{Success: last}, history.Call{At: midnight.Add(day - day/10 - 1), Every: day}, time.Time{}, history.Succeeded},
		{"at 0.9 D", history.Job{Success: last}, history.Call{At: midnight.Add(day - day/10), Every: day}, time.Time{}, history.Run},
		{"the next tick, early", history.Job{Success: last}, history.Call{At: midnight.Add(day - s), Every: day}, time.Time{}, history.Run},
		{"the next tick", history.Job{Success: last}, history.Call{At: midnight.Add(day), Every: day}, time.Time{}, history.Run},
		{"same tick, admitted after more than a period", history.Job{Success: last}, history.Call{At: midnight.Add(s), Every: day}, midnight.Add(25 * time.Hour), history.Succeeded},
		{"next tick, admitted late", history.Job{Success: last}, history.Call{At: midnight.Add(day), Every: day}, midnight.Add(25 * time.Hour), history.Run},
		{"called before a success of a later call", history.Job{Success: last}, history.Call{At: midnight.Add(-day), Every: time.Minute}, midnight.Add(s), history.Succeeded},
		{"a success in the far future", history.Job{Success: success(midnight.AddDate(1, 0, 0))}, history.Call{At: midnight, Every: day}, time.Time{}, history.Run},
		{"a success in the near future", history.Job{Success: success(midnight.Add(day/10 + 1))}, history.Call{At: midnight, Every: day}, time.Time{}, history.Run},
		{"a short period", history.Job{Success: last}, history.Call{At: midnight.Add(s), Every: 1}, time.Time{}, history.Run},
		{"the longest period", history.Job{Success: last}, history.Call{At: midnight.AddDate(250, 0, 0), Every: 1<<63 - 1}, time.Time{}, history.Succeeded},
		{"for ever", history.Job{Success: last}, history.Call{At: midnight.AddDate(90, 0, 0)}, time.Time{}, history.Succeeded},
		{"for ever, in the future", history.Job{Success: success(midnight.AddDate(1, 0, 0))}, history.Call{At: midnight}, time.Time{}, history.Succeeded},

		{"an old failure", history.Job{Failure: failure(7)}, history.Call{At: midnight, Seen: 7}, time.Time{}, history.Run},
		{"a failure that is older than the last seen", history.Job{Failure: failure(6)}, history.Call{At: midnight, Seen: 7}, time.Time{}, history.Run},
		{"a failure during the wait", history.Job{Failure: failure(8)}, history.Call{At: midnight, Seen: 7}, time.Time{}, history.Failed},
		{"the first failure", history.Job{Failure: failure(8)}, history.Call{At: midnight}, time.Time{}, history.Failed},
		{"retry", history.Job{Failure: failure(8)}, history.Call{At: midnight, Seen: 7, Retry: true}, time.Time{}, history.Run},
		{"a failure after a success of this period", history.Job{Success: last, Failure: failure(8)}, history.Call{At: midnight.Add(s), Every: day}, time.Time{}, history.Succeeded},
		{"a failure after a success of the last period", history.Job{Success: last, Failure: failure(8)}, history.Call{At: midnight.Add(day), Every: day}, time.Time{}, history.Failed},
	} {
		if c.now.IsZero() {
			c.now = c.call.At
		}
		c.call.Key = "k"
		h := history.History{Jobs: map[string]history.Job{"k": c.job, "": {Success: last, Failure: failure(99)}}}
		verdict, attempt := h.Judge(c.call, c.now)
		want := map[history.Verdict]*history.Attempt{history.Succeeded: c.job.Success, history.Failed: c.job.Failure}[c.verdict]
		if verdict != c.verdict || attempt != want {
			t.Errorf("%s: got the verdict %v, %+v, want %v", c.what, verdict, attempt, c.verdict)
		}
		inFuture := strings.HasPrefix(c.what, "a success in the")
		if got := h.InFuture(c.call, c.now); inFuture != (got != nil) {
			t.Errorf("%s: got the success in the future %+v", c.what, got)
		}
	}
}

// A month of ticks: ten hosts with clocks that differ, and a command that takes a random part of the period,
// make one success each day.
func TestHistory_onceADay(t *testing.T) {
	var h history.History
	for n := range 30 {
		tick := midnight.AddDate(0, 0, n)
		runs := 0
		done := tick
		for host := range 10 {
			skew := time.Duration((host*7+n*3)%10-5) * 10 * time.Minute // the clocks differ by up to 100 minutes
			call := history.Call{At: tick.Add(skew), Every: day}
			if verdict, _ := h.Judge(call, done.Add(skew)); verdict == history.Run {
				runs++
				h = h.With("", history.Attempt{Called: call.At, Token: uint64(n*10 + host)}, 0)
				done = done.Add(time.Duration(n%5) * 7 * time.Hour)
			}
		}
		if runs != 1 {
			t.Fatalf("day %d: got %d runs, want 1", n, runs)
		}
	}
}

func TestHistory_recordAndParse(t *testing.T) {
	if h, err := history.Parse(nil); err != nil || len(h.Jobs) != 0 {
		t.Errorf("no record: got %+v, %v", h, err)
	}
	if record, err := (history.History{}).Record(); err != nil || len(record) != 0 {
		t.Errorf("record of nothing: got %q, %v", record, err)
	}
	a := history.Attempt{Called: midnight, Token: 1 << 62, Owner: "ann"}
	b := history.Attempt{Called: midnight.Add(time.Hour), ExitCode: 255, Token: 9, Owner: "bob"}
	h := history.History{}.With("", a, 0).With("", b, 0).With("key", a, 0)
	record, err := h.Record()
	if err != nil {
		t.Fatal(err)
	}
	again, err := history.Parse(record)
	want := map[string]history.Job{"": {Success: &a, Failure: &b}, "key": {Success: &a}}
	if err != nil || !reflect.DeepEqual(again.Jobs, want) {
		t.Errorf("got %+v, %v, want %+v", again.Jobs, err, want)
	}
	if last := again.LastFailure(""); last != 9 || again.LastFailure("key") != 0 {
		t.Errorf("last failure: got %d, want 9", last)
	}
	if left := again.Without("").Jobs; len(left) != 1 || left["key"].Success == nil {
		t.Errorf("without a key: got %+v", left)
	}
	if job := again.With("", a, 0).Jobs[""]; job.Failure != nil {
		t.Errorf("a success leaves the failure %+v", job.Failure)
	}
}

func TestParse_damaged(t *testing.T) {
	for _, record := range []string{
		"x", "{}", "[]", "null", `{"stile_once":2}`, `{"stile_once":1,"jobs":7}`,
		`{"stile_once":1,"jobs":{"k":{"failure":{"exit_code":0}}}}`,
		`{"stile_once":1,"jobs":{"k":{"failure":{"exit_code":256}}}}`,
		`{"stile_once":1,"jobs":{"k":{"success":{"exit_code":1}}}}`,
		`{"stile_once":1,"jobs":{"k":{"success":{"called":"yesterday"}}}}`,
		`{"stile_once":1,"jobs":{"k":{"success":{"token":"-1"}}}}`,
	} {
		if h, err := history.Parse([]byte(record)); err == nil {
			t.Errorf("%s: got %+v, want an error", record, h)
		}
	}
}

func FuzzParse(f *testing.F) {
	record, err := history.History{}.With("k", history.Attempt{Called: midnight, ExitCode: 3, Token: 7, Owner: "ann"}, 0).Record()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(record)
	f.Fuzz(func(t *testing.T, record []byte) {
		h, err := history.Parse(record)
		if err != nil {
			return
		}
		for key := range h.Jobs {
			verdict, a := h.Judge(history.Call{At: midnight, Key: key, Every: day}, midnight)
			if verdict == history.Failed && (a.ExitCode < 1 || a.ExitCode > 255) {
				t.Errorf("a failure with the exit code %d", a.ExitCode)
			}
		}
	})
}

func TestHistory_keep(t *testing.T) {
	var h history.History
	for n := range 10 {
		h = h.With(fmt.Sprint(n), history.Attempt{Called: midnight.AddDate(0, 0, n), Token: uint64(n + 1)}, 3*day)
	}
	var left []string
	for n := range 10 {
		if h.Jobs[fmt.Sprint(n)].Success != nil {
			left = append(left, fmt.Sprint(n))
		}
	}
	if got := strings.Join(left, ""); got != "6789" || len(h.Jobs) != 4 {
		t.Errorf("got the keys %s of %d, want 6789", got, len(h.Jobs))
	}
	h = h.With("9", history.Attempt{Called: midnight.AddDate(1, 0, 0), ExitCode: 1, Token: 11}, 3*day)
	if job := h.Jobs["9"]; job.Success == nil || job.Failure == nil {
		t.Errorf("the key of the attempt: got %+v, want both attempts", job)
	}
}

// Failures take a bounded part of the record; the newest stay.
func TestHistory_manyFailures(t *testing.T) {
	var h history.History
	h = h.With("done", history.Attempt{Called: midnight, Token: 1}, 0)
	for n := range 250 {
		h = h.With(fmt.Sprint(n), history.Attempt{Called: midnight, ExitCode: 1, Token: uint64(n + 2)}, 0)
	}
	if len(h.Jobs) != 101 || h.Jobs["done"].Success == nil || h.Jobs["249"].Failure == nil || h.Jobs["149"].Failure != nil {
		t.Errorf("got %d keys, want the success and the newest 100 failures", len(h.Jobs))
	}
}

func TestHistory_full(t *testing.T) {
	var h history.History
	for n := 0; ; n++ {
		h.Jobs = h.With(fmt.Sprint(n), history.Attempt{Called: midnight, Token: uint64(n), Owner: strings.Repeat("ä", 200)}, 0).Jobs
		if n%100 != 0 {
			continue
		}
		record, err := h.Record()
		if errors.Is(err, history.ErrFull) {
			break
		}
		if again, err2 := history.Parse(record); err != nil || err2 != nil || len(again.Jobs) != n+1 {
			t.Fatalf("%d keys: %v, %v", n, err, err2)
		}
		if n > 10_000 {
			t.Fatal("the history is never full")
		}
	}
}

func TestCheckKey(t *testing.T) {
	for _, key := range []string{"", "a\n", "\xff", strings.Repeat("x", history.MaxKeyBytes+1)} {
		if history.CheckKey(key) == nil {
			t.Errorf("%q: got no error", key)
		}
	}
	for _, key := range []string{"a", "2026-11-25", "ä b/c", strings.Repeat("x", history.MaxKeyBytes)} {
		if err := history.CheckKey(key); err != nil {
			t.Errorf("%q: got %v", key, err)
		}
	}
}
