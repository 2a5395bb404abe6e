package observe

import (
	"testing"
	"time"

	"github.com/stilelock/stile"
)

// The result of an older reading may arrive after that of a newer one. It must not make a session look as if it
// was not renewed.
func TestLeases_olderReadingArrivesLater(t *testing.T) {
	ls := make(leases)
	start := time.Now()
	confirm := func(after, left time.Duration) {
		entry := stile.Entry{Session: "s", Remaining: left}
		ls.confirm(stile.Line{Name: "a", Holders: []stile.Entry{entry}}, start.Add(after))
	}
	confirm(0, 15*time.Second)
	confirm(11*time.Second, 15*time.Second) // renewed
	confirm(10*time.Second, 5*time.Second)
	for _, tt := range []struct {
		after time.Duration
		left  time.Duration
		cause string
	}{
		{11 * time.Second, 15 * time.Second, Released},
		{25 * time.Second, time.Second, Released},
		{27 * time.Second, time.Nanosecond, ""}, // it may have been renewed since
	} {
		now := start.Add(tt.after)
		if left, cause := ls.remaining("s", now), ls.cause("s", now); left != tt.left || cause != tt.cause {
			t.Errorf("%v after the start: %v left, cause %q; want %v, %q", tt.after, left, cause, tt.left, tt.cause)
		}
	}
	ls.forget(start.Add(26*time.Second+leaseMemory), func(string, string) bool { return false })
	if ls.remaining("s", start) == 0 {
		t.Error("the lease was forgotten early")
	}
	ls.forget(start.Add(27*time.Second+leaseMemory), func(string, string) bool { return false })
	if ls.remaining("s", start) != 0 {
		t.Error("the lease was not forgotten")
	}
}
