package browsertest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// The details have all that an owner says about itself, and what has happened to the lock.
func TestDetail_showsOwnerAndHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	page := w.open("")
	page.awaitText("#empty", "No lock is held")
	c := w.client(stile.Options{Owner: stile.Owner{
		Host: "ci-1", PID: 811, User: "ann", Command: "release.sh", Reason: "release 1.9", Labels: map[string]string{"job": "4711"},
	}})
	h := w.lock(c, "deploy")
	w.join(w.host("ci-2"), "deploy")
	page.await(row("deploy"))
	page.click("#row-" + key("deploy"))
	for _, text := range []string{"release 1.9", "ci-1", "811", "ann", "release.sh", "label job", "4711", "exclusive", "s left"} {
		page.awaitText("#holders", text)
	}
	page.awaitText("#waiters", "ann@ci-2 7 deploy")
	page.await("!document.querySelector('.entry-detail .danger:not([hidden])')") // breaking is not allowed
	w.release(h)
	page.awaitText("#holders", "ann@ci-2 7 deploy")
	page.awaitText("#history", "ann@ci-1 811 release.sh released it after")
	page.awaitText("#history", "ann@ci-2 7 deploy got the lock after waiting for")
	page.click("#close-detail")
	page.await("document.getElementById('detail').hidden")
}

// The timeline has each hold and wait, and how they ended: released, lost and broken.
func TestTimeline_showsHoldsWaitsAndEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.allowBreak()
	page := w.openWithToken(breakToken)
	page.awaitText("#empty", "No lock is held")

	h := w.lock(w.host("releaser"), "deploy")
	leaver := w.join(w.host("leaver"), "deploy")
	page.await(shown("deploy", "waiter") + " === 'leaver'")
	if err := leaver.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.release(h)
	w.loseHold("deploy", "loser")
	w.lock(w.host("victim"), "deploy")
	page.await(shown("deploy", "holder") + " === 'victim deploy'")
	page.breakHolder("deploy", "stuck")
	w.lock(w.host("last"), "deploy")

	page.await(shown("deploy", "holder") + " === 'last deploy'")
	page.press("t")
	for _, ends := range []string{"releaser 7 deploy||released", "leaver 7 deploy||", "loser||lost", "victim 7 deploy||broken", "last 7 deploy||holds"} {
		owner, end, _ := strings.Cut(ends, "||")
		page.await("[...document.querySelectorAll('#spans tr')].some(r => r.children[1].innerText.includes(" + quote(owner) + ") && r.children[4].innerText.includes(" + quote(end) + "))")
	}
	page.awaitText("#timeline-summary", " · 1 loss · 1 break · waits: half up to")
	page.await("+document.getElementById('chart').dataset.gaps >= 1")
	page.await("document.querySelectorAll('#spans tr.bad').length === 2")

	// The drawing has the colors of holds and of losses.
	painted := func(variable string) string {
		return `(() => {
			const c = document.getElementById("chart"), copy = document.createElement("canvas");
			[copy.width, copy.height] = [c.width, c.height];
			const probe = copy.getContext("2d", { willReadFrequently: true });
			probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--` + variable + `").trim();
			probe.fillRect(0, 0, 1, 1);
			const [r, g, b] = probe.getImageData(0, 0, 1, 1).data, d = (probe.drawImage(c, 0, 0), probe.getImageData(0, 0, c.width, c.height).data);
			let n = 0;
			for (let i = 0; i < d.length; i += 4) n += d[i] === r && d[i + 1] === g && d[i + 2] === b;
			return n;
		})()`
	}
	page.await(painted("held") + " > 100")
	page.await(painted("bad") + " > 20")
	page.run(scheme("dark"))
	page.await(painted("held") + " > 100")

	// Keys, buttons and the wheel zoom.
	const shownSeconds = "+document.getElementById('chart').dataset.seconds"
	before := eval[float64](page, shownSeconds)
	page.press("+", "+", "+")
	page.await(fmt.Sprintf("%s < %v", shownSeconds, before/4))
	page.press("0")
	page.await(shownSeconds + " === 3600")
	page.click("[aria-label='zoom in']")
	page.await(shownSeconds + " < 3600")
	page.click("[aria-label='the whole hour']")
	page.await(shownSeconds + " === 3600")
	eval[bool](page, `document.getElementById("chart").dispatchEvent(new WheelEvent("wheel", { deltaY: -400, cancelable: true }))`)
	page.await(shownSeconds + " < 3600")
}

// A deadlock is red, in the graph and as a text.
func TestWaits_showsDeadlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	page := w.open("#waits")
	page.awaitText("#waits-summary", "No holder waits for another lock")
	a, b := w.host("ci-1"), w.host("ci-2")
	holdA, holdB := w.lock(a, "lock/a"), w.lock(b, "lock/b")
	go func() { _, _ = a.Mutex("lock/b").Lock(holdA.Context()) }()
	page.awaitText("#waits", "ann@ci-1 7 deploy holds lock/a and has waited ")
	page.awaitText("#waits", "for lock/b")
	page.await("document.querySelectorAll('#graph .node').length === 2 && document.querySelectorAll('#graph .cycle').length === 0")
	go func() { _, _ = b.Mutex("lock/a").Lock(holdB.Context()) }()
	page.awaitText("#cycles", "Deadlock: lock/")
	page.await("document.querySelectorAll('#graph .node.cycle').length === 2 && document.querySelectorAll('#graph path.cycle').length === 2")
	page.await(`getComputedStyle(document.querySelector("#graph path.cycle")).stroke !== getComputedStyle(document.querySelector("#graph rect")).fill`)
	w.release(holdA)
	page.await("document.querySelectorAll('#cycles p').length === 0")
}

// The waiting is charged to the holder.
func TestBlame_chargesTheHolder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.lock(w.host("slow"), "deploy")
	w.lock(w.host("alone"), "other")
	page := w.open("#blame")
	page.awaitText("#blame-summary", "Nobody has waited")
	w.join(w.host("ci-2"), "deploy")
	w.join(w.host("ci-3"), "deploy")
	page.awaitText("#blame", "slow")
	page.awaitText("#blame", "2 waiters")
	page.await("document.querySelectorAll('#blame tr').length === 1")
	page.await("parseFloat(document.querySelector('#blame td').innerText) > 0")
	page.click("#blame .link")
	page.awaitText("#detail h2", "deploy")
}

// A lock is broken with a reason, by a token of the role, and the page shows the result.
func TestBreak_asksForReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.allowBreak()
	w.lock(w.host("stuck"), "deploy")
	w.join(w.host("next"), "deploy")

	reader := w.openWithToken(readToken)
	reader.await(row("deploy"))
	reader.click("#row-" + key("deploy"))
	reader.awaitText("#holders", "stuck")
	reader.await("!document.querySelector('.entry-detail .danger:not([hidden])')")

	page := w.openWithToken(breakToken)
	page.await(row("deploy"))
	page.click("#row-" + key("deploy"))
	page.click("#holders .danger:not([hidden])")
	page.awaitText("#break", "This ends the hold of ann@stuck 7 deploy")
	page.press(enter) // refused: no reason
	page.await("document.getElementById('break').open && document.getElementById('break-result').innerText === ''")
	page.typeText("INC-7")
	page.press(enter)
	page.awaitText("#break-result", "The entry was removed.")
	page.press(escape)
	page.await(shown("deploy", "holder") + " === 'next deploy'")
	page.awaitText("#history", "stuck 7 deploy was broken")
	if log := w.log.String(); !strings.Contains(log, "INC-7") || !strings.Contains(log, "role=break") {
		t.Errorf("got the log %s", log)
	}
	page.await(`document.cookie === "" && sessionStorage.length === 0 && localStorage.length === 0`)
}

// breakHolder breaks the hold of a lock in the page.
func (t *tab) breakHolder(name, reason string) {
	t.Helper()
	t.click("#row-" + key(name))
	t.click("#holders .danger:not([hidden])")
	t.await("document.activeElement?.id === 'reason'")
	t.typeText(reason)
	t.press(enter)
	t.awaitText("#break-result", "The entry was removed.")
	t.press(escape)
	t.await("!document.getElementById('break').open")
}

// loseHold holds a lock until its session ends in the store, because nobody renews it. If the server was too
// busy to see that it was not renewed, it does so again, for longer.
func (w *world) loseHold(name, host string) {
	w.Helper()
	for ttl := 2 * time.Second; w.holdFor(name, fmt.Sprintf("%s-%v", host, ttl), ttl) != observe.Lost; ttl *= 2 {
	}
}

// holdFor holds a lock until its session ends, and returns why it ended, as far as the server knows.
func (w *world) holdFor(name, host string, ttl time.Duration) (cause string) {
	w.Helper()
	se, err := w.st.Open(w.Context(), store.SessionOptions{TTL: ttl})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = se.Close(context.Background()) })
	if _, err := se.Enqueue(w.Context(), store.Request{Name: name, Mode: line.Exclusive, Owner: store.Owner{Host: host}, Notify: func(store.Standing) {}}); err != nil {
		w.Fatal(err)
	}
	var gone time.Time // since when the store has no entry
	for gone.IsZero() || time.Since(gone) < patience/2 {
		for _, e := range w.source.Observer.History(name) {
			if e.What == observe.Ended && e.Entry.Owner.Host == host {
				return e.Cause
			}
		}
		if gone.IsZero() && w.entries(name) == 0 {
			gone = time.Now()
		}
		sleep(w.Context(), 20*time.Millisecond)
	}
	return "" // the server was too busy to see it at all
}
