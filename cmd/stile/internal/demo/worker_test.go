package demo

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/storeurl"
)

// testWorker is a worker in this process, and its parent's ends of the pipes.
type testWorker struct {
	t       *testing.T
	job     job
	orders  *json.Encoder
	reports *json.Decoder
	quit    io.Closer // the worker's stdin
	err     chan error
}

// ttl is longer than any of these tests, so that no session ends by itself.
const ttl = 5 * time.Minute

// startWorker starts a worker on a store.
func startWorker(t *testing.T, opened *storeurl.Conn, j job) *testWorker {
	t.Helper()
	fromParent, toWorker := io.Pipe()
	fromWorker, toParent := io.Pipe()
	h := &testWorker{
		t: t, job: j, quit: toWorker, err: make(chan error, 1),
		orders: json.NewEncoder(toWorker), reports: json.NewDecoder(fromWorker),
	}
	go func() {
		err := Work(t.Context(), fromParent, toParent, func(context.Context, string) (*storeurl.Conn, error) {
			return opened, nil
		})
		toParent.Close()
		h.err <- err
	}()
	t.Cleanup(func() {
		toWorker.Close()
		fromWorker.Close()
	})
	if err := h.orders.Encode(j); err != nil {
		t.Fatal(err)
	}
	return h
}

func memory(t *testing.T) *storeurl.Conn {
	t.Helper()
	opened, err := storeurl.Open(t.Context(), "mem:", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() })
	return opened
}

// waitFor waits for a report, skipping those of progress.
func (h *testWorker) waitFor(e event) report {
	h.t.Helper()
	for {
		var r report
		if err := h.reports.Decode(&r); err != nil {
			h.t.Fatalf("no report of %q: %v", e, err)
		}
		if r.Event == e {
			return r
		}
		if r.Event != added {
			h.t.Fatalf("got report %+v, want %q", r, e)
		}
	}
}

func (h *testWorker) goesOn() {
	h.t.Helper()
	if err := h.orders.Encode(goOn{}); err != nil {
		h.t.Fatal(err)
	}
}

// begins lets the worker start, and returns when it has the lock.
func (h *testWorker) begins() {
	h.t.Helper()
	h.waitFor(ready)
	h.goesOn()
	h.waitFor(waiting)
	h.waitFor(adding)
}

func (h *testWorker) ends() error {
	h.t.Helper()
	select {
	case err := <-h.err:
		return err
	case <-time.After(4 * time.Minute):
		h.t.Fatal("the worker has not ended")
		return nil
	}
}

func TestWork(t *testing.T) {
	t.Parallel()
	counter := testCounter(t)
	h := startWorker(t, memory(t), job{Lock: "demo", TTL: ttl, Counter: counter, Add: 1000})
	h.begins()
	h.waitFor(halfway)
	h.goesOn()
	if r := h.waitFor(done); r.Added != 1000 {
		t.Errorf("got last report %+v, want 1000 added", r)
	}
	if err := h.ends(); err != nil {
		t.Error(err)
	}
	if n, err := readCounter(counter); n != 1000 || err != nil {
		t.Errorf("got %d, %v in the file, want 1000", n, err)
	}
}

// Halfway, the worker holds the lock and has acknowledged all increments that it has written, so
// that the parent can kill it there and still knows the number.
func TestWork_halfway(t *testing.T) {
	t.Parallel()
	counter, opened := testCounter(t), memory(t)
	h := startWorker(t, opened, job{Lock: "demo", TTL: ttl, Counter: counter, Add: 999})
	h.begins()
	r := h.waitFor(halfway)
	if n, err := readCounter(counter); r.Added != 499 || n != 499 || err != nil {
		t.Errorf("acknowledged %d, in the file %d, %v; want half of 999", r.Added, n, err)
	}
	line, err := opened.Store.Line(t.Context(), "demo")
	if err != nil || len(line.Entries) != 1 || !line.Entries[0].Admitted {
		t.Errorf("got the line %+v, %v; want the worker to hold the lock", line, err)
	}
	h.quit.Close()
	if err := h.ends(); !errors.Is(err, errParentEnded) {
		t.Errorf("after the parent's end: got %v, want errParentEnded", err)
	}
	if n, _ := readCounter(counter); n != 499 {
		t.Errorf("got %d in the file, want 499: the worker has gone on", n)
	}
}

func TestWork_rejoinsAfterLoss(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"while it adds", "while it waits halfway"} {
		caught := func(t *testing.T) {
			counter, opened := testCounter(t), memory(t)
			const all = 1000
			h := startWorker(t, opened, job{Lock: "demo", TTL: ttl, Counter: counter, Add: all})
			h.begins()
			if name == "while it waits halfway" {
				h.waitFor(halfway)
			}
			line, err := opened.Store.Line(t.Context(), "demo")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := opened.Store.Break(t.Context(), "demo", line.Entries[0].Order); err != nil {
				t.Fatal(err)
			}
			// The worker blocks on a report that is not read, at the latest after a hundredth of
			// its part. It detects the loss meanwhile.
			synctest.Wait()
			r := h.waitFor(lost)
			if n, err := readCounter(counter); r.Added == all || n != r.Added || err != nil {
				t.Errorf("acknowledged %d, in the file %d, %v; want the same number, less than all", r.Added, n, err)
			}
			if !strings.Contains(r.Text, stile.LostEvicted.String()) {
				t.Errorf("got %q, want it to contain %v", r.Text, stile.LostEvicted)
			}
			h.waitFor(waiting)
			if again := h.waitFor(adding); again.Added != r.Added {
				t.Errorf("after the loss: got %+v, want as many added as in %+v", again, r)
			}
			h.waitFor(halfway)
			h.goesOn()
			h.waitFor(done)
			if n, err := readCounter(counter); n != all || err != nil {
				t.Errorf("at the end: got %d, %v in the file, want all", n, err)
			}
			if err := h.ends(); err != nil {
				t.Error(err)
			}
		}
		t.Run(name, func(t *testing.T) { synctest.Test(t, caught) })
	}
}

func TestWork_withoutJob(t *testing.T) {
	t.Parallel()
	err := Work(t.Context(), strings.NewReader(""), io.Discard, nil)
	if err == nil || !strings.Contains(err.Error(), "stile demo") {
		t.Errorf("got %v", err)
	}
}

func TestWork_endsWithParentWhileWaiting(t *testing.T) {
	t.Parallel()
	opened := memory(t)
	j := job{Lock: "demo", TTL: ttl, Counter: testCounter(t), Add: 10}
	holder := startWorker(t, opened, j)
	holder.begins()
	holder.waitFor(halfway)
	waiter := startWorker(t, opened, j)
	waiter.waitFor(ready)
	waiter.goesOn()
	waiter.waitFor(waiting)
	waiter.quit.Close()
	if err := waiter.ends(); !errors.Is(err, errParentEnded) {
		t.Errorf("got %v", err)
	}
}
