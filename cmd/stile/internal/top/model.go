package top

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
)

// model is the state of the screen.
type model struct {
	ctx      context.Context //nolint:containedctx // of Run: commands have no other way to get it
	observer *observe.Observer
	texts    Texts

	width, height int
	now           time.Time
	status        observe.Status
	last          uint64           // number of the last update that was read
	items         map[string]*item // of all lines, by name
	shown         []*item          // those that match the filter, in order
	waiting       int              // number of waiters in all lines
	longestName   int              // width of the longest name so far

	order         order
	filter        string
	typing        bool // the keys typed are for the filter
	cursor, first int  // indexes in shown: of the selected line, and of the first one on the screen

	page   []stile.Line // the lines on the screen
	opened *stile.Line  // the line that is shown alone; nil if all are shown
	scroll int          // number of its lines of text above the screen
}

// item is what is kept of a line, whether it is on the screen or not.
type item struct {
	name   string // as it is in the store
	row    Row
	search string // what a filter is compared with

	// The lease of the holder's session, and the longest time that was ever left of it: about the TTL.
	session string
	longest time.Duration
}

// order is what rows are sorted by. Rows that are equal are sorted by name.
type order int

const (
	byName order = iota
	byWaiting
	byAge
)

// refreshInterval is the time after which the lines on the screen are read again: leases get shorter without
// an update.
const refreshInterval = time.Second

// changed says that there may be an update or another status, and ticked that the time is to be shown anew.
type (
	changed struct{}
	ticked  struct{}
)

func newModel(ctx context.Context, o *observe.Observer, texts Texts) *model {
	m := &model{ctx: ctx, observer: o, texts: texts, width: 80, height: 24}
	m.read()
	m.refresh()
	return m
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return tea.Batch(m.awaitChange(), tick()) }

func tick() tea.Cmd { return tea.Tick(refreshInterval, func(time.Time) tea.Msg { return ticked{} }) }

func (m *model) awaitChange() tea.Cmd {
	last, status := m.last, m.status
	return func() tea.Msg {
		m.observer.Wait(m.ctx, last, status)
		return changed{}
	}
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var next tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case changed:
		if m.ctx.Err() != nil {
			return m, nil
		}
		m.read()
		next = m.awaitChange()
	case ticked:
		next = tick()
	case tea.PasteMsg:
		if m.typing {
			m.setFilter(m.filter + msg.Content)
		}
	case tea.KeyPressMsg:
		next = m.press(msg)
	}
	m.refresh()
	return m, next
}

// press carries out what a key means.
func (m *model) press(key tea.KeyPressMsg) tea.Cmd {
	switch name := key.String(); {
	case name == "ctrl+c":
		return tea.Quit
	case name == "ctrl+z":
		return tea.Suspend
	case m.typing:
		m.typeFilter(key)
	case name == "q":
		return tea.Quit
	case m.opened != nil:
		m.pressInDetails(name)
	default:
		m.pressInList(name)
	}
	return nil
}

func (m *model) typeFilter(key tea.KeyPressMsg) {
	switch key.String() {
	case "enter":
		m.typing = false
	case "esc":
		m.typing = false
		m.setFilter("")
	case "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.setFilter(string(r[:len(r)-1]))
		}
	default:
		m.setFilter(m.filter + key.Text)
	}
}

func (m *model) setFilter(text string) {
	if text != m.filter {
		m.filter = text
		m.arrange()
	}
}

func (m *model) pressInDetails(key string) {
	switch key {
	case "esc", "enter", "left":
		m.opened, m.scroll = nil, 0
	default:
		m.scroll += m.step(key) // within the text: see View
	}
}

func (m *model) pressInList(key string) {
	switch key {
	case "/":
		m.typing = true
	case "esc":
		m.setFilter("")
	case "n":
		m.setOrder(byName)
	case "w":
		m.setOrder(byWaiting)
	case "a":
		m.setOrder(byAge)
	case "enter", "right":
		if i := m.selected(); i != nil {
			l := m.observer.Line(i.name)
			m.opened = &l
		}
	default:
		m.cursor += m.step(key)
	}
}

// step returns how far a key moves the cursor.
func (m *model) step(key string) int {
	switch key {
	case "up", "k":
		return -1
	case "down", "j":
		return 1
	case "pgup":
		return -m.rowsOnScreen()
	case "pgdown", "space":
		return m.rowsOnScreen()
	case "home", "g":
		return -len(m.shown) - m.scroll
	case "end", "G":
		return math.MaxInt32
	default:
		return 0
	}
}

func (m *model) setOrder(o order) {
	m.order, m.cursor = o, 0
	m.arrange()
}

// selected returns the selected line; nil if there is none.
func (m *model) selected() *item {
	if m.cursor < len(m.shown) {
		return m.shown[m.cursor]
	}
	return nil
}

// read reads the status and what has changed since the last call.
func (m *model) read() {
	m.status = m.observer.Status()
	updates, last, known := m.observer.Updates(m.last)
	if m.items == nil || !known {
		m.items = make(map[string]*item)
		lines, _ := m.observer.Lines("", "", math.MaxInt)
		for _, l := range lines {
			updates = append(updates, observe.Update{Line: l})
		}
	}
	m.last = last
	if len(updates) == 0 {
		return
	}
	now := time.Now()
	for _, u := range updates {
		if observe.Empty(u.Line) {
			delete(m.items, u.Line.Name)
			continue
		}
		i := m.items[u.Line.Name]
		if i == nil {
			i = &item{name: u.Line.Name}
			m.items[i.name] = i
		}
		i.row = m.texts.Row(u.Line, now)
		m.longestName = max(m.longestName, ansi.StringWidth(i.row.Name))
		i.search = strings.ToLower(i.row.Name + "\n" + i.row.Holder)
	}
	m.arrange()
}

// arrange filters and sorts the lines. A cursor that was moved stays with its line.
func (m *model) arrange() {
	selected := m.selected()
	filter := strings.ToLower(m.filter)
	m.shown, m.waiting = m.shown[:0], 0
	for _, i := range m.items {
		m.waiting += i.row.Waiting
		if strings.Contains(i.search, filter) {
			m.shown = append(m.shown, i)
		}
	}
	slices.SortFunc(m.shown, func(a, b *item) int {
		if c := m.order.compare(&a.row, &b.row); c != 0 {
			return c
		}
		return strings.Compare(a.name, b.name)
	})
	if m.cursor > 0 && selected != nil {
		if i := slices.Index(m.shown, selected); i >= 0 {
			m.cursor = i
		}
	}
}

func (o order) compare(a, b *Row) int {
	switch {
	case o == byWaiting:
		return cmp.Compare(b.Waiting, a.Waiting)
	case o == byAge && a.Since.IsZero() != b.Since.IsZero():
		if a.Since.IsZero() { // unknown ages are last
			return 1
		}
		return -1
	case o == byAge:
		return a.Since.Compare(b.Since)
	default:
		return 0
	}
}

// refresh reads the lines on the screen.
func (m *model) refresh() {
	m.now = time.Now()
	if m.opened != nil {
		l := m.observer.Line(m.opened.Name)
		m.opened = &l
		m.observer.Look([]string{l.Name})
		return
	}
	rows := m.rowsOnScreen()
	m.cursor = max(0, min(m.cursor, len(m.shown)-1))
	m.first = max(0, min(m.first, m.cursor, len(m.shown)-rows))
	m.first = max(m.first, m.cursor-rows+1)
	var names []string
	m.page = m.page[:0]
	for _, i := range m.shown[m.first:min(m.first+rows, len(m.shown))] {
		names = append(names, i.name)
		l := m.observer.Line(i.name)
		m.page = append(m.page, l)
		if len(l.Holders) > 0 {
			i.noteLease(l.Holders[0])
		}
	}
	m.observer.Look(names)
}

func (i *item) noteLease(e stile.Entry) {
	if i.session != e.Session {
		i.session, i.longest = e.Session, 0
	}
	i.longest = max(i.longest, e.Remaining)
}
