package node_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Once users are required, a client without a password is refused, also in the process of the server.
func TestClient_withoutPasswordIsRefused(t *testing.T) {
	t.Parallel()
	n := start(t, t.TempDir())
	cli, err := n.Client()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	before := cli.Watch(ctx, "k")
	lease, err := cli.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cli.Put(ctx, "k", "v", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	<-before
	for _, f := range []func() error{
		func() error { _, err := cli.UserAdd(ctx, "root", secret); return err },
		func() error { _, err := cli.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := cli.AuthEnable(ctx); return err },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = cli.Get(ctx, "k")
	if err == nil {
		t.Error("Get is permitted")
	}
	_, err = cli.Txn(ctx).Then(clientv3.OpGet("k")).Commit()
	if err == nil {
		t.Error("Txn is permitted")
	}
	_, err = cli.Delete(ctx, "k")
	if err == nil {
		t.Error("Delete is permitted")
	}
	_, err = cli.Revoke(ctx, lease.ID)
	if err == nil {
		t.Error("Revoke is permitted")
	}
	_, err = cli.UserList(ctx)
	if err == nil {
		t.Error("UserList is permitted")
	}
	w := cli.Watch(ctx, "k", clientv3.WithCreatedNotify())
	if resp := <-w; resp.Err() == nil {
		t.Error("Watch is permitted")
	}
}

// A request of the server's own client ends with its context, also while etcd cannot read: its disk hangs, or a
// write has failed.
func TestClient_requestEndsWithItsContext(t *testing.T) {
	t.Parallel()
	n := start(t, t.TempDir())
	cli, err := n.Client()
	if err != nil {
		t.Fatal(err)
	}
	fail := n.BlockReads()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := cli.Get(ctx, "k")
		ended <- err
	}()
	cancel()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the request succeeded, although reads are blocked")
		}
	case <-time.After(time.Minute):
		t.Error("the request still waits a minute after its context ended")
	}
	fail(context.DeadlineExceeded)
	<-n.Stopped()
	n.Close()
}
