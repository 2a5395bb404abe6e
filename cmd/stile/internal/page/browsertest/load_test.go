package browsertest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// measureFrames has the page count its long tasks and the pauses between frames.
const measureFrames = `
	window.measured = { long: [], frames: 0, late: 0, worst: 0 };
	new PerformanceObserver((list) => { for (const e of list.getEntries()) measured.long.push(Math.round(e.duration)); }).observe({ type: "longtask" });
	let last = performance.now();
	const frame = (now) => {
		const pause = now - last;
		last = now;
		measured.frames++;
		if (pause > 50) measured.late++;
		measured.worst = Math.max(measured.worst, Math.round(pause));
		window.onFrame?.();
		requestAnimationFrame(frame);
	};
	requestAnimationFrame(frame);
	true`

// BenchmarkLoad shows the page with 10 000 locks and 200 changes a second for a minute, or as long as
// STILE_PAGE_LOAD says, and reports long tasks, late frames and memory. It fails on nothing, because the
// figures depend on the machine.
func BenchmarkLoad(b *testing.B) {
	duration := time.Minute
	if text := os.Getenv("STILE_PAGE_LOAD"); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() { // once, because it takes more than a second
		measureLoad(b, duration)
	}
}

func measureLoad(t testing.TB, duration time.Duration) {
	const part = 10 * time.Second
	w := newWorld(t, nil)
	l := newLoad(w, 10_000)
	begin := time.Now()
	page := w.open("", size(1280, 800))
	page.awaitText("#summary", "10 000 locks")
	page.await(row(l.name(0)))
	t.Logf("all lines shown after %v", time.Since(begin).Round(time.Millisecond))
	eval[bool](page, measureFrames)
	page.run(chromedp.Func(func(ctx context.Context, to *chromedp.Target) error {
		_, err := cdp.Call(ctx, to, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks})
		return err
	}))

	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan int)
	go func() {
		n := 0
		defer func() { changed <- n }()
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-tick.C:
				for range 5 {
					l.change()
					n += 2
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	start := time.Now()
	t.Logf("memory at the start: %s", page.heap())
	phase := func(name string, d time.Duration, js string) {
		busy, begin := page.busy(), time.Now()
		eval[bool](page, "(measured = { long: [], frames: 0, late: 0, worst: 0 }, window.onFrame = "+js+", true)")
		sleep(t.Context(), d)
		share := (page.busy() - busy).Seconds() / time.Since(begin).Seconds()
		t.Logf("%s for %v: the page's thread used %.1f %% of a processor; %s", name, d.Round(time.Second), 100*share, eval[string](page, `(onFrame = undefined, measured.long.length + " long tasks, the longest " + Math.max(0, ...measured.long) +
			" ms; " + measured.frames + " frames, " + measured.late + " after more than 50 ms, the longest " + measured.worst + " ms; " + document.querySelectorAll("*").length + " elements")`))
	}
	phase("looking", part, "undefined")
	phase("scrolling", part, "() => { const v = document.getElementById('lines'); v.scrollTop = (v.scrollTop + 200) % (v.scrollHeight - v.clientHeight); }")
	page.press("/")
	page.typeText("host-1 ")
	phase("searching", part, "undefined")
	page.press(escape, escape)
	t.Logf("memory after %v: %s", time.Since(start).Round(time.Second), page.heap())
	phase("looking on", max(part, duration-time.Since(start)), "undefined")
	t.Logf("memory after %v: %s", time.Since(start).Round(time.Second), page.heap())
	cancel()
	n := <-changed
	t.Logf("%.0f changes a second", float64(n)/time.Since(start).Seconds())
}

// busy returns the processor time that the page's main thread has used, which does not depend on other
// processes.
func (t *tab) busy() (used time.Duration) {
	t.Helper()
	t.run(chromedp.Func(func(ctx context.Context, to *chromedp.Target) error {
		r, err := cdp.Call(ctx, to, performance.GetMetrics, cdp.Empty{})
		for _, m := range r.Metrics {
			if m.Name == "TaskDuration" {
				used = time.Duration(m.Value * float64(time.Second))
			}
		}
		return err
	}))
	return used
}

// heap returns how much memory the page's JavaScript uses, after a collection of garbage.
func (t *tab) heap() string {
	t.Helper()
	var used float64
	t.run(chromedp.Func(func(ctx context.Context, to *chromedp.Target) error {
		if _, err := cdp.Call(ctx, to, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
			return err
		}
		usage, err := cdp.Call(ctx, to, runtime.GetHeapUsage, cdp.Empty{})
		used = usage.UsedSize
		return err
	}))
	return fmt.Sprintf("%.1f MB", used/1e6)
}
