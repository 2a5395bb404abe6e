package zkstore_test

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
)

// A rival is another ZooKeeper client that locks.
type rival interface {
	// join joins the line for the lock at path. acquired is closed when the client has the lock.
	// release releases it.
	join(t *testing.T, path string) (acquired <-chan struct{}, release func())
}

// goZookeeper is go-zookeeper's own Lock.
type goZookeeper struct{ conn *zk.Conn }

func (s goZookeeper) join(t *testing.T, path string) (<-chan struct{}, func()) {
	t.Helper()
	l := zk.NewLock(s.conn, path, zk.WorldACL(zk.PermAll))
	acquired := make(chan struct{})
	go func() {
		if err := l.Lock(); err != nil {
			t.Errorf("go-zookeeper's Lock: %v", err)
			return
		}
		close(acquired)
	}()
	return acquired, func() {
		if err := l.Unlock(); err != nil {
			t.Errorf("go-zookeeper's Lock: %v", err)
		}
	}
}

// curator is one of Curator's locks, in the process that has all of them.
type curator struct {
	process *curatorProcess
	id      string // of its thread in that process
	kind    string
	replies chan string
}

// curatorProcess is a process with Curator's locks. All tests share it, because it takes seconds of
// processor time to start.
type curatorProcess struct {
	cmd *exec.Cmd

	mu      sync.Mutex
	in      io.Writer
	replies map[string]chan string // by the id of a curator
}

func startCurator(t *testing.T, kind string) *curator {
	t.Helper()
	p := sharedCurator.Get(t)
	c := &curator{process: p, id: rand.Text(), kind: kind, replies: make(chan string, 10)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replies[c.id] = c.replies
	return c
}

func newCurator() (*curatorProcess, error) {
	jars, err := testservers.ClassPath("curator-recipes", "curator-framework", "curator-client", "zookeeper", "zookeeper-jute",
		"guava", "slf4j-api", "slf4j-nop")
	if err != nil {
		return nil, err
	}
	java, err := testservers.Java()
	if err != nil {
		return nil, err
	}
	z, err := sharedServer.Start()
	if err != nil {
		return nil, err
	}
	// This also compiles the program, which needs the JDK: the JRE is not enough.
	p := &curatorProcess{replies: make(map[string]chan string), cmd: exec.Command(java,
		"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-cp", jars, filepath.Join("testdata", "Curator.java"), z.Endpoint())}
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.in = in
	lines := bufio.NewScanner(out)
	if lines.Scan(); lines.Text() != "ready" {
		return nil, errors.Join(fmt.Errorf("unexpected output %q of testdata/Curator.java: is the JDK installed, and not only the JRE?", lines.Text()), p.Close())
	}
	go p.readReplies(lines)
	return p, nil
}

// Close ends the process.
func (p *curatorProcess) Close() error {
	err := p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
	return err
}

// Log returns nothing: the process's log goes to stderr.
func (p *curatorProcess) Log() string { return "" }

// readReplies delivers replies: each line is the id of a curator and the reply to it.
func (p *curatorProcess) readReplies(lines *bufio.Scanner) {
	for lines.Scan() {
		id, reply, _ := strings.Cut(lines.Text(), " ")
		p.mu.Lock()
		replies := p.replies[id]
		p.mu.Unlock()
		if replies != nil {
			replies <- reply
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, replies := range p.replies {
		close(replies)
	}
	p.replies = nil // so that no more are added
}

func (c *curator) send(path, what string) {
	c.process.mu.Lock()
	defer c.process.mu.Unlock()
	fmt.Fprintf(c.process.in, "%s %s %s %s\n", c.id, c.kind, path, what)
}

func (c *curator) join(t *testing.T, path string) (<-chan struct{}, func()) {
	t.Helper()
	acquired := make(chan struct{})
	c.send(path, fmt.Sprintf("acquire %d", (2*testTimeout).Milliseconds()))
	go func() {
		if reply := <-c.replies; reply != "true" {
			t.Errorf("Curator's acquire: got %q, want true", reply)
			return
		}
		close(acquired)
	}()
	return acquired, func() {
		c.send(path, "release")
		if reply := <-c.replies; reply != "released" {
			t.Errorf("Curator's release: got %q, want released", reply)
		}
	}
}

// testMutualExclusion lets another client and an entry of this store lock the same path: each must
// wait for the other.
func testMutualExclusion(t *testing.T, r rival, st store.Store, mode line.Mode) {
	t.Helper()
	name := newName(t)
	path := "/" + name
	se := openSession(t, st)
	conn := connect(t, server(t).Endpoint())

	ours := enqueue(t, se, name, mode)
	ours.await(t, store.Admitted)
	acquired, release := r.join(t, path)
	await(t, "entry of the other client", func() bool { return len(nodes(t, conn, path)) == 2 })
	await(t, "other client to watch Stile's entry", func() bool {
		for _, node := range nodes(t, conn, path) {
			if slices.ContainsFunc(watchers(t, server(t), path+"/"+node), func(id string) bool { return id != se.ID() }) {
				return true
			}
		}
		return false
	})
	select {
	case <-acquired:
		t.Fatal("the other client acquired a held lock")
	default:
	}
	l, err := st.Line(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if !l.Entries[1].Foreign || l.Entries[1].Admitted || l.Entries[0].Foreign {
		t.Errorf("line: got %+v, want Stile's entry and a foreign waiter", l.Entries)
	}
	// A client that watches the node receives an event, and finds that the node still exists.
	for range 3 {
		if err := ours.Extensions().SetOwner(t.Context(), store.Owner{Reason: "another"}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-acquired:
			t.Fatal("the other client acquired a held lock")
		case <-time.After(100 * time.Millisecond):
		}
	}
	ours.withdraw(t)
	receive(t, acquired, "other client to acquire the lock")

	if _, err := tryEnqueue(t.Context(), se, name, mode, true); !isHeld(err) {
		t.Errorf("try while the other client holds the lock: got %v, want a HeldError", err)
	}
	ours = enqueue(t, se, name, mode)
	ours.await(t, store.Waiting)
	ours.expectNothing(t)
	release()
	ours.admitted(t)
	ours.withdraw(t)
}

func isHeld(err error) bool {
	_, held := errors.AsType[*store.HeldError](err)
	return held
}

func receive(t *testing.T, ch <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(testTimeout):
		t.Fatalf("timeout after %v: %s", testTimeout, what)
	}
}

// Promise: P1
func TestInterop_goZookeeperLock(t *testing.T) {
	t.Parallel()
	for _, mode := range []line.Mode{line.Exclusive, line.Shared} {
		for _, readWrite := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, ReadWrite %v", mode, readWrite), func(t *testing.T) {
				t.Parallel()
				st := newStore(t, &zkstore.Options{ReadWrite: readWrite}, server(t).Endpoint())
				testMutualExclusion(t, goZookeeper{connect(t, server(t).Endpoint())}, st, mode)
			})
		}
	}
}

// Promise: P1
func TestInterop_curatorMutex(t *testing.T) {
	t.Parallel()
	c := startCurator(t, "mutex")
	st := newStore(t, nil, server(t).Endpoint())
	for _, mode := range []line.Mode{line.Exclusive, line.Shared} {
		testMutualExclusion(t, c, st, mode)
	}
}

// Promise: P1
func TestInterop_curatorReadWriteLock(t *testing.T) {
	t.Parallel()
	st := newStore(t, &zkstore.Options{ReadWrite: true}, server(t).Endpoint())
	writer := startCurator(t, "write")
	for _, mode := range []line.Mode{line.Exclusive, line.Shared} {
		testMutualExclusion(t, writer, st, mode)
	}
	reader := startCurator(t, "read")
	testMutualExclusion(t, reader, st, line.Exclusive)

	name := newName(t)
	enqueue(t, openSession(t, st), name, line.Shared).await(t, store.Admitted)
	acquired, release := reader.join(t, "/"+name)
	receive(t, acquired, "Curator's reader beside Stile's")
	release()
}

// Other clients lock a name that has a record, a limit and a slot with a number. go-zookeeper's Lock fails if a child of the
// directory does not end in a number, and leaves its entry in the line.
// Promise: P1
func TestInterop_otherNodes(t *testing.T) {
	t.Parallel()
	st, name := newStore(t, nil, server(t).Endpoint()), newName(t)
	se := openSession(t, st)
	j := enqueue(t, se, name, line.Exclusive)
	j.await(t, store.Admitted)
	setRecord(t, j, "value")
	if err := st.Capabilities().SetLimit(t.Context(), name, 1); err != nil {
		t.Fatal(err)
	}
	j.withdraw(t)
	slot := enqueue(t, se, name, line.Slot(2))
	slot.await(t, store.Admitted)
	if _, _, err := slot.Extensions().ClaimNumber(t.Context()); err != nil {
		t.Fatal(err)
	}
	slot.withdraw(t) // the directory of the numbers is left for a minute
	for _, r := range []rival{goZookeeper{connect(t, server(t).Endpoint())}, startCurator(t, "mutex"), startCurator(t, "write"), startCurator(t, "read")} {
		for range 2 {
			acquired, release := r.join(t, "/"+name)
			receive(t, acquired, fmt.Sprintf("lock of %T", r))
			release()
		}
	}
	j = enqueue(t, se, name, line.Exclusive)
	j.await(t, store.Admitted)
	wantRecord(t, name, "value")
}

// Curator's two kinds of locks do not see each other's entries, nor Stile's entries that are named
// like the other kind's.
// Promise: P1
func TestEnqueue_curatorLocksThatDoNotSeeStile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind string
		opts *zkstore.Options
	}{
		{"write", nil},
		{"read", nil},
		{"mutex", &zkstore.Options{ReadWrite: true}},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			t.Parallel()
			st, name := newStore(t, tt.opts, server(t).Endpoint()), newName(t)
			acquired, release := startCurator(t, tt.kind).join(t, "/"+name)
			receive(t, acquired, "Curator's lock")
			defer release()
			se := openSession(t, st)
			_, err := tryEnqueue(t.Context(), se, name, line.Exclusive, false)
			if err == nil || isHeld(err) {
				t.Fatalf("Enqueue: got %v, want an error that is no HeldError", err)
			}
			t.Log(err)
			l, err := st.Line(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if len(l.Entries) != 1 || len(l.Remarks) != 1 {
				t.Errorf("line: got entries %+v and remarks %q, want one of each", l.Entries, l.Remarks)
			}
		})
	}
}

// kazoo does not see Stile's entries unless it is configured to. Stile sees kazoo's.
func TestInterop_kazooEntriesAndForeignNodes(t *testing.T) {
	t.Parallel()
	name := newName(t)
	path := "/" + name
	st := newStore(t, nil, server(t).Endpoint())
	conn := connect(t, server(t).Endpoint())
	if _, err := conn.Create(path, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	for _, foreign := range []string{"config", "lease_holder", "_c_x", "read-0000000001", "0", "-1", "lock-1"} {
		if _, err := conn.Create(path+"/"+foreign, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	for _, mark := range []string{"__lock__", "__rlock__"} {
		theirs, err := conn.Create(path+"/5b2a6a0d6f364d5f8ad1a1d6c7b0d6c1"+mark, nil, zk.FlagEphemeralSequential,
			zk.WorldACL(zk.PermAll))
		if err != nil {
			t.Fatal(err)
		}
		ours := enqueue(t, openSession(t, st), name, line.Exclusive)
		ours.await(t, store.Waiting)
		ours.expectNothing(t)
		if err := conn.Delete(theirs, -1); err != nil {
			t.Fatal(err)
		}
		ours.admitted(t)
		ours.withdraw(t)
	}
}

// The remark depends on how the store names its entries.
func TestLine_remarkOnKazoo(t *testing.T) {
	t.Parallel()
	name := newName(t)
	conn := connect(t, server(t).Endpoint())
	if _, err := conn.Create("/"+name, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	theirs := "/" + name + "/5b2a6a0d6f364d5f8ad1a1d6c7b0d6c1__lock__"
	if _, err := conn.Create(theirs, nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	for _, readWrite := range []bool{false, true} {
		st := newStore(t, &zkstore.Options{ReadWrite: readWrite}, server(t).Endpoint())
		se := openSession(t, st)
		for _, mode := range []line.Mode{line.Exclusive, line.Shared} {
			j := enqueue(t, se, name, mode)
			l, err := st.Line(t.Context(), name)
			if err != nil || len(l.Remarks) != 1 {
				t.Fatalf("remarks: got %q, %v, want one", l.Remarks, err)
			}
			_, patterns, found := strings.Cut(l.Remarks[0], "extra_lock_patterns=['")
			if !found {
				t.Fatalf("remark: got %q, want extra_lock_patterns in it", l.Remarks[0])
			}
			patterns, _, _ = strings.Cut(patterns, "']")
			// kazoo builds its pattern like this.
			sees := regexp.MustCompile("(?:__lock__|" + strings.ReplaceAll(patterns, "', '", "|") + `)(-?\d{10})$`)
			seen := 0
			for _, n := range nodes(t, conn, "/"+name) {
				if sees.MatchString(n) {
					seen++
				}
			}
			if seen != 2 {
				t.Errorf("ReadWrite %v: with %q kazoo sees %d of the entries %q, want 2", readWrite, patterns, seen, nodes(t, conn, "/"+name))
			}
			j.withdraw(t)
		}
	}
}

// A persistent node blocks like any other entry, although no end of a session deletes it. It is
// reported, and can be broken.
func TestLine_persistentEntry(t *testing.T) {
	t.Parallel()
	name := newName(t)
	st := newStore(t, nil, server(t).Endpoint())
	conn := connect(t, server(t).Endpoint())
	for _, path := range []string{"/" + name, "/" + name + "/lock-0000000001"} {
		if _, err := conn.Create(path, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := st.Line(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Entries) != 1 || !l.Entries[0].Foreign || !l.Entries[0].Admitted || l.Entries[0].Session != "0x0" {
		t.Fatalf("line: got %+v, want an admitted foreign entry of session 0x0", l.Entries)
	}
	if len(l.Remarks) != 1 || !strings.Contains(l.Remarks[0], "lock-0000000001") {
		t.Errorf("remarks: got %q, want one that names the node", l.Remarks)
	}
	if _, err := st.Break(t.Context(), name, l.Entries[0].Order); err != nil {
		t.Error(err)
	}
	enqueue(t, openSession(t, st), name, line.Exclusive).admitted(t)
}

// Another client may have created an ephemeral node at the path of the lock.
func TestEnqueue_belowEphemeralNode(t *testing.T) {
	t.Parallel()
	name := newName(t)
	conn := connect(t, server(t).Endpoint())
	if _, err := conn.Create("/"+name, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	se := openSession(t, newStore(t, nil, server(t).Endpoint()))
	for _, lock := range []string{name, name + "/below"} {
		_, err := tryEnqueue(t.Context(), se, lock, line.Exclusive, false)
		if !errors.Is(err, zk.ErrNoChildrenForEphemerals) || !strings.Contains(err.Error(), "choose another name or root") {
			t.Errorf("lock %s: got %v, want zk.ErrNoChildrenForEphemerals with advice", lock, err)
		}
	}
}
