package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
)

// newTable returns a writer that aligns cells separated by tabs. It writes when it is flushed.
func newTable(to *bytes.Buffer) *tabwriter.Writer { return tabwriter.NewWriter(to, 0, 0, 2, ' ', 0) }

// rowsPerBlock is how many rows of an overview are aligned together, and in memory.
const rowsPerBlock = 500

// overview writes lines as a table with one row each, and returns how many there were; it writes nothing
// if there are none. The rows are aligned block by block, so that the first ones are written before the
// last ones are read. A block's columns are at least as wide as those before. If lines end with an
// error, the rows before it are written.
func overview(lines iter.Seq2[stile.Line, error], now func() time.Time, write func([]byte) error) (n int, err error) {
	var widths []int
	block := [][]string{{"NAME", "HOLDER", "AGE", "LEFT", "WAITING"}}
	flush := func() error {
		var text []byte
		text, widths = align(block, widths)
		block = block[:0]
		return write(text)
	}
	for l, failure := range lines {
		if failure != nil {
			err = failure
			break
		}
		n++
		if block = append(block, row(l, now())); len(block) == rowsPerBlock {
			if err := flush(); err != nil {
				return n, err
			}
		}
	}
	if n > 0 {
		err = cmp.Or(flush(), err)
	}
	return n, err
}

// row returns the cells of a line.
func row(l stile.Line, now time.Time) []string {
	age, left := "?", "?"
	if len(l.Holders) > 0 {
		first := l.Holders[0]
		age, left = heldFor(first, now), leftOf(first)
	}
	return []string{asArgument(l.Name), holders(l), age, left, strconv.Itoa(len(l.Waiters))}
}

// align formats rows with columns of the given widths, in characters, or wider, and returns the widths.
func align(rows [][]string, widths []int) (text []byte, wider []int) {
	wider = slices.Clone(widths)
	for _, cells := range rows {
		for i, cell := range cells {
			if i == len(wider) {
				wider = append(wider, 0)
			}
			wider[i] = max(wider[i], utf8.RuneCountInString(cell))
		}
	}
	for _, cells := range rows {
		for i, cell := range cells {
			text = append(text, cell...)
			if i < len(cells)-1 {
				text = append(text, strings.Repeat(" ", wider[i]-utf8.RuneCountInString(cell)+2)...)
			}
		}
		text = append(text, '\n')
	}
	return text, wider
}

// holders describes the holder of a lock in a few words. If there are several, it names the first
// one.
func holders(l stile.Line) string {
	const limit = 80 // characters, to leave room in the table
	if len(l.Holders) == 0 {
		return "nobody"
	}
	text := clip(who(l.Holders[0]), limit)
	if others := len(l.Holders) - 1; others > 0 {
		text += fmt.Sprintf(" +%d", others)
	}
	if n := slotsOf(l); n > 0 {
		text += fmt.Sprintf(" (%d of %d slots)", len(l.Holders), n)
	} else if l.Holders[0].Mode == line.Shared {
		text += " (shared)"
	} else if l.Holders[0].Owner.Lingers {
		text += " (or kept)"
	}
	return text
}

// slotsOf returns the number of slots of a semaphore, within its limit; zero for other locks.
func slotsOf(l stile.Line) int {
	for _, e := range slices.Concat(l.Holders, l.Waiters) {
		return e.Mode.Within(l.Limit).Slots()
	}
	return 0
}

// slotsAsked returns the number of slots that the holders and waiters ask for; zero for other locks.
func slotsAsked(l stile.Line) int {
	for _, e := range slices.Concat(l.Holders, l.Waiters) {
		return e.Mode.Slots()
	}
	return 0
}

// lineDetails formats everything known about a line.
func lineDetails(l stile.Line, now time.Time) []byte {
	var buf bytes.Buffer
	fmt.Fprintf(&buf, "lock %s: %s\n", asArgument(l.Name), state(l))
	table := newTable(&buf)
	for _, e := range l.Holders {
		entryDetails(table, "holder", e, holding(e, now))
	}
	for i, e := range l.Waiters {
		entryDetails(table, fmt.Sprintf("waiter %d", i+1), e, "in line for "+ageOf(e, now))
	}
	if l.Limit > 0 {
		fmt.Fprintf(table, "limit\t%s\n", strings.TrimPrefix(limitText(l), "limit "))
	}
	for _, remark := range l.Remarks {
		fmt.Fprintf(table, "remark\t%s\n", plain(remark))
	}
	table.Flush()
	return buf.Bytes()
}

// state returns the number of holders and waiters as text.
func state(l stile.Line) string {
	var text string
	switch n, slots := len(l.Holders), slotsOf(l); {
	case n == 0:
		text = "free"
	case slots > 0:
		text = fmt.Sprintf("%d of %d slots taken", n, slots)
	case n == 1 && l.Holders[0].Owner.Lingers:
		text = "held or kept"
	case n == 1:
		text = "held"
	default:
		text = fmt.Sprintf("held by %d", n)
	}
	if n := len(l.Waiters); n > 0 {
		text += fmt.Sprintf(", %d waiting", n)
	}
	return text
}

// entryDetails formats everything known about an entry. The caller says how long it has been in the
// line.
func entryDetails(table *tabwriter.Writer, role string, e stile.Entry, time string) {
	fmt.Fprintf(table, "%s\t%s\n", role, who(e))
	fmt.Fprintf(table, "\t%s, %v, %s, session %s has %s left\n", tokenOf(e), e.Mode, time, plain(e.Session), leftOf(e))
	if e.Owner.Reason != "" {
		fmt.Fprintf(table, "\treason: %s\n", plain(e.Owner.Reason))
	}
	if e.Owner.Value != "" { // of an election
		fmt.Fprintf(table, "\tvalue: %s\n", plain(e.Owner.Value))
	}
	for _, key := range slices.Sorted(maps.Keys(e.Owner.Labels)) {
		fmt.Fprintf(table, "\tlabel: %s=%s\n", plain(key), plain(e.Owner.Labels[key]))
	}
}

// who describes an entry's owner in one line.
func who(e stile.Entry) string {
	switch known := e.Owner.String(); {
	case known != "":
		return plain(known)
	case e.Foreign:
		return "unknown client, session " + plain(e.Session)
	default:
		return "unknown owner, session " + plain(e.Session)
	}
}

func tokenOf(e stile.Entry) string {
	if e.Token == 0 {
		return "no token"
	}
	return "token " + strconv.FormatUint(e.Token, 10)
}

// ageOf formats how long ago an entry joined its line.
func ageOf(e stile.Entry, now time.Time) string {
	if age, ok := elapsed(e.Owner.Since, now); ok {
		return twoUnits(age)
	}
	return "?"
}

// heldFor formats how long a holder has held its lock. If the time of acquisition is not known, the
// time since it joined the line is an upper bound.
func heldFor(e stile.Entry, now time.Time) string {
	if held, ok := elapsed(e.Owner.Obtained, now); ok {
		return twoUnits(held)
	}
	if age, ok := elapsed(e.Owner.Since, now); ok && e.Owner.Obtained.IsZero() {
		return "<" + twoUnitsAbove(age)
	}
	return "?"
}

// holding formats how long a holder has held its lock and how long it had waited for it.
func holding(e stile.Entry, now time.Time) string {
	word := strings.TrimSuffix(heldWord(e), "by ")
	held, bounded := strings.CutPrefix(heldFor(e, now), "<")
	if bounded {
		return word + "for less than " + held
	}
	text := word + "for " + held
	if waited, ok := elapsed(e.Owner.Since, e.Owner.Obtained); ok && held != "?" && waited >= time.Second {
		text += ", waited " + twoUnits(waited)
	}
	return text
}

// elapsed returns the time between two moments, and whether it is plausible. The moments are from
// the clock of the owner's host, which may differ from this host's clock, or be wrong.
func elapsed(from, to time.Time) (time.Duration, bool) {
	const (
		maxClockSkew = time.Minute
		maxAge       = 10 * 365 * 24 * time.Hour
	)
	d := to.Sub(from)
	return d, !from.IsZero() && -maxClockSkew <= d && d <= maxAge
}

// leftOf formats how long an entry's session lives if it is not renewed.
func leftOf(e stile.Entry) string {
	if e.Remaining == 0 {
		return "?"
	}
	return twoUnits(e.Remaining)
}

// units are the units of durations, the largest first.
var units = []struct {
	name   string
	length time.Duration
}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}

// twoUnitsAbove returns the shortest duration longer than d that twoUnits can format.
func twoUnitsAbove(d time.Duration) string {
	step := time.Second
	for i, u := range units[:len(units)-1] {
		if d >= u.length {
			step = units[i+1].length
			break
		}
	}
	return twoUnits(max(d, 0).Truncate(step) + step)
}

// twoUnits formats a duration with its largest unit and the next one: 3s, 4m10s, 2h5m, 3d4h. Negative
// durations and those under a second are 0s.
func twoUnits(d time.Duration) string {
	for i, u := range units {
		if d < u.length {
			continue
		}
		text := fmt.Sprintf("%d%s", d/u.length, u.name)
		if i+1 < len(units) {
			if below := units[i+1]; d%u.length >= below.length {
				text += fmt.Sprintf("%d%s", d%u.length/below.length, below.name)
			}
		}
		return text
	}
	return "0s"
}

// plain makes a single line of printable characters from a text that may come from any client:
// other characters are escaped as in Go. It must be applied to everything from a store that is
// printed to a terminal. A backslash stays as it is, for the names of Windows users.
func plain(s string) string {
	quoted := strconv.Quote(s)
	return unquoted.Replace(quoted[1 : len(quoted)-1])
}

var unquoted = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// clip shortens a text to a number of characters.
func clip(s string, limit int) string {
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit-1]) + "…"
}
