package delivery_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/delivery"
)

func waiting(ahead int) store.Standing { return store.Standing{State: store.Waiting, Ahead: ahead} }

var (
	admitted = store.Standing{State: store.Admitted, Order: 7}
	gone     = store.Standing{State: store.Gone, Cause: store.ErrGone}
)

// heard begins a delivery, delivers standings, and returns those that the owner got.
func heard(standings ...store.Standing) []store.Standing {
	var got []store.Standing
	d := delivery.New(func(now store.Standing) { got = append(got, now) })
	d.Begin()
	for _, now := range standings {
		d.Deliver(now)
	}
	return got
}

func TestDelivery_Deliver(t *testing.T) {
	later := store.Standing{State: store.Gone, Cause: errors.New("another cause")}
	for what, c := range map[string]struct{ delivered, want []store.Standing }{
		"in order":             {[]store.Standing{waiting(2), waiting(1), admitted, gone}, []store.Standing{waiting(2), waiting(1), admitted, gone}},
		"each once":            {[]store.Standing{waiting(2), waiting(2), admitted, admitted}, []store.Standing{waiting(2), admitted}},
		"more ahead is news":   {[]store.Standing{waiting(1), waiting(2)}, []store.Standing{waiting(1), waiting(2)}},
		"admitted stays so":    {[]store.Standing{admitted, waiting(1)}, []store.Standing{admitted}},
		"gone is the end":      {[]store.Standing{waiting(1), gone, admitted, waiting(1), later}, []store.Standing{waiting(1), gone}},
		"gone before anything": {[]store.Standing{gone, admitted}, []store.Standing{gone}},
		"nobody ahead":         {[]store.Standing{waiting(0)}, []store.Standing{waiting(0)}}, // equal to the zero Standing
	} {
		t.Run(what, func(t *testing.T) {
			if got := heard(c.delivered...); !slices.Equal(got, c.want) {
				t.Errorf("delivered %v; the owner got %v, want %v", c.delivered, got, c.want)
			}
		})
	}
}

func TestDelivery_Begin(t *testing.T) {
	var got []store.Standing
	d := delivery.New(func(now store.Standing) { got = append(got, now) })
	if d.Waiting() {
		t.Error("the owner awaits a turn before the delivery has begun")
	}
	if !d.Deliver(waiting(1)) || !d.Deliver(admitted) {
		t.Error("what comes before the delivery begins is no news")
	}
	if len(got) > 0 {
		t.Errorf("before the delivery began the owner got %v", got)
	}
	d.Begin()
	if !slices.Equal(got, []store.Standing{admitted}) {
		t.Errorf("as the delivery began the owner got %v, want the last standing", got)
	}
	d.Deliver(gone)
	if !slices.Equal(got, []store.Standing{admitted, gone}) {
		t.Errorf("the owner got %v", got)
	}
}

func TestDelivery_Silence(t *testing.T) {
	for what, want := range map[string]int{"begun": 1, "not begun": 0} {
		t.Run(what, func(t *testing.T) {
			calls := 0
			d := delivery.New(func(store.Standing) { calls++ })
			if what == "begun" {
				d.Begin()
			}
			d.Deliver(admitted)
			d.Silence()
			d.Begin()
			if d.Deliver(gone) {
				t.Error("there is news for an owner that was silenced")
			}
			if calls != want {
				t.Errorf("the owner was called %d times, want %d: before it was silenced", calls, want)
			}
			if last, known := d.Last(); !known || last != admitted {
				t.Errorf("the last standing is %v (%t), want the one before the silence", last, known)
			}
		})
	}
}

func TestDelivery_States(t *testing.T) {
	d := delivery.New(nil) // an owner that wants to hear nothing
	want := func(what string, waiting, admitted, over bool) {
		t.Helper()
		if d.Waiting() != waiting || d.Admitted() != admitted || d.Over() != over {
			t.Errorf("%s: waiting %t, admitted %t, over %t; want %t, %t, %t", what, d.Waiting(), d.Admitted(), d.Over(), waiting, admitted, over)
		}
	}
	if _, known := d.Last(); known {
		t.Error("a standing is known of an entry that nothing is known of")
	}
	want("new", false, false, false)
	d.Begin()
	want("begun", true, false, false)
	d.Deliver(waiting(1))
	want("waiting", true, false, false)
	d.Deliver(admitted)
	want("admitted", false, true, false)
	silenced := d
	silenced.Silence()
	if !silenced.Over() {
		t.Error("it is not over when the owner was silenced")
	}
	d.Deliver(gone)
	want("gone", false, false, true)
}
