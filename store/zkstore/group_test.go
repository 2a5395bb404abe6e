package zkstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
)

// entryBytes is what an entry with a name of that length adds to the end of its session, in a store
// without a root: the length of a string, the directory, and the node's name with the longest
// number.
func entryBytes(name string) int64 {
	return int64(4 + len("/"+name+"/") + len("_c_00000000-0000-8000-0000-000000000000-lock-") + len("-2147483648"))
}

// smallStore returns a store whose sessions have room for n entries with names of that length.
func smallStore(t *testing.T, n int, name, server string) *zkstore.Store {
	t.Helper()
	st := newStore(t, nil, server)
	st.SetSessionBytes(int64(n) * entryBytes(name))
	return st
}

// sessionOf returns the ZooKeeper session of the only entry in a line.
func sessionOf(t *testing.T, name string) string {
	t.Helper()
	l, err := newStore(t, nil, server(t).Endpoint()).Line(t.Context(), name)
	if err != nil || len(l.Entries) != 1 {
		t.Fatalf("line %q: got %+v, %v, want one entry", name, l, err)
	}
	return l.Entries[0].Session
}

// ids returns the ids of a group's sessions.
func ids(se store.Session) (ids []string) {
	for _, p := range zkstore.Parts(se) {
		ids = append(ids, p.ID)
	}
	return ids
}

func TestGroup_opensFurtherSession(t *testing.T) {
	t.Parallel()
	base := newName(t)
	st := smallStore(t, 3, base+"-00", server(t).Endpoint())
	se := openSession(t, st)
	var entries []*joined
	join := func(i int) {
		t.Helper()
		j := enqueue(t, se, fmt.Sprintf("%s-%02d", base, i), line.Exclusive)
		j.admitted(t)
		entries = append(entries, j)
	}
	for i := range 3 {
		join(i)
	}
	if n := len(ids(se)); n != 1 {
		t.Fatalf("sessions for three entries: got %d, want 1", n)
	}
	join(3)
	if got := ids(se); len(got) != 2 || got[0] != se.ID() || sessionOf(t, entries[2].name) != got[0] || sessionOf(t, entries[3].name) != got[1] {
		t.Errorf("sessions: got %v, with the third entry in %s and the fourth in %s; want two sessions, one for each",
			got, sessionOf(t, entries[2].name), sessionOf(t, entries[3].name))
	}
	if err := se.Confirm(t.Context()); err != nil {
		t.Error(err)
	}
	entries[0].withdraw(t)
	join(4)
	if got := ids(se); len(got) != 2 || sessionOf(t, entries[4].name) != got[0] {
		t.Errorf("entry after a withdrawal: got session %s of %v, want the first", sessionOf(t, entries[4].name), got)
	}
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		if l, err := newStore(t, nil, server(t).Endpoint()).Line(t.Context(), e.name); err != nil || len(l.Entries) > 0 {
			t.Errorf("line %q after Close: got %+v, %v, want no entries", e.name, l, err)
		}
	}
	if _, err := tryEnqueue(t.Context(), se, base, line.Exclusive, false); !errors.Is(err, store.ErrSessionLost) {
		t.Errorf("Enqueue after Close: got %v, want ErrSessionLost", err)
	}
}

// The entries come at the same time, and one goroutine opens sessions for all of them.
func TestGroup_opensNoMoreThanNeeded(t *testing.T) {
	t.Parallel()
	base := newName(t)
	const each, sessions = 4, 5
	st := smallStore(t, each, base+"-00", server(t).Endpoint())
	se := openSession(t, st)
	var joining sync.WaitGroup
	for i := range each * sessions {
		joining.Go(func() {
			if _, err := tryEnqueue(t.Context(), se, fmt.Sprintf("%s-%02d", base, i), line.Exclusive, true); err != nil {
				t.Error(err)
			}
		})
	}
	joining.Wait()
	parts := zkstore.Parts(se)
	if len(parts) != sessions {
		t.Errorf("got %d sessions, want %d", len(parts), sessions)
	}
	for _, p := range parts {
		if most := each * entryBytes(base+"-00"); p.Bytes > most {
			t.Errorf("session %s: got %d bytes, want at most %d", p.ID, p.Bytes, most)
		}
	}
}

// A user of the session need not know that it is several: a loss of one is a loss of all.
// Promise: P1
func TestGroup_lossOfOneSession(t *testing.T) {
	t.Parallel()
	for which := range 2 {
		base := newName(t)
		m := newInterceptor(t, server(t).Endpoint())
		st := smallStore(t, 1, base+"-0", m.addr())
		lost := make(chan error, 10)
		se := openSessionTTL(t, st, longTTL, func(err error) { lost <- err })
		var entries []*joined
		for i := range 2 {
			entries = append(entries, enqueue(t, se, fmt.Sprintf("%s-%d", base, i), line.Exclusive))
			entries[i].admitted(t)
		}
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.intercept(func(op int32, _ []byte) action { // prevents reconnections
			if op == 0 {
				return cut
			}
			return pass
		}, nil)
		m.expireID(t, ids(se)[which], server(t).Endpoint())
		m.intercept(nil, nil)
		// Confirm may be called before the event of the loss was received.
		if err := se.Confirm(t.Context()); !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("Confirm after session %d of 2 has ended: got %v, want ErrSessionLost", which+1, err)
		}
		for _, e := range entries {
			e.gone(t, store.ErrSessionLost)
		}
		if err := <-lost; !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("Lost was called with %v, want an error matching ErrSessionLost", err)
		}
		if _, err := tryEnqueue(t.Context(), se, base, line.Exclusive, false); !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("Enqueue after the loss: got %v, want ErrSessionLost", err)
		}
		// The other session lives until Close, which is called after the holders were notified.
		if got, want := sessionOf(t, entries[1-which].name), ids(se)[1-which]; got != want {
			t.Errorf("entry of the other session before Close: got session %s, want %s", got, want)
		}
		if err := se.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if l, err := newStore(t, nil, server(t).Endpoint()).Line(t.Context(), entries[1-which].name); err != nil || len(l.Entries) > 0 {
			t.Errorf("its line after Close: got %+v, %v, want no entries", l, err)
		}
		if len(lost) > 0 {
			t.Errorf("Lost was called again: %v", <-lost)
		}
	}
}

// A confirmation is valid for the entries in further sessions too, so the reply to the first
// session is not enough.
// Promise: P1
func TestGroup_confirmNeedsAllSessions(t *testing.T) {
	t.Parallel()
	base := newName(t)
	m := newInterceptor(t, server(t).Endpoint())
	se := openSession(t, smallStore(t, 1, base+"-0", m.addr()))
	for i := range 2 {
		enqueue(t, se, fmt.Sprintf("%s-%d", base, i), line.Exclusive).admitted(t)
	}
	for answered := range 2 {
		var asked atomic.Int32
		all := make(chan struct{})
		m.intercept(func(op int32, _ []byte) action {
			if op != opMulti {
				return pass
			}
			if n := int(asked.Add(1)); n == 2 {
				close(all)
				return discard
			} else if n <= answered {
				return pass
			}
			return discard
		}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		confirmed := make(chan error, 1)
		go func() { confirmed <- se.Confirm(ctx) }()
		receive(t, all, "requests of both sessions")
		cancel()
		if err := <-confirmed; !errors.Is(err, context.Canceled) {
			t.Errorf("Confirm with %d of 2 replies: got %v, want context.Canceled", answered, err)
		}
		m.intercept(nil, nil)
		m.reset()
		confirmEventually(t, se)
	}
}

// Each session has its own watches: a confirmation succeeds only when the entries of all are
// watched.
// Promise: P1
func TestGroup_confirmCoversAllEntries(t *testing.T) {
	t.Parallel()
	for which := range 2 {
		base := newName(t)
		m := newInterceptor(t, server(t).Endpoint())
		conn := connect(t, server(t).Endpoint())
		se := openSession(t, smallStore(t, 1, base+"-0", m.addr()))
		var entries []*joined
		for i := range 2 {
			lose, lost := once(opSetWatches, discard)
			if i == which {
				m.intercept(lose, nil)
			}
			before := m.replies()
			entries = append(entries, enqueue(t, se, fmt.Sprintf("%s-%d", base, i), line.Exclusive))
			entries[i].admitted(t)
			if i == which {
				receive(t, lost, "discarded request for a watch")
			} else {
				m.awaitReplies(t, "setWatches", 1, before)
			}
		}
		broken := entries[which]
		if err := conn.Delete("/"+broken.name+"/"+nodes(t, conn, "/"+broken.name)[0], -1); err != nil {
			t.Fatal(err)
		}
		before := m.replies()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- se.Confirm(ctx) }()
		m.awaitReplies(t, "multi", 2, before)
		broken.expectNothing(t)
		cancel()
		if err := <-done; err == nil {
			t.Errorf("Confirm succeeded before the loss of the entry in session %d of 2 was reported", which+1)
		}
		m.reset() // the client notices that there is no reply, and retries
		confirmEventually(t, se)
		select {
		case st := <-broken.standings:
			if st.State != store.Gone {
				t.Errorf("deleted entry: got %v, want Gone", st.State)
			}
		default:
			t.Errorf("Confirm succeeded, and the loss of the entry in session %d of 2 was not reported", which+1)
		}
		entries[1-which].expectNothing(t)
	}
}

// A confirmation that began before a further session was opened is also counted for that session.
// Promise: P1
func TestGroup_confirmsFurtherSessionFirst(t *testing.T) {
	t.Parallel()
	base := newName(t)
	m := newInterceptor(t, server(t).Endpoint())
	se := openSession(t, smallStore(t, 1, base+"-0", m.addr()))
	enqueue(t, se, base+"-0", line.Exclusive).admitted(t)
	m.takeRequests()
	enqueue(t, se, base+"-1", line.Exclusive).admitted(t)
	passed := m.takeRequests()
	first, made := slices.IndexFunc(passed, func(op string) bool { return op == "sync" || op == "multi" }), slices.Index(passed, "create2")
	if first < 0 || made < first {
		t.Errorf("requests for the first entry in a further session: got %v, want a confirmation before create2", passed)
	}
}

func TestGroup_furtherSessionGrantedLess(t *testing.T) {
	t.Parallel()
	base := newName(t)
	m := newInterceptor(t, server(t).Endpoint())
	se := openSession(t, smallStore(t, 1, base+"-0", m.addr()))
	enqueue(t, se, base+"-0", line.Exclusive).admitted(t)
	m.intercept(nil, func(to int32, frame []byte) action {
		if to == 0 {
			binary.BigEndian.PutUint32(frame[8:], 5000)
		}
		return pass
	})
	if _, err := tryEnqueue(t.Context(), se, base+"-1", line.Exclusive, false); err == nil || !strings.Contains(err.Error(), "at most 5s") {
		t.Errorf("entry in a session with a smaller TTL: got %v, want an error with the maximum", err)
	}
	m.intercept(nil, nil)
	enqueue(t, se, base+"-1", line.Exclusive).admitted(t)
}

// A call that is canceled while it waits for a further session returns. The next call uses that
// session.
func TestGroup_canceledCallLeavesFurtherSession(t *testing.T) {
	t.Parallel()
	base := newName(t)
	m := newInterceptor(t, server(t).Endpoint())
	se := openSession(t, smallStore(t, 1, base+"-0", m.addr()))
	enqueue(t, se, base+"-0", line.Exclusive).admitted(t)
	requested := make(chan struct{})
	var once sync.Once
	m.intercept(nil, func(to int32, _ []byte) action {
		if to == 0 {
			once.Do(func() { close(requested) })
			return stall
		}
		return pass
	})
	ctx, cancel := context.WithCancel(t.Context())
	given := make(chan error, 1)
	go func() {
		_, err := tryEnqueue(ctx, se, base+"-1", line.Exclusive, false)
		given <- err
	}()
	receive(t, requested, "request for a further session")
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled Enqueue: got %v, want context.Canceled", err)
	}
	m.intercept(nil, nil)
	m.resume()
	enqueue(t, se, base+"-1", line.Exclusive).admitted(t)
	if n := len(ids(se)); n != 2 {
		t.Errorf("got %d sessions, want 2", n)
	}
}

// The bytes of entries that are in lines, or may be, are counted, and released however an entry
// ends.
func TestGroup_countsOnlyPresentEntries(t *testing.T) {
	t.Parallel()
	name := newName(t)
	m := newInterceptor(t, server(t).Endpoint())
	se := openSession(t, newStore(t, nil, m.addr()))
	other := openSession(t, newStore(t, nil, server(t).Endpoint()))
	conn := connect(t, server(t).Endpoint())
	counted := func() int64 { return zkstore.Parts(se)[0].Bytes }
	nothing := func(after string) {
		t.Helper()
		await(t, "count of zero bytes after "+after, func() bool { return counted() == 0 })
	}

	j := enqueue(t, se, name, line.Exclusive)
	j.admitted(t)
	if got := counted(); got != entryBytes(name) {
		t.Errorf("one entry: got %d bytes, want %d", got, entryBytes(name))
	}
	j.withdraw(t)
	_ = j.Withdraw(t.Context())
	if got := counted(); got != 0 {
		t.Errorf("after two withdrawals: got %d bytes, want 0", got)
	}

	breakIt := func() {
		t.Helper()
		for _, n := range nodes(t, conn, "/"+name) {
			if err := conn.Delete("/"+name+"/"+n, -1); err != nil {
				t.Error(err)
			}
		}
	}
	before := m.replies()
	j = enqueue(t, se, name, line.Exclusive)
	j.admitted(t)
	m.awaitReplies(t, "setWatches", 1, before)
	breakIt()
	j.gone(t, store.ErrGone)
	nothing("an eviction")

	// The entry is removed before it is watched: the reply to the request for the watch reports
	// that.
	hold, asked := once(opSetWatches, stall)
	m.intercept(hold, nil)
	j = enqueue(t, se, name, line.Exclusive)
	j.admitted(t)
	receive(t, asked, "a request for a watch")
	breakIt()
	m.intercept(nil, nil)
	m.resume()
	j.gone(t, store.ErrGone)
	nothing("an eviction that the reply for a watch reported")

	for _, tt := range []struct {
		what            string
		request, answer action // on the first deletion
		broken          bool   // another client deletes the entry first
		want            error
	}{
		{"a withdrawal whose request was lost", cut, pass, false, nil},
		{"a withdrawal whose reply was lost", pass, cut, false, store.ErrNotKnown},
		{"a withdrawal of a broken entry", pass, pass, true, store.ErrGone},
	} {
		j = enqueue(t, se, name, line.Exclusive)
		j.admitted(t)
		request, asked := once(opDelete, tt.request)
		answer, _ := once(opDelete, tt.answer)
		m.intercept(func(op int32, frame []byte) action {
			if op == opDelete && tt.broken {
				breakIt()
			}
			return request(op, frame)
		}, answer)
		if err := j.Withdraw(t.Context()); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.what, err, tt.want)
		}
		receive(t, asked, "the request")
		m.intercept(nil, nil)
		if got := counted(); got != 0 {
			t.Errorf("after %s: got %d bytes, want 0", tt.what, got)
		}
	}

	held := enqueue(t, other, name, line.Exclusive)
	if _, err := tryEnqueue(t.Context(), se, name, line.Exclusive, true); !isHeld(err) {
		t.Fatal(err)
	}
	nothing("a failed try")
	held.withdraw(t)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tryEnqueue(ctx, se, name, line.Exclusive, false); err == nil {
		t.Fatal("Enqueue with a canceled context succeeded")
	}
	nothing("a call with a canceled context")

	hold, asked = once(opDelete, stall)
	m.intercept(hold, nil)
	j = enqueue(t, se, name, line.Exclusive)
	j.admitted(t)
	ctx, cancel = context.WithCancel(t.Context())
	given := make(chan error, 1)
	go func() { given <- j.Withdraw(ctx) }()
	receive(t, asked, "the request")
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled Withdraw: got %v, want context.Canceled", err)
	}
	m.intercept(nil, nil)
	m.resume()
	nothing("a canceled withdrawal")

	for _, v := range []action{discard, stall} {
		created := make(chan struct{})
		var once sync.Once
		m.intercept(func(op int32, _ []byte) action {
			if op == opCreate2 {
				once.Do(func() { close(created) })
				return v
			}
			return pass
		}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		given := make(chan error, 1)
		go func() {
			_, err := tryEnqueue(ctx, se, name, line.Exclusive, false)
			given <- err
		}()
		receive(t, created, "request for the entry")
		cancel()
		<-given
		if got := counted(); got != entryBytes(name) {
			t.Errorf("entry whose creation may succeed: got %d bytes, want %d", got, entryBytes(name))
		}
		m.intercept(nil, nil)
		m.resume()
		m.reset()
		nothing("an attempt with an unknown outcome")
	}

	once, done := once(opCreate2, cut)
	m.intercept(once, nil)
	j = enqueue(t, se, name, line.Exclusive)
	receive(t, done, "reset during the creation")
	j.admitted(t)
	if got := counted(); got != entryBytes(name) {
		t.Errorf("entry after two attempts: got %d bytes, want %d", got, entryBytes(name))
	}
	j.withdraw(t)
	nothing("a second attempt")
}

// With the default limit: a server can read again what it wrote at the end of a full session. The
// counted bytes are the size of that transaction.
// Promise: P1
func TestGroup_fullSessionEndIsReadable(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	z := testservers.StartZooKeeper(t, "dataLogDir="+logs)
	st := newStore(t, nil, z.Endpoint())
	se := openSession(t, st)
	longest := strings.Repeat("x", 500)
	full := zkstore.MaxSessionBytes / entryBytes(longest)
	var joining sync.WaitGroup
	places := make(chan struct{}, 64)
	for i := range full + 1 {
		places <- struct{}{}
		joining.Go(func() {
			defer func() { <-places }()
			number := strconv.FormatInt(i, 10)
			if _, err := tryEnqueue(t.Context(), se, longest[len(number):]+number, line.Exclusive, false); err != nil {
				t.Error(err)
			}
		})
	}
	joining.Wait()
	parts := zkstore.Parts(se)
	if len(parts) != 2 || parts[0].Bytes != full*entryBytes(longest) {
		t.Fatalf("sessions: got %+v, want a full one of %d bytes and another", parts, full*entryBytes(longest))
	}
	if err := se.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The numbers have ten digits and no sign.
	size := closingSize(t, logs, parts[0].ID)
	if rest := int64(size) - (parts[0].Bytes - full); rest < 0 || rest > 64 {
		t.Errorf("transaction at the end of the session: got %d bytes, want the %d counted bytes and at most 64 more",
			size, parts[0].Bytes-full)
	}
	z.Kill()
	z.Start()
	z.AwaitReady()
}

// closingSize returns the size of the transaction in a server's log that ended the session.
func closingSize(t *testing.T, dir, session string) int {
	t.Helper()
	id, err := strconv.ParseUint(session, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "version-2", "log.*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no log in %s (%v)", dir, err)
	}
	const header, checksum, kind, closing = 4 + 4 + 8, 8, 8 + 4 + 8 + 8, -11
	for _, file := range files {
		log, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for log = log[header:]; len(log) > checksum+4; {
			n := int(binary.BigEndian.Uint32(log[checksum:]))
			if n == 0 {
				break // the rest is preallocated
			}
			txn := log[checksum+4:][:n]
			if binary.BigEndian.Uint64(txn) == id && int32(binary.BigEndian.Uint32(txn[kind:])) == closing {
				return n
			}
			log = log[checksum+4+n+1:] // and a byte at the end
		}
	}
	t.Fatalf("the end of session %s is not in the log", session)
	return 0
}
