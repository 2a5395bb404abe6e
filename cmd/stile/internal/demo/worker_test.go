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

// hired is a worker at work, and its parent.
type hired struct {
	t       *testing.T
	job     job
	orders  *json.Encoder
	reports *json.Decoder
	quit    io.Closer // the parent's end
	err     chan error
}

// ttl is longer than any of these tests, however busy the machine is: what they lose is taken from them.
const ttl = 5 * time.Minute

// hire starts a worker on a store in memory.
func hire(t *testing.T, opened *storeurl.Conn, j job) *hired {
	t.Helper()
	fromParent, toWorker := io.Pipe()
	fromWorker, toParent := io.Pipe()
	h := &hired{
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

// tells waits for a report, over those of progress.
func (h *hired) tells(e event) report {
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
			h.t.Fatalf("reported %+v, want %q", r, e)
		}
	}
}

func (h *hired) goesOn() {
	h.t.Helper()
	if err := h.orders.Encode(goOn{}); err != nil {
		h.t.Fatal(err)
	}
}

// begins starts the worker, and returns when it has the lock.
func (h *hired) begins() {
	h.t.Helper()
	h.tells(ready)
	h.goesOn()
	h.tells(waiting)
	h.tells(adding)
}

func (h *hired) ends() error {
	h.t.Helper()
	select {
	case err := <-h.err:
		return err
	case <-time.After(4 * time.Minute):
		h.t.Fatal("the worker has not ended")
		return nil
	}
}

func TestAWorkerDoesItsPart(t *testing.T) {
	t.Parallel()
	counter := testCounter(t)
	h := hire(t, memory(t), job{Lock: "demo", TTL: ttl, Counter: counter, Add: 1000})
	h.begins()
	h.tells(halfway)
	h.goesOn()
	if r := h.tells(done); r.Added != 1000 {
		t.Errorf("at the end: %+v", r)
	}
	if err := h.ends(); err != nil {
		t.Error(err)
	}
	if n, err := readCounter(counter); n != 1000 || err != nil {
		t.Errorf("in the file: %d, %v", n, err)
	}
}

// So that the parent can kill it there, and knows to the last one what it has written.
func TestAWorkerHalfwayHoldsTheLockAndHasAcknowledgedAllThatItHasWritten(t *testing.T) {
	t.Parallel()
	counter, opened := testCounter(t), memory(t)
	h := hire(t, opened, job{Lock: "demo", TTL: ttl, Counter: counter, Add: 999})
	h.begins()
	r := h.tells(halfway)
	if n, err := readCounter(counter); r.Added != 499 || n != 499 || err != nil {
		t.Errorf("acknowledged %d, in the file %d, %v; want half of 999", r.Added, n, err)
	}
	line, err := opened.Store.Line(t.Context(), "demo")
	if err != nil || len(line.Entries) != 1 || !line.Entries[0].Admitted {
		t.Errorf("it does not hold the lock: %+v, %v", line, err)
	}
	h.quit.Close()
	if err := h.ends(); !errors.Is(err, errAlone) {
		t.Errorf("after the parent's end: %v", err)
	}
	if n, _ := readCounter(counter); n != 499 {
		t.Errorf("it has gone on to %d", n)
	}
}

func TestAWorkerThatLosesTheLockStopsTellsAndJoinsAgain(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"while it adds", "while it waits halfway"} {
		caught := func(t *testing.T) {
			counter, opened := testCounter(t), memory(t)
			const all = 1000
			h := hire(t, opened, job{Lock: "demo", TTL: ttl, Counter: counter, Add: all})
			h.begins()
			if name == "while it waits halfway" {
				h.tells(halfway)
			}
			line, err := opened.Store.Line(t.Context(), "demo")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := opened.Store.Break(t.Context(), "demo", line.Entries[0].Order); err != nil {
				t.Fatal(err)
			}
			// It cannot go on before somebody reads what it reports of each hundredth. In the meantime it hears of its loss.
			synctest.Wait()
			r := h.tells(lost)
			if n, err := readCounter(counter); r.Added == all || n != r.Added || err != nil {
				t.Errorf("acknowledged %d, in the file %d, %v", r.Added, n, err)
			}
			if !strings.Contains(r.Text, stile.LostEvicted.String()) {
				t.Errorf("%q does not say why: %v", r.Text, stile.LostEvicted)
			}
			h.tells(waiting)
			if again := h.tells(adding); again.Added != r.Added {
				t.Errorf("it goes on as %+v, after %+v", again, r)
			}
			h.tells(halfway)
			h.goesOn()
			h.tells(done)
			if n, err := readCounter(counter); n != all || err != nil {
				t.Errorf("at the end: %d, %v", n, err)
			}
			if err := h.ends(); err != nil {
				t.Error(err)
			}
		}
		t.Run(name, func(t *testing.T) { synctest.Test(t, caught) })
	}
}

func TestAWorkerWithoutAJobSaysWhoStartsWorkers(t *testing.T) {
	t.Parallel()
	err := Work(t.Context(), strings.NewReader(""), io.Discard, nil)
	if err == nil || !strings.Contains(err.Error(), "stile demo") {
		t.Errorf("%v", err)
	}
}

func TestAWorkerEndsWithItsParentWhileItWaits(t *testing.T) {
	t.Parallel()
	opened := memory(t)
	j := job{Lock: "demo", TTL: ttl, Counter: testCounter(t), Add: 10}
	holder := hire(t, opened, j)
	holder.begins()
	holder.tells(halfway)
	waiter := hire(t, opened, j)
	waiter.tells(ready)
	waiter.goesOn()
	waiter.tells(waiting)
	waiter.quit.Close()
	if err := waiter.ends(); !errors.Is(err, errAlone) {
		t.Errorf("%v", err)
	}
}
