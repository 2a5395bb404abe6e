package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// BenchmarkEnqueue_besideCanceled measures how much a session does while contexts of its calls end: 48 goroutines
// join and leave lines of their own, and 16 others do the same, with contexts that end after the given time.
func BenchmarkEnqueue_besideCanceled(b *testing.B) {
	for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond} {
		name := "none canceled"
		if after > 0 {
			name = fmt.Sprintf("canceled after %v", after)
		}
		b.Run(name, func(b *testing.B) { benchmarkBesideCanceled(b, after) })
	}
}

func benchmarkBesideCanceled(b *testing.B, after time.Duration) {
	e, err := sharedServer.New()
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		b.Fatal(err)
	}
	defer cli.Close()
	st, err := etcdstore.New(cli, nil)
	if err != nil {
		b.Fatal(err)
	}
	se, err := st.Open(b.Context(), store.SessionOptions{TTL: etcdstore.MaxTTL})
	if err != nil {
		b.Fatal(err)
	}
	defer closeQuickly(se.Close)
	var left, canceled atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	over := make(chan struct{})
	pair := func(ctx context.Context, name string) error {
		ticket, err := se.Enqueue(ctx, store.Request{Name: name, Notify: func(store.Standing) {}})
		if err != nil {
			return err
		}
		return ticket.Withdraw(b.Context())
	}
	for i := range 16 {
		all.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				ctx, cancel := context.WithCancel(b.Context())
				if after > 0 {
					ctx, cancel = context.WithTimeout(b.Context(), after)
				}
				err := pair(ctx, fmt.Sprintf("canceled/%d", i))
				cancel()
				switch {
				case errors.Is(err, context.DeadlineExceeded):
					canceled.Add(1)
				case err != nil:
					b.Errorf("%v", err)
					return
				}
			}
		})
	}
	var others sync.WaitGroup
	b.ResetTimer()
	for i := range 48 {
		others.Go(func() {
			for left.Add(-1) >= 0 {
				if err := pair(b.Context(), fmt.Sprintf("other/%d", i)); err != nil {
					b.Errorf("%v", err)
				}
			}
		})
	}
	others.Wait()
	b.StopTimer()
	close(over)
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
	b.ReportMetric(float64(canceled.Load())/b.Elapsed().Seconds(), "canceled/s")
}
