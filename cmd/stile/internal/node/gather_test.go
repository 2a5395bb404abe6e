package node_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/stilelock/stile/cmd/stile/internal/node"
)

// script is a watch server that sends what send says.
type script struct {
	pb.UnimplementedWatchServer
	send func(pb.Watch_WatchServer) error
}

func (s script) Watch(to pb.Watch_WatchServer) error { return s.send(to) }

// sentStream records what is sent, and when.
type sentStream struct {
	pb.Watch_WatchServer
	ctx   context.Context
	began time.Time
	sent  []string
}

func (s *sentStream) Context() context.Context { return s.ctx }

func (s *sentStream) Send(r *pb.WatchResponse) error {
	s.sent = append(s.sent, fmt.Sprintf("%d events at %v", len(r.Events), time.Since(s.began)))
	return s.ctx.Err()
}

func events(n int) *pb.WatchResponse { return &pb.WatchResponse{Events: make([]*mvccpb.Event, n)} }

// The first event of a burst waits for others, so that they arrive together. What is no event does not wait.
func TestGathering_letsEventsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		to := &sentStream{ctx: t.Context(), began: time.Now()}
		err := node.Gathering(script{send: func(stream pb.Watch_WatchServer) error {
			_ = stream.Send(&pb.WatchResponse{Created: true})
			for _, n := range []int{1, 2, 3} { // etcd has them after the first has waited
				_ = stream.Send(events(n))
			}
			time.Sleep(100 * time.Millisecond)
			_ = stream.Send(events(4))
			return stream.Send(&pb.WatchResponse{Canceled: true})
		}}).Watch(to)
		if err != nil {
			t.Fatal(err)
		}
		got, want := fmt.Sprint(to.sent), "[0 events at 0s 1 events at 20ms 2 events at 20ms 3 events at 20ms 4 events at 140ms 0 events at 140ms]"
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// A stream that ends does not wait.
func TestGathering_endsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		to := &sentStream{ctx: ctx, began: time.Now()}
		err := node.Gathering(script{send: func(stream pb.Watch_WatchServer) error { return stream.Send(events(1)) }}).Watch(to)
		if took := time.Since(to.began); err == nil || took > 0 {
			t.Errorf("got the error %v after %v, want one at once", err, took)
		}
	})
}
