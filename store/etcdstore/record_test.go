package etcdstore_test

import (
	"errors"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func setRecord(t *testing.T, j *testEntry, value string) {
	t.Helper()
	if err := j.Extensions().SetRecord(t.Context(), []byte(value)); err != nil {
		t.Fatalf("SetRecord(%q): %v", value, err)
	}
}

func wantRecord(t *testing.T, name, want string) {
	t.Helper()
	st := newStore(t, server(t).Client(t), "")
	if got, err := st.Capabilities().Record(t.Context(), name); err != nil || string(got) != want {
		t.Errorf("record: got %q, %v, want %q", got, err, want)
	}
}

// An attempt that was given up is carried out after a later write, also after a removal. It has no effect.
func TestSetRecord_lateAttemptIsVoid(t *testing.T) {
	t.Parallel()
	for _, later := range []string{"later", ""} {
		for _, left := range []bool{false, true} {
			name := newName(t)
			cli, intercept := interceptedClient(t)
			j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
			j.await(t, store.Admitted)
			late := captureClaim(intercept, func() {})
			setRecord(t, j, "early")
			setRecord(t, j, later)
			if left {
				j.withdraw(t)
			}
			late.deliver(t)
			wantRecord(t, name, later)
		}
	}
}

// An attempt that was given up is carried out after another holder has removed the record and its session has
// ended. It has no effect. The other holder is one of two, or an exclusive one that was downgraded.
func TestSetRecord_lateAfterRemovalByOther(t *testing.T) {
	t.Parallel()
	for _, downgraded := range []bool{false, true} {
		name := newName(t)
		cli, intercept := interceptedClient(t)
		se, other := openSession(t, newStore(t, cli, "")), openSession(t, newStore(t, server(t).Client(t), ""))
		var j, remover *testEntry
		if downgraded {
			remover = holdMode(t, other, name, line.Exclusive)
			if err := remover.Extensions().Downgrade(t.Context()); err != nil {
				t.Fatal(err)
			}
			j = holdMode(t, se, name, line.Shared)
		} else {
			remover, j = holdMode(t, other, name, line.Slot(2)), holdMode(t, se, name, line.Slot(2))
		}
		late := captureClaim(intercept, func() {})
		setRecord(t, j, "early")
		setRecord(t, remover, "")
		if err := other.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		late.deliver(t)
		wantRecord(t, name, "")
	}
}

// The reply to a write is lost, and the entry is broken. The repetition finds the record.
func TestSetRecord_replyLost(t *testing.T) {
	t.Parallel()
	for _, replaced := range []bool{false, true} {
		name := newName(t)
		cli, intercept := interceptedClient(t)
		j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
		j.await(t, store.Admitted)
		f := handleTxn(1, func(send func() error) error {
			if err := send(); err != nil {
				t.Error(err)
			}
			direct := server(t).Client(t)
			if _, err := direct.Delete(t.Context(), j.Extensions().Key); err != nil {
				t.Error(err)
			}
			if replaced {
				next := enqueue(t, openSession(t, newStore(t, direct, "")), name)
				next.await(t, store.Admitted)
				setRecord(t, next, "next")
			}
			return errLost
		})
		intercept.Store(&f)
		err := j.Extensions().SetRecord(t.Context(), []byte("value"))
		intercept.Store(nil)
		switch {
		case replaced && !errors.Is(err, store.ErrNotKnown):
			t.Errorf("the record was replaced meanwhile: got %v, want ErrNotKnown", err)
		case !replaced && err != nil:
			t.Errorf("the record is there: got %v", err)
		}
		wantRecord(t, name, map[bool]string{true: "next", false: "value"}[replaced])
	}
}

// The key of a record is that of no entry, also for a store with a shorter prefix, and a removed record
// goes with the session.
func TestSetRecord_key(t *testing.T) {
	t.Parallel()
	prefix, name := newName(t)+"/", "694d98a1c2e45f" // the name looks like the last part of an entry's key
	cli := server(t).Client(t)
	st := newStore(t, cli, prefix)
	se := openSession(t, st)
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	setRecord(t, j, "one")
	setRecord(t, j, "two")
	keys := func() (keys []string) {
		got, err := cli.Get(t.Context(), prefix+".stile/records/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range got.Kvs {
			keys = append(keys, string(kv.Key))
		}
		return keys
	}
	if got := keys(); !slices.Equal(got, []string{prefix + ".stile/records/" + name + "//"}) {
		t.Errorf("keys of records: got %q", got)
	}
	outer, err := store.CollectLines(newStore(t, cli, "").Lines(t.Context(), prefix))
	if err != nil || len(outer) != 1 || outer[0].Name != prefix+name {
		t.Errorf("lines of a store with a shorter prefix: got %+v, %v, want that of the entry only", outer, err)
	}
	setRecord(t, j, "")
	if err := se.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := keys(); len(got) > 0 {
		t.Errorf("keys of records after the removal and the end of the session: got %q, want none", got)
	}
	if _, err := st.Capabilities().Record(t.Context(), ".stile"); !errors.Is(err, store.ErrBadName) {
		t.Errorf("Record of a reserved name: got %v, want ErrBadName", err)
	}
}

// The entry is removed between the read of the record and the write.
func TestSetRecord_entryRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	name := newName(t)
	cli, intercept := interceptedClient(t)
	j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
	j.await(t, store.Admitted)
	f := handleTxn(1, func(send func() error) error {
		if _, err := server(t).Client(t).Delete(t.Context(), j.Extensions().Key); err != nil {
			t.Error(err)
		}
		return send()
	})
	intercept.Store(&f)
	if err := j.Extensions().SetRecord(t.Context(), []byte("late")); !errors.Is(err, store.ErrGone) {
		t.Errorf("SetRecord: got %v, want ErrGone", err)
	}
	wantRecord(t, name, "")
}
