package top

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/stilelock/stile"
)

// View implements tea.Model.
func (m *model) View() tea.View {
	var text string
	if m.opened != nil {
		text = m.details()
	} else {
		text = m.list()
	}
	v := tea.NewView(text)
	v.AltScreen = true
	return v
}

// The styles of text. The terminal library leaves out colors where NO_COLOR is set.
const (
	bold     = "\x1b[1m"
	reversed = "\x1b[7m"
	red      = "\x1b[31m"
	yellow   = "\x1b[33m"
	green    = "\x1b[32m"
	normal   = "\x1b[m"
)

// fixedLines is the number of lines on the screen that show no lock: the title, the heads of the columns, and
// the keys.
const fixedLines = 3

func (m *model) rowsOnScreen() int { return max(1, m.height-fixedLines) }

func (m *model) list() string {
	lines := []string{m.title(), bold + m.cells("NAME", "HOLDER", "AGE", "LEFT", "", "WAITING") + normal}
	for i, l := range m.page {
		lines = append(lines, m.row(l, m.shown[m.first+i], m.first+i == m.cursor))
	}
	if len(m.page) == 0 {
		lines = append(lines, m.cut(m.nothing()))
	}
	keys := m.cut("q quit  enter details  / filter  sort by: n name  w waiting  a age")
	if m.typing {
		keys = m.cut("/" + m.texts.Plain(m.filter) + "▏ enter keep  esc clear")
	}
	return m.screen(lines, keys)
}

func (m *model) nothing() string {
	if m.filter != "" {
		return "no lock matches the filter"
	}
	return "no lock is held"
}

// screen puts the last line at the bottom.
func (m *model) screen(lines []string, last string) string {
	above := max(0, m.height-1)
	lines = lines[:min(len(lines), above)]
	return strings.Join(lines, "\n") + strings.Repeat("\n", above-max(0, len(lines)-1)) + last
}

// title returns the first line: what is shown, or that it is old.
func (m *model) title() string {
	if m.status.Err != nil {
		return red + reversed + m.cut("the store has not answered since "+m.status.Since.Local().Format(time.TimeOnly)+", this is old: "+
			m.texts.Plain(strings.TrimPrefix(m.status.Err.Error(), "stile: "))) + normal
	}
	count := fmt.Sprintf("%d locks", len(m.items))
	if len(m.items) == 1 {
		count = "1 lock"
	}
	if m.filter != "" {
		count = fmt.Sprintf("%d of %s match %s", len(m.shown), count, m.texts.Plain(m.filter))
	}
	return m.cut(fmt.Sprintf("%s, %d waiting, by %s", count, m.waiting, [...]string{"name", "waiting", "age"}[m.order]))
}

func (m *model) row(l stile.Line, i *item, selected bool) string {
	r := m.texts.Row(l, m.now)
	var left, longest time.Duration
	if len(l.Holders) > 0 {
		left, longest = l.Holders[0].Remaining, i.longest
	}
	bar, color := leaseBar(left, longest)
	if selected {
		return reversed + m.cells(r.Name, r.Holder, r.Age, r.Left, bar, fmt.Sprint(r.Waiting)) + normal
	}
	return m.cells(r.Name, r.Holder, r.Age, r.Left, color+bar+normal, fmt.Sprint(r.Waiting))
}

const barWidth = 8

// leaseBar draws how much of a lease is left.
func leaseBar(left, longest time.Duration) (bar, color string) {
	if left <= 0 || longest <= 0 {
		return strings.Repeat(" ", barWidth), ""
	}
	n := min(barWidth, int((left*barWidth+longest*3/4)/longest)) // a quarter of a cell counts as one
	switch {
	case n > barWidth/2:
		color = green
	case n > barWidth/4:
		color = yellow
	default:
		color = red
	}
	return strings.Repeat("█", n) + strings.Repeat("░", barWidth-n), color
}

// The widths of columns, and from which width of the screen on there are the column LEFT and the bar.
const (
	ageWidth, leftWidth, waitingWidth = 7, 6, 7
	minNameWidth                      = 16
	narrow, wide                      = 60, 80
)

// cells returns a row with the given cells, as wide as the screen.
func (m *model) cells(name, holder, age, left, bar, waiting string) string {
	tail := []string{pad(age, ageWidth)}
	if m.width >= narrow {
		tail = append(tail, pad(left, leftWidth))
	}
	if m.width >= wide {
		tail = append(tail, bar+strings.Repeat(" ", max(0, barWidth-ansi.StringWidth(bar))))
	}
	end := strings.Join(append(tail, pad(waiting, waitingWidth)), " ")
	rest := max(0, m.width-ansi.StringWidth(end)-2)
	nameWidth := min((rest+1)/2, max(m.longestName, minNameWidth))
	return ansi.Truncate(pad(name, nameWidth)+" "+pad(holder, rest-nameWidth)+" "+end, m.width, "")
}

// pad makes a text exactly as wide as given.
func pad(text string, width int) string {
	text = ansi.Truncate(text, width, "…")
	return text + strings.Repeat(" ", max(0, width-ansi.StringWidth(text)))
}

// cut shortens a line to the width of the screen.
func (m *model) cut(text string) string { return ansi.Truncate(text, m.width, "…") }

// details returns the screen for one line. Its text is wrapped, because it is too wide for most terminals.
func (m *model) details() string {
	var all []string
	if m.status.Err != nil {
		all = append(all, m.title())
	}
	text := ansi.Wrap(strings.TrimRight(m.texts.Details(*m.opened, m.now), "\n"), max(1, m.width), "")
	lines := strings.Split(text, "\n")
	room := max(1, m.height-1-len(all))
	m.scroll = max(0, min(m.scroll, len(lines)-room))
	all = append(all, lines[m.scroll:min(m.scroll+room, len(lines))]...)
	return m.screen(all, m.cut("esc back  ↑↓ scroll  q quit"))
}
