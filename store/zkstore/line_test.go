package zkstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/delivery"
)

// lineTest is a session without servers, whose goroutines the test stands in for, and the states
// that were delivered to its entries.
type lineTest struct {
	*session
	t         *testing.T
	delivered map[*entry][]store.State
}

func newLineTest(t *testing.T, opts *Options) *lineTest {
	t.Helper()
	s, err := New([]string{"nowhere"}, opts)
	if err != nil {
		t.Fatal(err)
	}
	lt := &lineTest{newGroup(s, store.SessionOptions{TTL: time.Minute}).first, t, make(map[*entry][]store.State)}
	lt.own.running = true
	return lt
}

// newEntry returns an entry whose node is being created.
func (lt *lineTest) newEntry(mode line.Mode) *entry {
	lt.t.Helper()
	e := &entry{session: lt.session}
	e.req = store.Request{Name: "a", Mode: mode, Notify: func(st store.Standing) { lt.delivered[e] = append(lt.delivered[e], st.State) }}
	e.delivery = delivery.New(e.req.Notify)
	if err := lt.join(e, 1); err != nil {
		lt.t.Fatal(err)
	}
	e.line.following = true
	return e
}

// join records that the entry's node is the last in a listing.
func (e *entry) join(listing ...string) {
	cs := contenders(listing)
	e.node = cs[len(cs)-1]
	e.line.markInLine(e, cs[:len(cs)-1], 0)
}

// A Curator writer becomes a reader, and leaves as a writer, while a read is in flight that was
// answered earlier. The read shows only the writer, which is known to have left.
// Promise: P1
func TestFollower_readBeforeDowngrade(t *testing.T) {
	t.Parallel()
	const writer, own = "_c_" + theirs + "-__WRIT__0000000001", "_c_" + ours + "-__WRIT__0000000002"
	lt := newLineTest(t, &Options{ReadWrite: true})
	e := lt.newEntry(line.Exclusive)
	e.join(writer, own)

	e.line.readings++
	e.line.handleRemoval(writer, false)
	e.line.applyLocked(contenders([]string{writer, own}), e.line.readings)
	if !e.delivery.Waiting() || !e.line.stale {
		t.Errorf("got states %v and stale %v, want Waiting and true", lt.delivered[e], e.line.stale)
	}
}

// Two readers of one session: a read was answered before the second was created, and is applied
// after that. It says nothing about the second reader.
// Promise: P6
func TestFollower_readBeforeEntry(t *testing.T) {
	t.Parallel()
	const first, second = "_c_" + ours + "-shared-lock-0000000001", "_c_" + ours + "-shared-lock-0000000002"
	lt := newLineTest(t, nil)
	a := lt.newEntry(line.Shared)
	a.join(first)
	b := lt.newEntry(line.Shared)

	a.line.readings++ // as reread does before its request
	b.join(first, second)
	a.line.applyLocked(contenders([]string{first}), a.line.readings)
	if a.state != inLine || b.state != inLine {
		t.Errorf("old read: got states %v and %v, want both admitted", lt.delivered[a], lt.delivered[b])
	}

	a.line.readings++
	a.line.applyLocked(contenders([]string{first}), a.line.readings)
	if a.state != inLine || b.state != over || !slices.Equal(lt.delivered[b], []store.State{store.Admitted, store.Gone}) {
		t.Errorf("later read: got states %v and %v, want the second gone", lt.delivered[a], lt.delivered[b])
	}
}

// An entry leaves while a read is in flight that shows it. The read must not restore it, because no
// event would report its departure again.
// Promise: P7
func TestFollower_readShowsDepartedEntry(t *testing.T) {
	t.Parallel()
	const first, second = "_c_" + theirs + "-lock-0000000001", "_c_" + theirs + "-lock-0000000002"
	const own = "_c_" + ours + "-lock-0000000003"
	lt := newLineTest(t, nil)
	e := lt.newEntry(line.Exclusive)
	e.join(first, second, own)
	e.line.readings++
	e.line.handleRemoval(second, false)
	e.line.applyLocked(contenders([]string{first, second, own}), e.line.readings)
	if len(e.ahead) != 1 || e.ahead[0].name != first {
		t.Errorf("entries ahead: got %v, want only the first", e.ahead)
	}
}

// Of many taken slots only the nearest are watched, and the directory. The directory's watch may be
// older than the entry. Then the line is read again, because an entry far ahead may have left since
// the listing that came with the entry's creation.
func TestFollower_rereadsForNewSlotEntry(t *testing.T) {
	t.Parallel()
	var listing []string
	for i := range maxWatchedAhead + 2 {
		listing = append(listing, fmt.Sprintf("_c_%s-slot-%d-lock-%010d", ours, maxWatchedAhead+1, i))
	}
	lt := newLineTest(t, nil)
	e := lt.newEntry(line.Slot(maxWatchedAhead + 1))
	e.line.watched = true
	e.join(listing...)
	if !e.delivery.Waiting() || !e.line.stale {
		t.Errorf("got states %v and stale %v, want Waiting and true", lt.delivered[e], e.line.stale)
	}
}

// A node stays in wanted if another watch of it is requested while a request is in flight: its watch
// has fired, or the request was made on an earlier connection.
func TestOwnNodes_watchRequestedAgain(t *testing.T) {
	t.Parallel()
	lt := newLineTest(t, nil)
	lt.requestOwnWatch("/a")
	lt.requestOwnWatch("/b")
	asked := lt.own.chunks()
	lt.requestOwnWatch("/b")
	for _, nodes := range asked {
		lt.own.set(nodes)
	}
	if left := lt.own.chunks(); len(left) != 1 || len(left[0]) != 1 || left[0]["/b"] == 0 {
		t.Errorf("wanted watches: got %v, want only /b", left)
	}
	lt.own.forget("/b")
	if left := lt.own.chunks(); len(left) != 0 {
		t.Errorf("wanted watches: got %v, want none", left)
	}

	const many = 3000
	for i := range many {
		lt.requestOwnWatch(fmt.Sprintf("/a/%0100d", i))
	}
	chunks, all := lt.own.chunks(), 0
	for _, nodes := range chunks {
		size := 0
		for path := range nodes {
			size += 4 + len(path)
		}
		if all += len(nodes); size > maxChunkBytes {
			t.Errorf("one request has %d bytes of paths, want at most %d", size, maxChunkBytes)
		}
	}
	if want := (many*107 + maxChunkBytes - 1) / maxChunkBytes; all != many || len(chunks) != want {
		t.Errorf("got %d watches in %d requests, want %d in %d", all, len(chunks), many, want)
	}
}
