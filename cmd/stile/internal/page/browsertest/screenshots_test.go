package browsertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/stilelock/stile"
)

// maxImageBytes limits the size of the images in the documentation.
const maxImageBytes = 150 << 10

// The images of docs/images are those of this test with STILE_SCREENSHOTS=docs/images (an absolute path).
// Then it takes half a minute, because the timeline needs something to show.
func TestScreenshots(t *testing.T) {
	t.Parallel()
	dir, d := os.Getenv("STILE_SCREENSHOTS"), 25*time.Second
	if dir == "" {
		dir, d = t.TempDir(), time.Second
	}
	w := newWorld(t, nil)
	w.demo(d)
	page := w.open("", size(1180, 560), media(
		&emulation.MediaFeature{Name: "prefers-color-scheme", Value: "light"}, &emulation.MediaFeature{Name: "prefers-reduced-motion", Value: "reduce"}))
	page.await(row("deploy/shop"))
	page.await("document.querySelectorAll('#tree li').length > 5")
	page.shoot(dir, "lines")
	eval[bool](page, "(location.hash = '#timeline/"+key("deploy/shop")+"', true)")
	page.awaitText("#timeline-summary", "holds")
	page.shoot(dir, "timeline")
}

// shoot writes an image of what the tab shows.
func (t *tab) shoot(dir, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	image, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		t.Fatal(err)
	}
	if len(image) > maxImageBytes {
		t.Errorf("image %s has %d bytes, more than %d", name, len(image), maxImageBytes)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), image, 0o644); err != nil {
		t.Fatal(err)
	}
}

// demo gives the store something to show: after a while of deploys, jobs and a deadlock.
func (w *world) demo(d time.Duration) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	w.Cleanup(cancel)
	owner := func(host, command, reason string, pid int) *stile.Client {
		return w.client(stile.Options{Owner: stile.Owner{Host: host, User: "deploy", PID: pid, Command: command, Reason: reason}})
	}
	for i := range 5 { // hand over and over again
		c := owner(fmt.Sprintf("ci-%d", i+1), "release.sh", "release 1.9: the new checkout", 4100+37*i)
		go func() {
			for ctx.Err() == nil {
				if h, err := c.Mutex("deploy/shop").Lock(ctx); err == nil {
					sleep(ctx, time.Duration(900+700*((i*7)%5))*time.Millisecond)
					_ = h.Release(context.WithoutCancel(ctx))
				}
				sleep(ctx, time.Duration(300+900*((i*3)%4))*time.Millisecond)
			}
		}()
	}
	for i := range 4 {
		c := owner(fmt.Sprintf("render-%d", i+1), "thumbs", "", 900+i)
		w.wait(c.Semaphore("pool/thumbnails", 3).Join(ctx))
	}
	for i := range 7 {
		w.lock(owner("db-1", "vacuum", "nightly", 60+i), fmt.Sprintf("jobs/vacuum-%d", i+1))
	}
	w.lock(owner("cron-2", "backup.sh", "", 811), "jobs/backup")
	w.wait(owner("cron-1", "backup.sh", "", 5122).Mutex("jobs/backup").Join(ctx))
	w.wait(owner("web-1", "server", "", 17).RWMutex("config").RJoin(ctx))
	w.wait(owner("web-2", "server", "", 19).RWMutex("config").RJoin(ctx))
	w.wait(owner("admin-1", "edit-config", "raise the limits", 3301).RWMutex("config").Join(ctx))
	a, b := owner("billing-1", "invoice", "", 71), owner("billing-2", "refund", "", 72)
	held := w.lock(b, "stock/4")
	w.nest(a, "orders/17", "stock/4")
	go func() { _, _ = b.Mutex("orders/17").Lock(held.Context()) }()
	w.nest(owner("billing-3", "report", "", 73), "reports/may", "orders/17")
	sleep(ctx, d/2)
	for _, holder := range w.source.Observer.Line("deploy/shop").Holders { // one is broken
		w.source.Observer.Broken("deploy/shop", holder.Token)
		_, _ = w.source.Client.Break(ctx, "deploy/shop", holder.Token)
	}
	sleep(ctx, d/2)
}

// wait is for the result of a Join.
func (w *world) wait(_ *stile.Place, err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}
