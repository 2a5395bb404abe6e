package etcdstore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// shortened is a stream whose renewals are answered with a TTL that is less by a second, as those are that etcd's gRPC proxy
// answers with what it has heard before.
type shortened struct {
	grpc.ClientStream
	now *atomic.Bool
}

func (s shortened) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if resp, ok := m.(*pb.LeaseKeepAliveResponse); ok && s.now.Load() {
		resp.TTL--
	}
	return err
}

// The reply is to an earlier renewal, and it is unknown to which.
func TestConfirm_shorterTTLInReply(t *testing.T) {
	t.Parallel()
	var less atomic.Bool
	shorten := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
		opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return shortened{s, &less}, err
	}
	cli := connectWith(t, clientv3.Config{
		Endpoints:   []string{server(t).Endpoint()},
		DialOptions: []grpc.DialOption{grpc.WithStreamInterceptor(shorten)},
	})
	se := openSession(t, newStore(t, cli, ""))
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	less.Store(true)
	if err := se.Confirm(t.Context()); err == nil || errors.Is(err, store.ErrSessionLost) || !strings.Contains(err.Error(), "proxy") {
		t.Errorf("Confirm: %v, want an error that names a proxy, and a session that is not lost", err)
	}
	less.Store(false)
	if err := se.Confirm(t.Context()); err != nil {
		t.Errorf("Confirm, the proxy being gone: %v", err)
	}
}

// The session is lost at every moment between the request for an entry and its reply. The race detector sees whether the
// two goroutines agree on the entry.
func TestSession_lostDuringEnqueue(t *testing.T) {
	t.Parallel()
	st := newStore(t, connect(t, server(t).Endpoint()), "")
	for range 300 {
		se := openSession(t, st)
		var lost sync.WaitGroup
		lost.Go(func() {
			time.Sleep(rand.N(3 * time.Millisecond))
			etcdstore.Lose(se)
		})
		j, err := tryEnqueue(t.Context(), se, t.Name(), false)
		lost.Wait()
		switch {
		case err == nil:
			if st := <-j.heard; st.State == store.Admitted || st.State == store.Waiting {
				st = <-j.heard
				if !errors.Is(st.Cause, store.ErrSessionLost) {
					t.Errorf("the entry's last standing is %+v, want the loss of the session", st)
				}
			}
		case !errors.Is(err, store.ErrSessionLost):
			t.Errorf("Enqueue: got %v, want ErrSessionLost", err)
		}
	}
}
