package zkstore_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
)

const opExists = 3

// logLines is a log, for the warnings in it.
type logLines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) options() *zkstore.Options {
	return &zkstore.Options{Logger: slog.New(slog.NewTextHandler(l, nil))}
}

// warnings returns the warnings.
func (l *logLines) warnings() (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for text := range strings.Lines(l.text.String()) {
		if strings.Contains(text, "level=WARN") {
			all = append(all, text)
		}
	}
	return all
}

// A phantom is the name of a node that only a diverged server has, up to its number. The ensemble has a node
// of almost the same name, which is no entry.
type phantom string

const (
	phantomLock phantom = "_c_01234567-89ab-4def-8123-456789abcdef-lock-"
	phantomSlot phantom = "_c_01234567-89ab-8def-8123-456789abcdef-slot-2-lock-"
)

// hidden is the name in the ensemble, of the same length.
func (p phantom) hidden() string { return strings.Replace(string(p), "-lock-", "-lork-", 1) }

// create creates the node in the directory of a lock, whose line has or had an entry.
func (p phantom) create(t *testing.T, conn *zk.Conn, name string, sequence int) {
	t.Helper()
	path := fmt.Sprintf("/%s/%s%010d", name, p.hidden(), sequence)
	if _, err := conn.Create(path, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
}

// showOn makes the server behind the interceptor show the node as an entry. Transactions reach the leader
// as they are.
func (p phantom) showOn(m *interceptor) {
	m.intercept(func(op int32, frame []byte) action {
		if op == opExists || op == opGetData {
			copy(frame, bytes.ReplaceAll(frame, []byte(p), []byte(p.hidden())))
		}
		return pass
	}, func(to int32, frame []byte) action {
		if to == opGetChildren2 {
			copy(frame, bytes.ReplaceAll(frame, []byte(p.hidden()), []byte(p)))
		}
		return pass
	})
}

// checkQuickly makes the store's waiters ask the leader much more often than usual.
func checkQuickly(st *zkstore.Store) *zkstore.Store {
	st.SetBlockerChecks(20*time.Millisecond, 100*time.Millisecond)
	return st
}

// openAt opens a session at the first of two servers, so that the second is the next.
func openAt(t *testing.T, opts *zkstore.Options, first, next *interceptor) store.Session {
	t.Helper()
	next.intercept(func(int32, []byte) action { return cut }, nil)
	se := openSession(t, checkQuickly(newStore(t, opts, first.addr(), next.addr())))
	if got := zkstore.Server(se); got != first.addr() {
		t.Fatalf("the session is at %s, want %s", got, first.addr())
	}
	next.intercept(nil, nil)
	return se
}

// checkLeft checks that a session has left a diverged server, with a warning. There are more if it had
// to return to it, because the other server was too busy.
func (l *logLines) checkLeft(t *testing.T, se store.Session, name string, diverged, healthy *interceptor) {
	t.Helper()
	if got := zkstore.Server(se); got != healthy.addr() {
		t.Errorf("the session is at %s, want %s", got, healthy.addr())
	}
	warnings := l.warnings()
	if len(warnings) == 0 {
		t.Fatal("got no warning")
	}
	for _, part := range []string{"ZOOKEEPER-5010", "lock=" + name, "server=" + diverged.addr(), "node=/" + name + "/_c_"} {
		if !strings.Contains(warnings[0], part) {
			t.Errorf("the warning is %q, want it to contain %q", warnings[0], part)
		}
	}
}

// A follower has kept an ephemeral node that the leader does not have (ZOOKEEPER-5010).
// Promise: P7
func TestWaiter_behindNodeThatLeaderDoesNotHave(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		mode    line.Mode
		phantom phantom
		holder  bool // another entry is admitted, and stays
	}{
		"exclusive":                  {line.Exclusive, phantomLock, false},
		"shared":                     {line.Shared, phantomLock, false},
		"slot beside another holder": {line.Slot(2), phantomSlot, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			diverged, healthy := newInterceptor(t, server(t).Endpoint()), newInterceptor(t, server(t).Endpoint())
			var log logLines
			se := openAt(t, log.options(), diverged, healthy)
			name := newName(t)
			holder := enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, tt.mode)
			tt.phantom.create(t, connect(t, server(t).Endpoint()), name, 1)
			if !tt.holder { // later, because the servers remove a directory that is empty
				holder.withdraw(t)
			}
			tt.phantom.showOn(diverged)

			p := enqueue(t, se, name, tt.mode)
			if st := p.next(t); st.State != store.Waiting || st.Ahead != 1 {
				t.Fatalf("behind the phantom: got %v with %d ahead, want Waiting with 1: the test is not effective", st.State, st.Ahead)
			}
			p.admitted(t)
			log.checkLeft(t, se, name, diverged, healthy)
			if err := se.Confirm(t.Context()); err != nil {
				t.Error(err)
			}
			p.withdraw(t)
		})
	}
}

// With one server, or if all of them show the node, the session stays usable, and warnings are rare.
func TestWaiter_allServersDiverged(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	var log logLines
	st := newStore(t, log.options(), m.addr())
	st.SetBlockerChecks(20*time.Millisecond, time.Second)
	se, name := openSession(t, st), newName(t)
	before := enqueue(t, se, name, line.Exclusive)
	phantomLock.create(t, connect(t, server(t).Endpoint()), name, 0)
	before.withdraw(t)
	phantomLock.showOn(m)
	start := time.Now()
	p := enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Waiting)
	await(t, "three warnings", func() bool { return len(log.warnings()) >= 3 })
	if took := time.Since(start); took < 3*time.Second {
		t.Errorf("three warnings within %v, want at least %v", took, 3*time.Second)
	}
	if err := se.Confirm(t.Context()); err != nil {
		t.Error(err)
	}
	m.intercept(nil, nil) // an operator has repaired it
	p.admitted(t)
}

// The attempt that creates an entry is never committed, but one server has kept it (ZOOKEEPER-5010).
// Promise: P1
func TestEnqueue_ownNodeThatLeaderDoesNotHave(t *testing.T) {
	t.Parallel()
	diverged, healthy := newInterceptor(t, server(t).Endpoint()), newInterceptor(t, server(t).Endpoint())
	var log logLines
	se, name := openAt(t, log.options(), diverged, healthy), newName(t)
	enqueue(t, se, name, line.Exclusive).withdraw(t)

	var own phantom
	healthy.intercept(func(int32, []byte) action { return cut }, nil) // until the node has been found at the other
	diverged.intercept(func(op int32, frame []byte) action {
		switch {
		case op == opCreate2 && own == "":
			at := bytes.Index(frame, []byte("_c_"))
			own = phantom(frame[at : at+len(phantomLock)])
			copy(frame, bytes.ReplaceAll(frame, []byte(own), []byte(own.hidden())))
			return passLast
		case (op == opExists || op == opGetData) && own != "":
			copy(frame, bytes.ReplaceAll(frame, []byte(own), []byte(own.hidden())))
		}
		return pass
	}, func(to int32, frame []byte) action {
		switch {
		case to == opCreate2:
			return cut
		case to == opGetChildren2 && own != "" && bytes.Contains(frame, []byte(own.hidden())):
			copy(frame, bytes.ReplaceAll(frame, []byte(own.hidden()), []byte(own)))
			healthy.intercept(nil, nil)
		}
		return pass
	})
	p := enqueue(t, se, name, line.Exclusive)
	p.admitted(t)
	log.checkLeft(t, se, name, diverged, healthy)
	if all := contendersOf(nodes(t, connect(t, server(t).Endpoint()), "/"+name)); len(all) != 1 {
		t.Errorf("the line is %q when the entry is admitted, want one entry", all)
	}
}

// contendersOf returns the nodes of exclusive entries.
func contendersOf(all []string) []string {
	return slices.DeleteFunc(all, func(name string) bool { return !strings.Contains(name, "-lock-") })
}

// The entry ahead leaves just before the leader is asked, so the leader does not have it.
func TestWaiter_entryAheadLeavesAtCheck(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	var log logLines
	se, name := openSession(t, checkQuickly(newStore(t, log.options(), m.addr()))), newName(t)
	holder := enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Exclusive)
	holder.await(t, store.Admitted)
	node := []byte(nodes(t, connect(t, server(t).Endpoint()), "/"+name)[0])
	asked := make(chan struct{})
	ask := sync.OnceFunc(func() { close(asked) })
	left := false
	m.intercept(func(op int32, frame []byte) action {
		switch {
		case !bytes.Contains(frame, node):
		case op == opMulti && !left:
			left = true
			if err := holder.Withdraw(t.Context()); err != nil {
				t.Error(err)
			}
		case op == opExists && left:
			ask()
		}
		return pass
	}, nil)
	p := enqueue(t, se, name, line.Exclusive)
	p.admitted(t)
	receive(t, asked, "question at the server")
	if err := se.Confirm(t.Context()); err != nil { // the answer has been received
		t.Error(err)
	}
	time.Sleep(300 * time.Millisecond) // time in which a defective store would leave the server
	m.checkStayed(t, &log)
}

// The client may not read the entry ahead, and so the leader does not answer.
func TestWaiter_entryAheadNotCheckable(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	var log logLines
	se, name := openSession(t, checkQuickly(newStore(t, log.options(), m.addr()))), newName(t)
	enqueue(t, se, name, line.Exclusive).withdraw(t) // the directory allows everybody everything
	holder := enqueue(t, openSession(t, newStore(t, &zkstore.Options{
		Auth: []zkstore.Auth{{Scheme: "digest", Credentials: "ann:secret"}},
		ACL:  zk.DigestACL(zk.PermAll, "ann", "secret"),
	}, server(t).Endpoint())), name, line.Exclusive)
	holder.await(t, store.Admitted)
	p := enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Waiting)
	m.awaitReplies(t, "multi", 3, m.replies())
	m.checkStayed(t, &log)
	holder.withdraw(t)
	p.admitted(t)
}

// An entry ahead that the leader has is asked for as long as it is there, and never after.
func TestWaiter_checksOnlyWhileItWaits(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	var log logLines
	se, name := openSession(t, checkQuickly(newStore(t, log.options(), m.addr()))), newName(t)
	holder := enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Exclusive)
	holder.await(t, store.Admitted)
	p := enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Waiting)
	m.awaitReplies(t, "multi", 3, m.replies())
	holder.withdraw(t)
	p.admitted(t)
	if err := se.Confirm(t.Context()); err != nil { // after a check that was in flight
		t.Error(err)
	}
	before := m.replies()["multi"]
	time.Sleep(500 * time.Millisecond)
	if n := m.replies()["multi"] - before; n > 1 { // the last check may have begun late
		t.Errorf("got %d transactions while nothing waits, want none", n)
	}
	m.checkStayed(t, &log)
}

// checkStayed checks that a session has kept its first connection, without a warning.
func (m *interceptor) checkStayed(t *testing.T, log *logLines) {
	t.Helper()
	if n := m.acceptedConnections(); n != 1 {
		t.Errorf("got %d connections, want one", n)
	}
	if warnings := log.warnings(); len(warnings) > 0 {
		t.Errorf("got warnings %q, want none", warnings)
	}
}
