package validity

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/cmd/stile/internal/uptime"
)

func newRecord(t *testing.T) *Record {
	t.Helper()
	r, err := Create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func expectOver(t *testing.T, when string, r *Record) {
	t.Helper()
	if left, err := Left(r.Reference()); left != 0 || !errors.Is(err, ErrOver) {
		t.Errorf("%s: got %v, %v, want ErrOver", when, left, err)
	}
}

func TestLeft(t *testing.T) {
	t.Parallel()
	r := newRecord(t)
	expectOver(t, "a new record", r)
	r.Until(uptime.Now() + time.Hour)
	if left, err := Left(r.Reference()); err != nil || left > time.Hour || left < time.Minute {
		t.Errorf("got %v, %v, want almost an hour", left, err)
	}
	r.Until(uptime.Now())
	expectOver(t, "after the deadline", r)
	r.Until(uptime.Now() + time.Hour)
	r.Until(0)
	expectOver(t, "after zero", r)
	r.Until(uptime.Now() + time.Hour)
	r.Close()
	expectOver(t, "after Close", r)
}

// A later file may have the path of a record.
func TestLeft_anotherFileAtPath(t *testing.T) {
	t.Parallel()
	r := newRecord(t)
	r.Until(uptime.Now() + time.Hour)
	earlier := strings.TrimSuffix(r.Reference(), r.id) + "another"
	if left, err := Left(earlier); left != 0 || !errors.Is(err, ErrOver) {
		t.Errorf("another record: got %v, %v, want ErrOver", left, err)
	}
	for _, nonsense := range []string{"", "x", "/no/such/file"} {
		if _, err := Left(nonsense); err == nil {
			t.Errorf("%q: no error", nonsense)
		}
	}
	text, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	if _, err := text.WriteString("some text"); err != nil {
		t.Fatal(err)
	}
	if left, err := Left(text.Name() + "#" + r.id); left != 0 || err == nil {
		t.Errorf("a file that is no record: got %v, %v, want an error", left, err)
	}
}

// A reader never sees half of two writes.
func TestLeft_whileWritten(t *testing.T) {
	t.Parallel()
	r := newRecord(t)
	now := uptime.Now()
	moments := []time.Duration{now + 11111*time.Hour, now + 22222*time.Hour}
	r.Until(moments[0])
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				r.Until(moments[i%2])
			}
		}
	}()
	for range 2000 {
		before := uptime.Now()
		left, err := Left(r.Reference())
		after := uptime.Now()
		ok := false
		for _, m := range moments {
			ok = ok || m-after <= left && left <= m-before
		}
		if err != nil && !strings.Contains(err.Error(), "changes all the time") || err == nil && !ok {
			t.Errorf("got %v, %v, want the time to one of %v", left, err, moments)
		}
	}
	close(stop)
	<-stopped
}

func TestRecord_nil(t *testing.T) {
	t.Parallel()
	var r *Record
	r.Until(1)
	r.Close()
	if r.Reference() != "" {
		t.Errorf("got reference %q, want none", r.Reference())
	}
}
