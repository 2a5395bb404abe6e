package node

import (
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

const (
	// gatherInterval is how long an event waits for others.
	gatherInterval = 20 * time.Millisecond
	// burstGap is the longest time between two events that are passed on together.
	burstGap = 5 * time.Millisecond
)

// gathering passes the events of watches on a little later, several at a time. Each response wakes seven goroutines on
// its way to the reader, one after another. That costs as much as what the reader does with it, and clients that hand
// a lock over would wait for a processor meanwhile.
type gathering struct{ pb.WatchServer }

// Watch implements [pb.WatchServer].
func (g gathering) Watch(stream pb.Watch_WatchServer) error {
	return g.WatchServer.Watch(&gatheringStream{Watch_WatchServer: stream})
}

// gatheringStream is a stream of watches. etcd calls Send from one goroutine, and keeps what comes meanwhile.
type gatheringStream struct {
	pb.Watch_WatchServer
	sent time.Time // when events were last sent
}

// Send sends a response. If it has events, and none were sent just before, it lets others come first.
func (s *gatheringStream) Send(r *pb.WatchResponse) error {
	if len(r.Events) == 0 {
		return s.Watch_WatchServer.Send(r)
	}
	if time.Since(s.sent) > burstGap {
		select {
		case <-time.After(gatherInterval):
		case <-s.Context().Done():
		}
	}
	err := s.Watch_WatchServer.Send(r)
	s.sent = time.Now()
	return err
}
