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

// shortTTLStream is a stream on which the replies to renewals contain a TTL that is shorter by a
// second, like the replies that etcd's gRPC proxy sends from its cache.
type shortTTLStream struct {
	grpc.ClientStream
	enabled *atomic.Bool
}

func (s shortTTLStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if resp, ok := m.(*pb.LeaseKeepAliveResponse); ok && s.enabled.Load() {
		resp.TTL--
	}
	return err
}

// A TTL that is shorter than the granted one shows that the reply is to an earlier renewal, and it
// is unknown to which.
// Bug: CURATOR-696
func TestConfirm_shorterTTLInReply(t *testing.T) {
	t.Parallel()
	var shorten atomic.Bool
	intercept := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
		opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return shortTTLStream{s, &shorten}, err
	}
	cli := connectWith(t, clientv3.Config{
		Endpoints:   []string{server(t).Endpoint()},
		DialOptions: []grpc.DialOption{grpc.WithStreamInterceptor(intercept)},
	})
	se := openSession(t, newStore(t, cli, ""))
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	shorten.Store(true)
	if err := se.Confirm(t.Context()); err == nil || errors.Is(err, store.ErrSessionLost) || !strings.Contains(err.Error(), "proxy") {
		t.Errorf("Confirm: got %v, want an error that mentions a proxy and is not ErrSessionLost", err)
	}
	shorten.Store(false)
	if err := se.Confirm(t.Context()); err != nil {
		t.Errorf("Confirm without a proxy: %v", err)
	}
}

// The session is lost at any moment between the request for an entry and its reply. The race
// detector checks that the two goroutines synchronize their access to the entry.
func TestSession_lostDuringEnqueue(t *testing.T) {
	t.Parallel()
	st := newStore(t, connect(t, server(t).Endpoint()), "")
	for range 300 {
		se := openSession(t, st)
		var lost sync.WaitGroup
		lost.Go(func() {
			time.Sleep(rand.N(3 * time.Millisecond))
			etcdstore.LoseSession(se)
		})
		j, err := tryEnqueue(t.Context(), se, t.Name(), false)
		lost.Wait()
		switch {
		case err == nil:
			if st := <-j.standings; st.State == store.Admitted || st.State == store.Waiting {
				st = <-j.standings
				if !errors.Is(st.Cause, store.ErrSessionLost) {
					t.Errorf("got last standing %+v, want cause ErrSessionLost", st)
				}
			}
		case !errors.Is(err, store.ErrSessionLost):
			t.Errorf("Enqueue: got %v, want ErrSessionLost", err)
		}
	}
}
