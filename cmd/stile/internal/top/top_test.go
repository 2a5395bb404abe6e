package top

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/store/memstore"
)

const ttl = 16 * time.Second

// world is a store that is shown, and a fake clock.
type world struct {
	t      *testing.T
	st     *memstore.Store
	m      *model
	made   int // number of rows made
	detail func(stile.Line) string
}

func shown(t *testing.T, run func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(t, &world{t: t, st: memstore.New()}) })
}

func (w *world) client(command string) *stile.Client {
	w.t.Helper()
	c, err := stile.New(w.st, &stile.Options{TTL: ttl, Owner: stile.Owner{Host: "web", Command: command}, Turns: 1})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// start starts the program on a screen of the given size.
func (w *world) start(width, height int) {
	w.t.Helper()
	o := observe.New(w.client("observer"))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = o.Run(ctx) })
	w.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	synctest.Wait()
	plain := func(s string) string { return strings.Trim(strconv.Quote(s), `"`) }
	w.m = newModel(ctx, o, Texts{
		Plain: plain,
		Row: func(l stile.Line, now time.Time) Row {
			w.made++
			r := Row{Name: plain(l.Name), Holder: "nobody", Waiting: len(l.Waiters)}
			if len(l.Holders) > 0 {
				e := l.Holders[0]
				r.Holder, r.Left, r.Since = plain(e.Owner.Command), e.Remaining.Round(time.Second).String(), e.Owner.Since
				r.Age = now.Sub(e.Owner.Since).Round(time.Second).String()
			}
			return r
		},
		Details: func(l stile.Line, _ time.Time) string {
			if w.detail != nil {
				return w.detail(l)
			}
			return fmt.Sprintf("lock %s: %d holders\n", plain(l.Name), len(l.Holders))
		},
	})
	w.send(tea.WindowSizeMsg{Width: width, Height: height})
}

func (w *world) send(msg tea.Msg) { w.m.Update(msg) }

// press presses keys: names of keys, or a character.
func (w *world) press(keys ...string) {
	for _, key := range keys {
		code, ok := map[string]rune{
			"enter": tea.KeyEnter, "esc": tea.KeyEscape, "up": tea.KeyUp, "down": tea.KeyDown, "end": tea.KeyEnd, "home": tea.KeyHome,
			"pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp, "backspace": tea.KeyBackspace,
		}[key]
		if ok {
			w.send(tea.KeyPressMsg{Code: code})
		} else {
			w.send(tea.KeyPressMsg{Code: []rune(key)[0], Text: key})
		}
	}
}

// wait waits, and lets the program notice what has changed.
func (w *world) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	w.send(changed{})
	w.send(ticked{})
}

func (w *world) lock(c *stile.Client, name string) *stile.Hold {
	w.t.Helper()
	h, err := c.Mutex(name).Lock(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return h
}

func (w *world) release(h *stile.Hold) {
	w.t.Helper()
	if err := h.Release(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// screen returns the lines of the screen without styles. It checks that they fit and that nothing but
// styles is in them.
func (w *world) screen() []string {
	w.t.Helper()
	content := w.m.View().Content
	lines := strings.Split(content, "\n")
	if len(lines) > w.m.height {
		w.t.Errorf("%d lines on a screen of %d", len(lines), w.m.height)
	}
	for _, style := range []string{bold, reversed, red, yellow, green, normal} {
		content = strings.ReplaceAll(content, style, "")
	}
	if i := strings.IndexFunc(content, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		w.t.Errorf("there are control characters on the screen: %q", content[i:])
	}
	lines = strings.Split(content, "\n")
	for i, line := range lines {
		if n := ansi.StringWidth(line); n > w.m.width {
			w.t.Errorf("line %d has %d columns on a screen of %d: %q", i, n, w.m.width, line)
		}
		lines[i] = strings.TrimRight(line, " ")
	}
	return lines
}

// wantRow checks the row that begins with a name, with single spaces between the columns.
func (w *world) wantRow(name, want string) {
	w.t.Helper()
	var got string
	for _, line := range w.screen() {
		if strings.HasPrefix(line, name+" ") {
			got = strings.Join(strings.Fields(line), " ")
		}
	}
	if got != want {
		w.t.Errorf("got the row %q, want %q", got, want)
	}
}

// names returns the first columns of the rows.
func (w *world) names() (names []string) {
	w.t.Helper()
	lines := w.screen()
	for _, line := range lines[2 : len(lines)-1] {
		if line != "" {
			names = append(names, strings.Fields(line)[0])
		}
	}
	return names
}

// selected returns the name of the selected line.
func (w *world) selected() string {
	if i := w.m.selected(); i != nil {
		return i.name
	}
	return ""
}

func TestTop_showsLines(t *testing.T) {
	shown(t, func(t *testing.T, w *world) {
		ann, bob := w.client("ann"), w.client("bob")
		h := w.lock(ann, "deploy")
		w.lock(ann, "other")
		got := make(chan *stile.Hold)
		go func() { got <- w.lock(bob, "deploy") }()
		synctest.Wait()
		w.start(100, 24)
		w.wait(2 * time.Second)
		w.wantRow("deploy", "deploy ann 2s 14s ███████░ 1")
		w.wantRow("other", "other ann 2s 14s ███████░ 0")
		if title := w.screen()[0]; title != "2 locks, 1 waiting, by name" {
			t.Errorf("got the title %q", title)
		}
		if heads := strings.Join(strings.Fields(w.screen()[1]), " "); heads != "NAME HOLDER AGE LEFT WAITING" {
			t.Errorf("got the heads %q, want those of stile ls", heads)
		}
		// A renewal is no update. It is seen because the program looks at what it shows.
		w.wait(time.Second)
		w.wantRow("deploy", "deploy ann 3s 13s ███████░ 1")
		for range 3 {
			w.wait(time.Second)
		}
		w.wantRow("deploy", "deploy ann 6s 15s ████████ 1")
		// The waiter steps forward.
		w.release(h)
		h = <-got
		w.wait(time.Second)
		w.wantRow("deploy", "deploy bob 7s 14s ████████ 0") // more than that has not been seen of this session
		w.release(h)
		w.wait(time.Second)
		if got := w.names(); !slices.Equal(got, []string{"other"}) {
			t.Errorf("got the names %q after the release, want other", got)
		}
	})
}

// The program waits for changes, so that they are seen at once.
func TestTop_awaitsChanges(t *testing.T) {
	shown(t, func(t *testing.T, w *world) {
		ann := w.client("ann")
		w.start(80, 24)
		await := w.m.awaitChange()
		got := make(chan tea.Msg)
		go func() { got <- await() }()
		synctest.Wait()
		select {
		case msg := <-got:
			t.Fatalf("got %v, but nothing has changed", msg)
		default:
		}
		began := time.Now()
		w.lock(ann, "deploy")
		msg := <-got
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("noticed after %v", took)
		}
		w.send(msg)
		w.wantRow("deploy", "deploy ann 0s 16s ████████ 0")
	})
}

func TestTop_outage(t *testing.T) {
	shown(t, func(t *testing.T, w *world) {
		w.lock(w.client("ann"), "deploy")
		w.start(100, 24)
		w.st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Read {
				return memstore.Fault{Err: errors.New("no \x1b[2J answer")}
			}
			return memstore.Fault{}
		})
		w.wait(20 * time.Second)
		since := w.m.status.Since
		w.wait(20 * time.Second)
		if !w.m.status.Since.Equal(since) {
			t.Errorf("the outage began at %v, and later at %v", since, w.m.status.Since)
		}
		title := w.screen()[0]
		if want := "the store has not answered since " + since.Local().Format(time.TimeOnly) + ", this is old: "; !strings.HasPrefix(title, want) ||
			!strings.Contains(title, `no \x1b[2J answer`) {
			t.Errorf("got the title %q, want %q and the error", title, want)
		}
		if strings.Contains(title, "stile:") {
			t.Errorf("got the title %q, want no prefix before the error", title)
		}
		if got := w.names(); !slices.Equal(got, []string{"deploy"}) {
			t.Errorf("got the names %q, want deploy still", got)
		}
		if text := strings.Join(w.screen(), "\n"); !strings.Contains(text, "░░░░░░░░") || strings.Contains(text, "█") {
			t.Errorf("the bar of a lease that has ended is not empty:\n%s", text)
		}
		w.press("enter")
		if title := w.screen()[0]; !strings.HasPrefix(title, "the store has not answered since") {
			t.Errorf("got the first line %q of the details, want the outage", title)
		}
		w.press("esc")
		w.st.SetFaults(nil)
		w.wait(20 * time.Second)
		if title := w.screen()[0]; title != "1 lock, 0 waiting, by name" {
			t.Errorf("got the title %q after the outage", title)
		}
	})
}

// A name takes no more room than it needs, so that the holder is seen.
func TestTop_widthOfNames(t *testing.T) {
	shown(t, func(t *testing.T, w *world) {
		w.lock(w.client("a-holder-with-a-long-name-and-slots"), "short")
		w.start(100, 24)
		w.wait(time.Second)
		if text := w.screen()[2]; !strings.HasPrefix(text, "short"+strings.Repeat(" ", minNameWidth-4)+"a-holder-with-a-long-name-and-slots ") {
			t.Errorf("got the row %q, want the whole holder", text)
		}
		w.lock(w.client("b"), strings.Repeat("z", 200))
		w.wait(time.Second)
		if text := w.screen()[2]; strings.Contains(text, "a-holder-with-a-long-name-and-slots") || !strings.Contains(text, "a-holder-with") {
			t.Errorf("got the row %q, want half of the room for the holder", text)
		}
	})
}

func TestTop_sortAndFilter(t *testing.T) {
	shown(t, func(t *testing.T, w *world) {
		for _, name := range []string{"c", "a", "b"} {
			w.lock(w.client("holder-of-"+name), name)
			time.Sleep(time.Second)
		}
		go func() {
			_, _ = w.client("waiter").Mutex("b").Lock(t.Context())
		}()
		synctest.Wait()
		w.start(80, 24)
		check := func(want ...string) {
			t.Helper()
			if got := w.names(); !slices.Equal(got, want) {
				t.Errorf("got the names %q, want %q", got, want)
			}
		}
		check("a", "b", "c")
		w.press("w")
		check("b", "a", "c")
		w.press("a")
		check("c", "a", "b")
		w.press("n")
		check("a", "b", "c")
		w.press("/", "F", "-", "B") // of a holder, in any case
		check("b")
		if last := w.screen()[23]; !strings.HasPrefix(last, "/F-B") {
			t.Errorf("got the last line %q, want what was typed", last)
		}
		w.press("enter", "w")
		check("b")
		if title := w.screen()[0]; title != "1 of 3 locks match F-B, 1 waiting, by waiting" {
			t.Errorf("got the title %q", title)
		}
		w.press("esc", "n", "/", "q", "\x1b", "backspace", "backspace")
		check("a", "b", "c")
		w.press("q", "q")
		if got := w.screen()[2]; got != "no lock matches the filter" {
			t.Errorf("got %q for a filter that matches nothing", got)
		}
		w.press("enter", "enter", "down", "pgup") // nothing is selected
		w.press("esc")
		check("a", "b", "c")
	})
}

// A line that was selected stays selected while others come and go.
func TestTop_selectionStays(t *testing.T) {
	shown(t, func(t *testing.T, w *world) {
		ann := w.client("ann")
		for _, name := range []string{"d", "e", "f"} {
			w.lock(ann, name)
		}
		w.start(80, 6) // three rows
		w.press("down")
		for _, name := range []string{"a", "b", "c"} {
			w.lock(ann, name)
		}
		w.wait(time.Second)
		if got := w.selected(); got != "e" || !slices.Contains(w.names(), "e") {
			t.Errorf("got %q selected, want e on the screen: %q", got, w.names())
		}
		w.press("home")
		w.lock(ann, "0")
		w.wait(time.Second)
		if got := w.selected(); got != "0" { // at the top, the beginning is shown
			t.Errorf("got %q selected, want the first line", got)
		}
		w.press("end")
		if got := w.names(); w.selected() != "f" || !slices.Equal(got, []string{"d", "e", "f"}) {
			t.Errorf("got %q selected, and %q on the screen", w.selected(), got)
		}
		w.press("down", "pgup")
		if got := w.selected(); got != "c" {
			t.Errorf("got %q selected, want c, three before the end", got)
		}
	})
}

func TestTop_details(t *testing.T) {
	shown(t, func(t *testing.T, w *world) {
		h := w.lock(w.client("ann"), "deploy")
		w.lock(w.client("ann"), "other")
		w.start(40, 6)
		w.press("enter")
		if got := w.screen()[0]; got != "lock deploy: 1 holders" {
			t.Errorf("got %q", got)
		}
		w.release(h)
		w.wait(time.Second)
		if got := w.screen()[0]; got != "lock deploy: 0 holders" {
			t.Errorf("got %q after the release", got)
		}
		w.detail = func(stile.Line) string { return strings.Repeat("0123456789", 6) + "\n1\n2\n3\n4\n5\n6\n" }
		w.press("down")
		if got := strings.Join(w.screen(), "|"); got != "01234567890123456789|1|2|3|4|esc back  ↑↓ scroll  q quit" {
			t.Errorf("got %q, want the wrapped text from its second line on", got)
		}
		w.press("end", "end")
		if got := w.screen()[4]; got != "6" {
			t.Errorf("got %q at the end", got)
		}
		w.press("esc")
		if got := w.names(); !slices.Equal(got, []string{"other"}) {
			t.Errorf("got the names %q", got)
		}
	})
}

// Details are wrapped between words.
func TestTop_wrapsDetails(t *testing.T) {
	shown(t, func(t *testing.T, w *world) {
		w.lock(w.client("ann"), "deploy")
		w.detail = func(stile.Line) string { return "exclusive, held for less than 3s\n  reason: release\n" }
		w.start(20, 6)
		w.press("enter")
		if got := strings.Join(w.screen(), "|"); got != "exclusive, held for|less than 3s|  reason: release|||esc back  ↑↓ scroll…" {
			t.Errorf("got %q", got)
		}
	})
}

// Whatever the size of the terminal, nothing is wider or higher, and the names and holders are there.
func TestTop_anySize(t *testing.T) {
	shown(t, func(t *testing.T, w *world) {
		ann := w.client("ann-with-a-long-command")
		for i := range 30 {
			w.lock(ann, fmt.Sprintf("name-%d/日本語/with-a-long-name-that-does-not-fit", i))
		}
		w.start(40, 10)
		if got := w.screen()[2]; !strings.HasPrefix(got, "name-0/") || !strings.Contains(got, " ann-with-") || !strings.HasSuffix(got, " 0") {
			t.Errorf("got the row %q on a narrow screen, want name, holder, age and waiters", got)
		}
		for _, key := range []string{"end", "/", "enter", "enter", "esc"} {
			w.press(key)
			for width := 2; width < 130; width += 3 {
				for _, height := range []int{0, 1, 2, 3, 4, 24} {
					w.send(tea.WindowSizeMsg{Width: width, Height: max(1, height)})
					w.screen()
				}
			}
		}
	})
}

func TestTop_hostileTexts(t *testing.T) {
	shown(t, func(t *testing.T, w *world) {
		w.lock(w.client("\x1b]0;evil\a\u202e\x9b2J"), "evil")
		w.start(120, 10)
		w.screen()
		w.press("/", "\x1b")
		w.send(tea.PasteMsg{Content: "\x1b[2J\n\u202e"})
		w.screen()
	})
}

// What a key costs does not depend on the number of lines, and neither does a second.
func TestTop_manyLines(t *testing.T) {
	shown(t, func(t *testing.T, w *world) {
		const lines, height = 10_000, 40
		c := w.client("holder")
		for i := range lines {
			w.lock(c, fmt.Sprintf("name-%05d", i))
		}
		w.start(120, height)
		w.send(changed{})
		w.made = 0
		w.press("down")
		w.screen()
		w.press("pgdown", "end", "up")
		w.send(ticked{})
		w.screen()
		if want := 2 * (height - fixedLines); w.made != want || w.selected() != "name-09998" {
			t.Errorf("made %d rows, want %d: those on two screens; selected %q", w.made, want, w.selected())
		}
	})
}

// BenchmarkTop_key measures a key and the screen after it, among 10 000 lines.
func BenchmarkTop_key(b *testing.B) {
	st := memstore.New()
	c, err := stile.New(st, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(b.Context())
	for i := range 10_000 {
		if _, err := c.Mutex(fmt.Sprintf("name-%05d", i)).Lock(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	o := observe.New(c)
	go func() { _ = o.Run(b.Context()) }()
	for !o.Status().Read {
		o.Wait(b.Context(), 0, o.Status())
	}
	m := newModel(b.Context(), o, Texts{
		Plain: strings.Clone, Row: func(l stile.Line, _ time.Time) Row { return Row{Name: l.Name, Holder: l.Holders[0].Owner.Command} },
	})
	m.Update(tea.WindowSizeMsg{Width: 120, Height: 50})
	b.Run("move", func(b *testing.B) {
		for b.Loop() {
			m.Update(tea.KeyPressMsg{Code: tea.KeyPgDown})
			m.View()
		}
	})
	b.Run("sort", func(b *testing.B) {
		for b.Loop() {
			m.Update(tea.KeyPressMsg{Code: 'w', Text: "w"})
			m.View()
		}
	})
}
