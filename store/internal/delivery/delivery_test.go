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

// delivered begins a delivery, delivers standings, and returns those that the owner got.
func delivered(standings ...store.Standing) []store.Standing {
	var got []store.Standing
	d := delivery.New(func(now store.Standing) { got = append(got, now) })
	d.Begin()
	for _, now := range standings {
		d.Deliver(now)
	}
	return got
}

func TestDelivery_deliver(t *testing.T) {
	later := store.Standing{State: store.Gone, Cause: errors.New("another cause")}
	for what, c := range map[string]struct{ delivered, want []store.Standing }{
		"in order":               {[]store.Standing{waiting(2), waiting(1), admitted, gone}, []store.Standing{waiting(2), waiting(1), admitted, gone}},
		"each once":              {[]store.Standing{waiting(2), waiting(2), admitted, admitted}, []store.Standing{waiting(2), admitted}},
		"more ahead":             {[]store.Standing{waiting(1), waiting(2)}, []store.Standing{waiting(1), waiting(2)}},
		"waiting after admitted": {[]store.Standing{admitted, waiting(1)}, []store.Standing{admitted}},
		"anything after gone":    {[]store.Standing{waiting(1), gone, admitted, waiting(1), later}, []store.Standing{waiting(1), gone}},
		"gone first":             {[]store.Standing{gone, admitted}, []store.Standing{gone}},
		"none ahead":             {[]store.Standing{waiting(0)}, []store.Standing{waiting(0)}}, // the zero Standing
	} {
		t.Run(what, func(t *testing.T) {
			if got := delivered(c.delivered...); !slices.Equal(got, c.want) {
				t.Errorf("delivered %v: got %v, want %v", c.delivered, got, c.want)
			}
		})
	}
}

func TestDelivery_begin(t *testing.T) {
	var got []store.Standing
	d := delivery.New(func(now store.Standing) { got = append(got, now) })
	if d.Waiting() {
		t.Error("Waiting before Begin: got true")
	}
	if !d.Deliver(waiting(1)) || !d.Deliver(admitted) {
		t.Error("Deliver before Begin: got false, want true")
	}
	if len(got) > 0 {
		t.Errorf("before Begin: got %v, want nothing", got)
	}
	d.Begin()
	if !slices.Equal(got, []store.Standing{admitted}) {
		t.Errorf("after Begin: got %v, want only the last standing", got)
	}
	d.Deliver(gone)
	if !slices.Equal(got, []store.Standing{admitted, gone}) {
		t.Errorf("got %v, want admitted and gone", got)
	}
}

func TestDelivery_silence(t *testing.T) {
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
				t.Error("Deliver after Silence: got true")
			}
			if calls != want {
				t.Errorf("got %d calls, want %d", calls, want)
			}
			if last, known := d.Last(); !known || last != admitted {
				t.Errorf("Last: got %v, %t; want the standing before Silence", last, known)
			}
		})
	}
}

func TestDelivery_states(t *testing.T) {
	d := delivery.New(nil) // no callback
	want := func(what string, waiting, admitted, over bool) {
		t.Helper()
		if d.Waiting() != waiting || d.Admitted() != admitted || d.Over() != over {
			t.Errorf("%s: waiting %t, admitted %t, over %t; want %t, %t, %t", what, d.Waiting(), d.Admitted(), d.Over(), waiting, admitted, over)
		}
	}
	if _, known := d.Last(); known {
		t.Error("Last of a new Delivery: got known")
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
		t.Error("Over after Silence: got false")
	}
	d.Deliver(gone)
	want("gone", false, false, true)
}
