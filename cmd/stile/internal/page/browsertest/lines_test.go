package browsertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// shown returns an expression for the entries of a class in the row of a lock, as one text.
func shown(name, class string) string {
	return fmt.Sprintf("%s && [...%[1]s.querySelectorAll('.%s .who')].map(e => e.innerText).join()", row(name), class)
}

// The rows show the holders and the waiters of the store, in order.
func TestLines_showWhatTheStoreHas(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	ci1, ci2, ci3 := w.host("ci-1"), w.host("ci-2"), w.host("ci-3")
	w.lock(ci1, "orders/1")
	w.lock(ci1, "orders/2")
	w.join(ci2, "orders/1")
	w.join(ci3, "orders/1")
	for _, host := range []string{"a", "b"} {
		if _, err := w.host(host).Semaphore("pool", 3).Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	page := w.open("")
	page.await(shown("orders/1", "holder") + " === 'ci-1 deploy'")
	page.await(shown("orders/1", "waiter") + " === 'ci-2,ci-3'")
	page.await(row("orders/1") + ".querySelector('.queue').innerText === '2 waiting'")
	page.await(shown("orders/2", "waiter") + " === ''")
	page.await(row("pool") + ".querySelector('.use').innerText === '2 of 3 slots'")
	page.awaitText("#summary", "3 locks · 3 held · 1 waited for, by 2 waiters")
	page.awaitText("#store", "redis://"+w.redis.Addr())
}

// A client may have released a lock that it keeps. The page says so.
func TestLines_keptLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.release(w.lock(w.client(stile.Options{Linger: time.Hour}), "kept"))
	w.lock(w.host("ci-1"), "held")
	page := w.open("")
	page.await(row("kept") + "?.querySelector('.use').innerText === 'held or kept'")
	page.await(row("held") + "?.querySelector('.use').innerText === 'held'")
}

// At a hand-over the waiter's own element becomes that of the holder, and moves to its place. A lock that
// is free leaves.
func TestLines_waiterStepsForwardAtHandOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	first := w.lock(w.host("ci-1"), "orders/1")
	second := w.join(w.host("ci-2"), "orders/1")
	page := w.open("")
	page.await(shown("orders/1", "waiter") + " === 'ci-2'")
	eval[bool](page, `(window.waiter = `+row("orders/1")+`.querySelector(".waiter"), window.moves = [],
		waiter.animate = (frames) => { moves.push(frames[0].transform); return {}; }, true)`)
	w.release(first)
	page.await(shown("orders/1", "holder") + " === 'ci-2 deploy'")
	page.await("waiter.classList.contains('holder') && waiter.isConnected")
	page.await("moves.length === 1 && moves[0].startsWith('translateX(') && parseFloat(moves[0].slice(11)) > 0")
	hold, err := second.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.release(hold)
	page.await("!" + row("orders/1"))
	page.awaitText("#empty", "No lock is held or waited for.")
}

// The bar of a holder shrinks with its lease, and jumps at each renewal.
func TestLines_barFollowsTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.lock(w.client(stile.Options{TTL: 30 * time.Second}), "orders/1")
	page := w.open("")
	page.await(row("orders/1") + "?.querySelector('.leased .lease')")
	// The page itself looks at the bar in each frame, so that nothing is missed.
	eval[bool](page, `(window.least = Infinity, window.most = 0, (function look() {
		const width = `+row("orders/1")+`.querySelector(".lease").getBoundingClientRect().width;
		least = Math.min(least, width);
		most = Math.max(most, width);
		requestAnimationFrame(look);
	})(), true)`)
	page.await("least > 0 && least < 0.9 * most")
	page.await("+" + row("orders/1") + ".querySelector('.holder').dataset.renewals >= 1")
}

// Searching, the tree of prefixes and the button choose which locks are shown.
func TestLines_searchTreeAndFilter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	c := w.host("ci-1")
	for _, name := range []string{"orders/1", "orders/2", "orders/eu/3", "stock/1"} {
		w.lock(c, name)
	}
	w.lock(w.host("billing-7"), "stock/2")
	w.join(w.host("ci-2"), "stock/1")
	page := w.open("")
	names := func(want ...string) {
		t.Helper()
		page.await("[...document.querySelectorAll('#lines .name')].map(e => e.innerText).sort().join() === " + quote(strings.Join(want, ",")))
	}
	names("orders/1", "orders/2", "orders/eu/3", "stock/1", "stock/2")
	page.await("[...document.querySelectorAll('#tree .prefix')].map(e => e.innerText.replace(/\\s/g, '')).join() === 'alllocks5,orders/3,stock/2'")
	page.click(`#tree [data-prefix="orders/"] > .prefix`)
	names("orders/1", "orders/2", "orders/eu/3")
	page.await("document.querySelector('#tree [data-prefix=\"orders/eu/\"]')") // unfolded
	page.click(`#tree [data-prefix="orders/"] > .fold`)
	page.await("!document.querySelector('#tree [data-prefix=\"orders/eu/\"]')")
	page.click(`#tree [data-prefix=""] > .prefix`)
	page.press("/")
	page.typeText("BILLING")
	names("stock/2")
	page.press(escape, escape)
	page.press("w")
	names("stock/1")
	page.awaitText("#summary", "1 of 5 locks")
	page.press("w")
	page.press("/")
	page.typeText("no such lock")
	page.awaitText("#empty", "No lock matches.")
	for _, view := range []string{"timeline", "waits", "blame"} { // they do not search: the lines are shown
		page.press(escape, escape)
		page.click("#to-" + view)
		page.await("document.body.dataset.view === " + quote(view))
		page.press("/")
		page.typeText("BILLING")
		page.await("document.body.dataset.view === 'lines'")
		names("stock/2")
	}
}

// The keys select rows, open and close details, and change the view.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	c := w.host("ci-1")
	for _, name := range []string{"a", "b", "c"} {
		w.lock(c, name)
	}
	page := w.open("")
	page.await(row("c"))
	selected := func(name string) {
		t.Helper()
		page.await("document.querySelector('#lines [aria-selected=true]') === " + row(name))
	}
	page.press("j")
	selected("a")
	page.press("j", down)
	selected("c")
	page.press("j", "k")
	selected("b")
	page.press(up)
	selected("a")
	page.press(enter)
	page.awaitText("#detail h2", "a")
	page.press("j")
	page.awaitText("#detail h2", "b")
	page.press(escape)
	page.await("document.getElementById('detail').hidden")
	page.press("?")
	page.await("document.getElementById('help').open")
	page.press(escape)
	page.await("!document.getElementById('help').open")
	page.press("t")
	page.awaitText("#timeline-title", "b")
	for key, title := range map[string]string{"3": "Holders that wait", "4": "Holders that others waited for"} {
		page.press(key)
		page.awaitText("#view h2", title)
	}
	page.press("1")
	selected("b")
	eval[bool](page, "(history.back(), true)")
	page.await("document.body.dataset.view !== 'lines'")
}

// Names and owners are hostile: none runs, none is markup, none changes the text around it, and a long one
// does not break the page.
func TestHostileText_isInert(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	names := []string{
		`<img src=x onerror=alert(1)>`, `"><script>alert(1)</script>`, "javascript:alert(1)", "\u202etxt.exe", "a\x00b\nc", "\xff\xfe",
		strings.Repeat("w", 512), strings.Repeat("長", 170), "שלום/مرحبا", "__proto__", "constructor/toString", "' onmouseover='alert(1)",
	}
	for i, name := range names {
		bad := `<b onclick=alert(2)>` + "\u202e" + `</b><script>alert(2)</script>`
		owner := store.Owner{Host: bad, User: bad, Command: bad, Reason: bad, PID: i + 1, Value: bad, Labels: map[string]string{"__proto__": bad, bad: bad}}
		w.foreign(name, owner)
		w.foreign(name, owner) // waits
	}
	page := w.open("", size(360, 640))
	page.await("document.querySelector('#summary')?.innerText.startsWith('" + fmt.Sprint(len(names)) + " locks')")
	page.run(size(1280, 1600))
	page.await("document.querySelectorAll('.row').length === " + fmt.Sprint(len(names)))
	for _, name := range names {
		for _, view := range []string{"lines", "timeline"} {
			eval[bool](page, fmt.Sprintf("(location.hash = '#%s/%s', true)", view, key(name)))
			page.await("document.body.dataset.view === '" + view + "'")
			if view == "timeline" {
				page.awaitText("#timeline-summary", "1 hold")
				continue
			}
			page.press(enter)
			page.await("document.querySelectorAll('#detail .entry-detail').length === 2")
			page.press(escape)
		}
	}
	page.press("3")
	page.awaitText("#waits-summary", "No holder waits")
	page.press("4")
	page.await("document.querySelectorAll('#blame tr').length === " + fmt.Sprint(len(names)))
	page.press("1")
	page.await(row("\u202etxt.exe") + "?.innerText.includes('u202e')")
	if n := eval[int](page, "document.querySelectorAll('img, b[onclick], main script, header script').length"); n != 0 {
		t.Errorf("%d elements were made from names", n)
	}
	if eval[bool](page, "document.body.innerText.includes('\\u202e')") {
		t.Error("a mark that reverses the text is in the page")
	}
	if text := eval[string](page, row(names[0])+".querySelector('.name').textContent"); text != names[0] {
		t.Errorf("got %q, want the name itself", text)
	}
}

// On a phone nothing is wider than the screen, in any view.
func TestPhone_doesNotScrollSideways(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	long := strings.Repeat("release", 10) + "/" + strings.Repeat("x", 200)
	w.lock(w.host("ci-1"), long)
	for i := range 9 {
		w.join(w.host(fmt.Sprintf("runner-with-a-long-name-%d", i)), long)
	}
	w.nest(w.host("ci-3"), "held", long)
	page := w.open("", size(360, 640))
	page.await(row(long))
	fits := func(view string) {
		t.Helper()
		if got := eval[string](page, `[document.documentElement, document.body, ...document.querySelectorAll("main, #view, #detail, #lines")]
			.filter(e => e.scrollWidth > e.clientWidth).map(e => e.id || e.tagName).join()`); got != "" {
			t.Errorf("%s: wider than the screen: %s", view, got)
		}
	}
	fits("lines")
	page.click("#row-" + key(long))
	page.awaitText("#waiters", "runner-with-a-long-name-8")
	fits("details")
	page.click("#to-its-timeline")
	page.awaitText("#spans", "runner-with-a-long-name-8")
	fits("timeline")
	page.click("#to-waits")
	page.awaitText("#waits", "ci-3")
	fits("waits")
	page.click("#to-blame")
	page.awaitText("#blame", "ci-1")
	fits("blame")
}

// The colors follow the preference of the system, also while the page is shown.
func TestColors_darkAndLight(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.lock(w.host("ci-1"), "a")
	page := w.open("", scheme("light"))
	brightness := "getComputedStyle(document.body).%s.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0) / 3"
	paper, ink := fmt.Sprintf(brightness, "backgroundColor"), fmt.Sprintf(brightness, "color")
	page.await(row("a"))
	page.await(paper + " > 200 && " + ink + " < 60")
	page.run(scheme("dark"))
	page.await(paper + " < 60 && " + ink + " > 200")
}

// With thousands of locks only the rows in view are in the document, wherever it is scrolled to.
func TestLines_keepOnlyRowsInView(t *testing.T) {
	t.Parallel()
	const n = 3000
	w := newWorld(t, nil)
	l := newLoad(w, n)
	w.awaitObserved(n)
	page := w.open("", size(1000, 700))
	page.awaitText("#summary", "3 000 locks")
	page.await(row(l.name(0)))
	nodes := "document.querySelectorAll('*').length"
	const limit = 1500
	if got := eval[int](page, nodes); got > limit {
		t.Errorf("%d elements, want at most %d", got, limit)
	}
	page.press(end)
	page.await(row(l.name(n - 1)))
	page.await("!" + row(l.name(0)))
	page.press(home)
	page.await(row(l.name(0)))
	for range 300 {
		l.change()
	}
	eval[bool](page, "(document.getElementById('lines').scrollTop = 44 * 1500, true)")
	page.await(row(l.name(1500)))
	if got := eval[int](page, nodes); got > limit {
		t.Errorf("%d elements after changes, want at most %d", got, limit)
	}
}

// awaitObserved waits until the server knows of n locks. While the machine is busy, that may take long.
func (w *world) awaitObserved(n int) {
	w.Helper()
	for {
		if lines, _ := w.source.Observer.Lines("", "", n+1); len(lines) == n {
			return
		}
		sleep(w.Context(), 20*time.Millisecond)
	}
}

// load is a session with many entries, as those of many clients.
type load struct {
	*world
	session store.Session
	tickets []store.Ticket
	next    int
}

func newLoad(w *world, n int) *load {
	w.Helper()
	se, err := w.st.Open(w.Context(), store.SessionOptions{TTL: time.Hour})
	if err != nil {
		w.Fatal(err)
	}
	l := &load{world: w, session: se, tickets: make([]store.Ticket, n)}
	for i := range n {
		l.enqueue(i)
	}
	return l
}

func (l *load) name(i int) string { return fmt.Sprintf("load/%02d/%05d", i/500, i) }

func (l *load) enqueue(i int) {
	l.Helper()
	t, err := l.session.Enqueue(l.Context(), store.Request{
		Name: l.name(i), Mode: line.Exclusive, Notify: func(store.Standing) {},
		Owner: store.Owner{Host: fmt.Sprintf("host-%d", i%97), User: "load", PID: i + 1, Command: "worker", Since: time.Now()},
	})
	if err != nil {
		l.Fatal(err)
	}
	l.tickets[i] = t
}

// change replaces the holder of one lock: two changes.
func (l *load) change() {
	l.Helper()
	i := (l.next * 7919) % len(l.tickets)
	l.next++
	if err := l.tickets[i].Withdraw(l.Context()); err != nil {
		l.Fatal(err)
	}
	l.enqueue(i)
}
