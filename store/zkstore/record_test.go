package zkstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func setRecord(t *testing.T, j *joined, value string) {
	t.Helper()
	if err := j.Extensions().SetRecord(t.Context(), []byte(value)); err != nil {
		t.Fatalf("SetRecord(%q): %v", value, err)
	}
}

func wantRecord(t *testing.T, name, want string) {
	t.Helper()
	st := newStore(t, nil, server(t).Endpoint())
	if got, err := st.Capabilities().Record(t.Context(), name); err != nil || string(got) != want {
		t.Errorf("record: got %q, %v, want %q", got, err, want)
	}
}

// The connection is lost before or after each write: the repetition finds what was done.
func TestSetRecord_connectionLost(t *testing.T) {
	t.Parallel()
	name := newName(t)
	m := newInterceptor(t, server(t).Endpoint())
	j := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
	j.admitted(t)
	for _, value := range []string{"created", "changed", "", "again", ""} {
		for _, before := range []bool{false, true} {
			lose, lost := once(opMulti, cut)
			if before {
				m.intercept(lose, nil)
			} else {
				m.intercept(nil, lose)
			}
			setRecord(t, j, value)
			select {
			case <-lost:
			default:
				t.Errorf("precondition failed: no connection was lost for %q", value)
			}
			m.intercept(nil, nil)
			wantRecord(t, name, value)
		}
	}
}

// A write is stalled on its way and given up. The later write follows on the same connection, and wins.
func TestSetRecord_abandoned(t *testing.T) {
	t.Parallel()
	name := newName(t)
	m := newInterceptor(t, server(t).Endpoint())
	j := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
	j.admitted(t)
	hold, held := once(opMulti, stall)
	m.intercept(hold, nil)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- j.Extensions().SetRecord(ctx, []byte("early")) }()
	<-held
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("SetRecord: got %v, want Canceled", err)
	}
	m.intercept(nil, nil)
	later := make(chan error, 1)
	go func() { later <- j.Extensions().SetRecord(t.Context(), []byte("later")) }()
	m.resume()
	if err := <-later; err != nil {
		t.Fatal(err)
	}
	wantRecord(t, name, "later")
}

// The reply to a write is lost, and the entry is removed and the record replaced before the repetition.
func TestSetRecord_replaced(t *testing.T) {
	t.Parallel()
	name := newName(t)
	conn := connect(t, server(t).Endpoint())
	m := newInterceptor(t, server(t).Endpoint())
	j := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
	j.admitted(t)
	swallowed, done := once(opMulti, stall)
	m.intercept(nil, swallowed) // the reply; events behind it wait too
	result := make(chan error, 1)
	go func() { result <- j.Extensions().SetRecord(t.Context(), []byte("value")) }()
	<-done
	wantRecord(t, name, "value")
	if err := conn.Delete(j.Extensions().Key, -1); err != nil {
		t.Fatal(err)
	}
	next := enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Exclusive)
	next.admitted(t)
	setRecord(t, next, "next")
	m.intercept(nil, nil)
	m.reset()
	if err := <-result; !errors.Is(err, store.ErrNotKnown) {
		t.Errorf("SetRecord: got %v, want ErrNotKnown", err)
	}
	wantRecord(t, name, "next")
}

// The entry is removed between the read of the record and the write.
func TestSetRecord_entryRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	name := newName(t)
	conn := connect(t, server(t).Endpoint())
	m := newInterceptor(t, server(t).Endpoint())
	j := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
	j.admitted(t)
	hold, held := once(opMulti, stall)
	m.intercept(hold, nil)
	result := make(chan error, 1)
	go func() { result <- j.Extensions().SetRecord(t.Context(), []byte("late")) }()
	<-held
	if err := conn.Delete(j.Extensions().Key, -1); err != nil {
		t.Fatal(err)
	}
	m.intercept(nil, nil)
	m.resume()
	if err := <-result; !errors.Is(err, store.ErrGone) {
		t.Errorf("SetRecord: got %v, want ErrGone", err)
	}
	wantRecord(t, name, "")
}

// A leader that all others have left answers a sync, and may lack the last record: see
// [TestConfirm_holdsNeedMajority].
func TestRecord_needsMajority(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	st, name := newStore(t, nil, m.addr()), newName(t)
	asked := m.loseMajority(0, 0, func() {})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-asked
		cancel()
	}()
	if _, err := st.Capabilities().Record(ctx, name); !errors.Is(err, context.Canceled) {
		t.Errorf("Record without a majority: got %v, want Canceled", err)
	}
}
