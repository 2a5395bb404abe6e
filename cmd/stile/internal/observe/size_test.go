package observe

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// largeEntry returns an entry with the largest owner that counts as one of Stile.
func largeEntry(n uint64) stile.Entry {
	text := fmt.Sprint(n)
	e := stile.Entry{Token: n, Session: text, Owner: stile.Owner{Reason: text + strings.Repeat("x", stile.MaxOwnerBytes-len(text))}}
	for i := range 16 {
		name := fmt.Sprintf("%02d%s", i, strings.Repeat("n", store.MaxNameBytes-2))
		e.Owner.Waits = append(e.Owner.Waits, store.Wait{Name: name})
		e.Owner.Under = append(e.Owner.Under, store.Held{Name: name})
	}
	return e
}

// heap returns how many bytes are in use.
func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Names that no client of Stile can lock are not followed, and remarks are bounded.
func TestObserver_hostileNamesAndRemarks(t *testing.T) {
	o, now := New(nil), time.Now()
	long := holding(strings.Repeat("n", 1<<20), "s", 1)
	line := holding("a", "s", 2)
	line.Remarks = []string{"first", strings.Repeat("x", 1<<20)}
	for range 1000 {
		line.Remarks = append(line.Remarks, "more")
	}
	o.apply(stile.Change{Lines: []stile.Line{long, line}, All: true, Exact: true, At: now}, now)
	lines, _ := o.Lines("", "", 10)
	if len(lines) != 1 || lines[0].Name != "a" {
		t.Fatalf("got %d lines, want one", len(lines))
	}
	remarks := lines[0].Remarks
	if len(remarks) != maxRemarks+1 || remarks[0] != "first" || remarks[maxRemarks] != "986 more remarks; stile show has all of them" {
		t.Errorf("got %d remarks: %.500q", len(remarks), remarks)
	}
	if !Same(o.lines["a"].line, lines[0]) {
		t.Error("the line differs from itself")
	}
}

// What a client may put into the store, thousands of megabytes in an hour, leaves little in the memory.
func TestObserver_hostileOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		client, err := stile.New(st, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close(context.Background()) }()
		before := heap()
		o := New(client)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- o.Run(ctx) }()
		defer func() { cancel(); <-done }()
		synctest.Wait()
		se, err := st.Open(t.Context(), store.SessionOptions{TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = se.Close(context.Background()) }()
		const entries = 300
		for i := range entries {
			text := strings.Repeat("x", 1<<20)
			ticket, err := se.Enqueue(t.Context(), store.Request{
				Name: fmt.Sprint("a", i), Mode: line.Exclusive, Notify: func(store.Standing) {},
				Owner: store.Owner{Reason: text, Labels: map[string]string{text: text}},
			})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if err := ticket.Withdraw(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		time.Sleep(time.Second)
		if events := o.History("a0"); len(events) != 2 {
			t.Errorf("got the events %.1000v, want a hold and its end", events)
		}
		if used := heap() - before; used > 10<<20 {
			t.Errorf("%d entries of 1 MB leave %d bytes", entries, used)
		}
		runtime.KeepAlive(o)
	})
}
