package browsertest

import (
	"strings"
	"testing"

	"github.com/stilelock/stile/cmd/stile/internal/page"
	"github.com/stilelock/stile/internal/testservers"
)

// While the store cannot be reached, the page says since when, and keeps what it knows, in gray.
func TestStoreUnreachable_keepsLinesInGray(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.lock(w.host("ci-1"), "deploy")
	tab := w.open("")
	tab.await(row("deploy"))
	w.redis.Kill()
	tab.awaitText("#banner", "The store has not answered since")
	tab.await(row("deploy") + " && getComputedStyle(" + row("deploy") + ".querySelector('.line')).filter.includes('grayscale')")
	w.redis.Start() // empty
	tab.await("document.getElementById('banner').hidden && !document.body.classList.contains('stale')")
	tab.await("!" + row("deploy"))
}

// Without the server, the same. A new server knows nothing of earlier updates: the page reads all lines
// again.
func TestServerRestart_isSurvived(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	h := w.lock(w.host("ci-1"), "old")
	w.lock(w.host("ci-1"), "kept")
	tab := w.open("")
	tab.await(row("old"))
	tab.expectRefusals()
	w.page.Close()
	tab.awaitText("#banner", "Not connected since")
	tab.await(row("old") + " && document.body.classList.contains('stale')")
	w.release(h)
	w.lock(w.host("ci-2"), "new")
	w.serve()
	tab.await(row("new") + " && " + row("kept") + " && !" + row("old"))
	tab.await("document.getElementById('banner').hidden")
	w.lock(w.host("ci-3"), "newer") // events arrive too
	tab.await(row("newer"))
}

// A tab that wakes up connects again if its connection has died meanwhile, which the browser does not report.
func TestSleepingTab_connectsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *page.Config) { c.Address = testservers.Host() + ":0" })
	proxy := testservers.NewProxy(t, w.cfg.Address)
	w.lock(w.host("ci-1"), "before")
	tab := w.openAt("http://"+proxy.Addr(), "")
	tab.await(row("before"))
	proxy.Hold(testservers.Down)
	w.lock(w.host("ci-1"), "meanwhile")
	connects := tab.requests("/api/v1/server")
	eval[bool](tab, `(performance.now = ((now) => () => now() + 30e3)(performance.now.bind(performance)), document.dispatchEvent(new Event("visibilitychange")), true)`)
	tab.awaitGo("a new connection", func() bool { return tab.requests("/api/v1/server") > connects })
	proxy.Release()
	tab.await(row("meanwhile"))
	tab.await("document.getElementById('banner').hidden")
}

// A tab in the background disconnects after a minute, and is up to date again when it is shown. More has
// changed by then than the server sends as changes, so the page reads all lines again.
func TestHiddenTab_disconnects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.lock(w.host("ci-1"), "before")
	tab := w.open("")
	tab.await(row("before"))
	connects := tab.requests("/api/v1/events")
	hide := func(hidden string) {
		t.Helper()
		eval[bool](tab, `(Object.defineProperty(document, "hidden", { value: `+hidden+`, configurable: true }), document.dispatchEvent(new Event("visibilitychange")), true)`)
	}
	// A minute is over at once. The page pauses before it connects again; it must not do so now.
	eval[bool](tab, `(setTimeout = ((set) => (f, ms) => set(ms === 60e3 ? () => { f(); window.hiddenLongAgo = true; } : f, ms === 60e3 ? 0 : ms))(setTimeout), true)`)
	hide("true")
	tab.await("window.hiddenLongAgo")
	w.lock(w.host("ci-1"), "meanwhile")
	newLoad(w, 2100)
	w.awaitObserved(2102)
	if n := tab.requests("/api/v1/events"); n != connects {
		t.Errorf("connected %d times while hidden", n-connects)
	}
	hide("false")
	tab.awaitText("#summary", "2 102 locks")
	if tab.requests("/api/v1/events") == connects {
		t.Error("the connection of the hidden tab was kept")
	}
}

// A server with tokens shows nothing without one. The token is kept in memory only.
func TestToken_isAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.allowBreak()
	w.lock(w.host("ci-1"), "deploy")
	tab := w.open("")
	tab.awaitText("#token-form", "A token is needed")
	tab.await("document.activeElement.id === 'token' && !" + row("deploy"))
	tab.typeText("wrong-token-0123456789")
	tab.press(enter)
	tab.awaitText("#token-refused", "not one of --page-tokens")
	eval[bool](tab, "(document.getElementById('token').value = '', true)")
	tab.typeText(readToken)
	tab.press(enter)
	tab.await(row("deploy") + " && !document.getElementById('token-form')")
	if kept := eval[string](tab, "JSON.stringify([document.cookie, sessionStorage, localStorage, location.href, document.documentElement.outerHTML])"); strings.Contains(kept, readToken) {
		t.Error("the token is kept where others could find it")
	}
}

// A restart of the server does not ask for the token again, unless it has changed.
func TestToken_survivesServerRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.allowBreak()
	w.lock(w.host("ci-1"), "deploy")
	tab := w.openWithToken(readToken)
	tab.await(row("deploy"))
	w.page.Close()
	tab.awaitText("#banner", "Not connected since")
	w.serve()
	tab.await("document.getElementById('banner').hidden")
	w.lock(w.host("ci-1"), "other")
	tab.await(row("other"))
}
