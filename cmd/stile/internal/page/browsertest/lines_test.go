package browsertest

import (
	"fmt"
	"testing"
)

func entries(name, class string) string {
	return fmt.Sprintf("%s && [...%[1]s.querySelectorAll('.%s .who')].map(e => e.innerText).join()", row(name), class)
}

// The rows show the holders and the waiters of the store, in order.
func TestLines_showWhatTheStoreHas(t *testing.T) {
	w := newWorld(t, nil)
	ci1, ci2, ci3 := w.host("ci-1"), w.host("ci-2"), w.host("ci-3")
	w.lock(ci1, "orders/1")
	w.lock(ci1, "orders/2")
	w.join(ci2, "orders/1")
	w.join(ci3, "orders/1")
	for _, c := range []string{"a", "b"} {
		if _, err := w.host(c).Semaphore("pool", 3).Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	page := w.open("")
	page.await(entries("orders/1", "holder") + " === 'ann@ci-1 7 deploy'")
	page.await(entries("orders/1", "waiter") + " === 'ci-2,ci-3'")
	page.await(row("orders/1") + ".querySelector('.queue').innerText === '2 waiting'")
	page.await(entries("orders/2", "waiter") + " === ''")
	page.await(row("pool") + ".querySelector('.use').innerText === '2 of 3 slots'")
	page.awaitText("#summary", "3 locks · 3 held · 2 waiters at 1")
}
