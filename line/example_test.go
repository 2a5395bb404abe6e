package line_test

import (
	"fmt"
	"log"
	"slices"

	"github.com/stilelock/stile/line"
)

// Modes decide which entries may hold at the same time. Their texts are those that stile ls shows.
func ExampleMode() {
	for _, text := range []string{"exclusive", "shared", "slot/3"} {
		var mode line.Mode
		if err := mode.UnmarshalText([]byte(text)); err != nil {
			log.Fatal(err)
		}
		fmt.Println(mode, "beside a reader:", !line.Conflict(mode, line.Shared))
	}
	// Output:
	// exclusive beside a reader: false
	// shared beside a reader: true
	// slot/3 beside a reader: false
}

// A store that reads a whole line sorts its entries, and finds out which are admitted.
func ExampleEntry() {
	entries := []line.Entry{
		{ID: "ann", Order: 12, Mode: line.Shared},
		{ID: "eve", Order: 31, Mode: line.Shared},
		{ID: "bob", Order: 20, Mode: line.Exclusive},
	}
	slices.SortFunc(entries, func(a, b line.Entry) int {
		if a.Before(b) {
			return -1
		}
		return 1
	})
	for i, admitted := range line.Admitted(entries, 0) {
		fmt.Println(entries[i].ID, "admitted:", admitted)
	}
	// Output:
	// ann admitted: true
	// bob admitted: false
	// eve admitted: false
}

// A store that gets events follows its own entry until no entry ahead blocks it.
func ExampleTracker() {
	me := line.Entry{ID: "bob", Order: 20, Mode: line.Exclusive}
	tracker := line.NewTracker(me, []line.Entry{ // the line, as it was read after the entry had joined
		{ID: "ann", Order: 12, Mode: line.Shared},
		{ID: "dan", Order: 15, Mode: line.Shared},
	})
	fmt.Println("must leave first:", tracker.Blocking())
	for _, left := range []line.Entry{{ID: "dan", Order: 33}, {ID: "ann", Order: 34}} { // the events, with their orders
		if tracker.Left(left.ID, left.Order) {
			fmt.Println(left.ID, "left, admitted:", tracker.Admitted())
		}
	}
	// Output:
	// must leave first: 2
	// dan left, admitted: false
	// ann left, admitted: true
}
