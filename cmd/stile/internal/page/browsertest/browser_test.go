// Package browsertest tests the page of stile serve in a browser, against real stores.
package browsertest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	pageevents "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/cmd/stile/internal/page"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/storeurl"
)

// patience is how long a condition may take on a machine that is busy.
const patience = 3 * time.Minute

// ttl is long, because a test may be stopped for seconds on a busy machine.
const ttl = 5 * time.Minute

// browser is the browser that all tests share.
type browser struct {
	ctx   context.Context
	close func()
}

var (
	running     *browser // nil if no test has needed it
	openBrowser = sync.OnceValues(func() (*browser, error) {
		path, err := testservers.Chromium()
		if err != nil {
			return nil, err
		}
		options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
			chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WSURLReadTimeout(patience), chromedp.WindowSize(1280, 800))
		allocator, closeAllocator := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, closeBrowser := chromedp.NewContext(allocator)
		running = &browser{ctx, func() { closeBrowser(); closeAllocator() }}
		return running, chromedp.Do(ctx)
	})
)

func TestMain(m *testing.M) {
	code := m.Run()
	if running != nil {
		running.close()
	}
	os.Exit(code)
}

// startBrowser starts the browser unless it runs.
func startBrowser(t testing.TB) context.Context {
	t.Helper()
	b, err := openBrowser()
	testservers.Check(t, err)
	return b.ctx
}

// world is a store with a page.
type world struct {
	testing.TB
	redis  *testservers.Redis
	st     store.Store
	page   *page.Page
	cfg    page.Config
	source page.Source
	log    logBuffer
}

// logBuffer collects what the server logs.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

const (
	readToken  = "read-0123456789abcdef"
	breakToken = "break-0123456789abcdef"
)

// allowBreak restarts the server with tokens.
func (w *world) allowBreak() {
	w.Helper()
	file := filepath.Join(w.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("read "+readToken+"\nbreak "+breakToken+"\n"), 0o600); err != nil {
		w.Fatal(err)
	}
	tokens, err := page.ReadTokens(file)
	if err != nil {
		w.Fatal(err)
	}
	w.page.Close()
	w.cfg.Tokens, w.cfg.AllowBreak = tokens, true
	w.serve()
}

// openWithToken shows the page with a token.
func (w *world) openWithToken(token string) *tab {
	w.Helper()
	t := w.open("")
	t.await("document.activeElement?.id === 'token'")
	t.typeText(token)
	t.press(enter)
	return t
}

// newWorld serves the page of a new Redis.
func newWorld(t testing.TB, configure func(*page.Config)) *world {
	t.Helper()
	startBrowser(t) // skips the test without one
	w := &world{TB: t, redis: testservers.StartRedis(t)}
	conn, err := testservers.Retry(func() (*storeurl.Conn, error) { return storeurl.Open(t.Context(), "redis://"+w.redis.Addr(), nil) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	w.st = conn.Store
	w.cfg = page.Config{Address: "127.0.0.1:0", Store: "redis://" + w.redis.Addr(), Version: "test", Logger: slog.New(slog.NewTextHandler(&w.log, nil))}
	if configure != nil {
		configure(&w.cfg)
	}
	w.source.Client = w.client(stile.Options{Owner: stile.Owner{Command: "page"}})
	w.serve()
	w.cfg.Address = strings.TrimPrefix(w.page.URL(), "http://") // also after a restart
	t.Cleanup(func() { w.page.Close() })
	return w
}

// serve starts the server of the page. Its boot differs from that of the one before.
func (w *world) serve() {
	w.Helper()
	w.source.Observer = observe.New(w.source.Client)
	var err error
	if w.page, err = page.Listen(w.cfg); err != nil {
		w.Fatal(err)
	}
	w.page.Serve(w.source)
}

func (w *world) client(opts stile.Options) *stile.Client {
	w.Helper()
	opts.TTL = cmp.Or(opts.TTL, ttl)
	c, err := stile.New(w.st, &opts)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second) // the store may be gone
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

// host returns a client with the name of a host, which is what the page shows of waiters.
func (w *world) host(name string) *stile.Client {
	w.Helper()
	return w.client(stile.Options{Owner: stile.Owner{Host: name, PID: 7, User: "ann", Command: "deploy"}})
}

func (w *world) lock(c *stile.Client, name string) *stile.Hold {
	w.Helper()
	h, err := c.Mutex(name).Lock(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return h
}

// join joins the line of a lock, and waits until the entry is in the store.
func (w *world) join(c *stile.Client, name string) *stile.Place {
	w.Helper()
	before := w.entries(name)
	p, err := c.Mutex(name).Join(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	for w.entries(name) == before {
		sleep(w.Context(), 5*time.Millisecond)
	}
	return p
}

// entries returns how many entries a line has in the store.
func (w *world) entries(name string) int {
	w.Helper()
	l, err := w.source.Client.Line(w.Context(), name)
	if err != nil {
		w.Fatal(err)
	}
	return len(l.Holders) + len(l.Waiters)
}

// nest has a client hold a lock, and wait for another one meanwhile.
func (w *world) nest(c *stile.Client, held, wanted string) {
	w.Helper()
	h := w.lock(c, held)
	go func() {
		if other, err := c.Mutex(wanted).Lock(h.Context()); err == nil {
			_ = other.Release(context.Background())
		}
	}()
}

func (w *world) release(h *stile.Hold) {
	w.Helper()
	if err := h.Release(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// foreign adds an entry with a name and an owner that Stile itself would not accept.
func (w *world) foreign(name string, owner store.Owner) {
	w.Helper()
	se, err := w.st.Open(w.Context(), store.SessionOptions{TTL: time.Hour})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = se.Close(context.Background()) })
	if _, err := se.Enqueue(w.Context(), store.Request{Name: name, Mode: line.Exclusive, Owner: owner, Notify: func(store.Standing) {}}); err != nil {
		w.Fatal(err)
	}
}

// tab is a tab of the browser that shows the page.
type tab struct {
	*world
	ctx context.Context

	mu        sync.Mutex
	messages  []string       // of the console, and violations of the content security policy
	refusals  bool           // whether requests may fail
	requested map[string]int // how often, by path
}

// open shows the page, at an address such as "#lines".
func (w *world) open(address string, before ...action) *tab {
	w.Helper()
	return w.openAt(w.page.URL(), address, before...)
}

// openAt is open for another server.
func (w *world) openAt(url, address string, before ...action) *tab {
	w.Helper()
	t := &tab{world: w, requested: make(map[string]int), refusals: w.cfg.Tokens != nil}
	ctx, cancel := chromedp.NewContext(startBrowser(w), chromedp.WithNewBrowserContext(), chromedp.WithListener(t.listen))
	w.Cleanup(cancel)
	t.ctx = ctx
	if err := chromedp.Do(ctx); err != nil { // without a time-out: its context is that of the tab
		w.Fatal(err)
	}
	// Other tabs of the same browser have the focus too.
	t.run(chromedp.Func(func(ctx context.Context, to *chromedp.Target) error {
		_, err := cdp.Call(ctx, to, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
		return err
	}))
	t.run(before...)
	t.run(chromedp.Navigate(url + "/" + address))
	w.Cleanup(func() {
		if w.Failed() {
			w.Logf("search for %s; the page's text: %s", eval[string](t, "document.getElementById('search').value"), eval[string](t, "document.body.innerText"))
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, m := range t.messages {
			w.Errorf("console: %s", m)
		}
	})
	return t
}

// listen keeps what the browser complains of. Requests that fail are no complaint if the test expects them.
func (t *tab) listen(event any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err == nil {
			t.requested[u.Path]++
		}
	case *pageevents.EventJavascriptDialogOpening:
		t.messages = append(t.messages, "dialog: "+e.Message)
	case *runtime.EventConsoleAPICalled:
		var text []string
		for _, arg := range e.Args {
			text = append(text, string(arg.Value)+arg.Description)
		}
		t.messages = append(t.messages, strings.Join(text, " "))
	case *runtime.EventExceptionThrown:
		t.messages = append(t.messages, fmt.Sprintf("exception: %s %s", e.ExceptionDetails.Text, quoteAny(e.ExceptionDetails.Exception)))
	case *log.EventEntryAdded:
		if t.refusals && e.Entry.Source == log.EntrySourceNetwork {
			return
		}
		t.messages = append(t.messages, fmt.Sprintf("%s %s: %s %s", e.Entry.Source, e.Entry.Level, e.Entry.Text, e.Entry.URL))
	}
}

// requests returns how many requests for a path the tab has made.
func (t *tab) requests(path string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.requested[path]
}

// awaitGo waits until a condition of the test holds.
func (t *tab) awaitGo(what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); sleep(t.ctx, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// expectRefusals says that requests will fail.
func (t *tab) expectRefusals() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refusals = true
}

func (t *tab) run(actions ...action) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// eval returns the value of an expression.
func eval[T any](t *tab, js string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](js))
	if err != nil {
		t.Fatalf("%s: %v", js, err)
	}
	return value
}

// await waits until an expression is true.
func (t *tab) await(js string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if eval[bool](t, "Boolean("+js+")") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, js)
		}
	}
}

// awaitText waits until the text of an element contains some text.
func (t *tab) awaitText(selector, text string) {
	t.Helper()
	t.await(fmt.Sprintf("document.querySelector(%s)?.innerText.includes(%s)", quote(selector), quote(text)))
}

func (t *tab) click(selector string) {
	t.Helper()
	t.await("document.querySelector(" + quote(selector) + ")")
	eval[bool](t, "(document.querySelector("+quote(selector)+").click(), true)")
}

// press presses keys, one after the other.
func (t *tab) press(keys ...string) {
	t.Helper()
	for _, key := range keys {
		if len(key) == 1 && key >= " " { // the others have names
			t.typeText(key)
		} else {
			t.run(chromedp.KeyEvent(key))
		}
	}
}

// typeText types a text. A key that the page handles itself enters no character, as with a real keyboard.
func (t *tab) typeText(text string) {
	t.Helper()
	for _, r := range text {
		t.run(chromedp.Func(func(ctx context.Context, to *chromedp.Target) error {
			if _, err := cdp.Call(ctx, to, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: string(r), Text: string(r)}); err != nil {
				return err
			}
			_, err := cdp.Call(ctx, to, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyUp, Key: string(r)})
			return err
		}))
	}
}

// action is something that a tab does.
type action = chromedp.Action[chromedp.Void]

// size sets the size of the tab.
func size(width, height int64) action { return chromedp.EmulateViewport(width, height) }

// scheme has the tab prefer a color scheme.
func scheme(value string) action {
	return media(&emulation.MediaFeature{Name: "prefers-color-scheme", Value: value})
}

// media sets what the tab's user prefers.
func media(features ...*emulation.MediaFeature) action {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features})
		return err
	})
}

// quote returns a text as JavaScript.
func quote(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// row returns an expression for the row of a lock.
func row(name string) string {
	return fmt.Sprintf("document.getElementById(%s)", quote("row-"+key(name)))
}

func key(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

const (
	enter  = kb.Enter
	escape = kb.Escape
	up     = kb.ArrowUp
	down   = kb.ArrowDown
	home   = kb.Home
	end    = kb.End
)

func quoteAny(value any) string {
	b, _ := json.Marshal(value)
	return string(b)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
