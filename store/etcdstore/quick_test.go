package etcdstore_test

import (
	"context"
	"testing"
	"time"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/etcdstore"
)

func TestQuick(t *testing.T) {
	var clients []*stile.Client
	for range 4 {
		cli, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:23790"}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		defer cli.Close()
		st, err := etcdstore.New(cli, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := stile.New(st, &stile.Options{TTL: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		clients = append(clients, c)
	}
	var n atomic.Int64
	var in atomic.Int32
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			for {
				h, err := c.Mutex("q").Lock(ctx)
				if err != nil {
					t.Log(err)
					return
				}
				k := in.Add(1)
				t.Log(h.Token()>>8, k)
				if k != 1 {
					t.Error("overlap", h.Token()>>8)
				}
				n.Add(1)
				in.Add(-1)
				if err := h.Release(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	t.Log(n.Load())
	l, err := clients[0].Lines(context.Background(), "")
	t.Log(l, err)
}
