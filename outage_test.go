package stile_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stilelock/stile/store/memstore"
)

// An unreachable store sends no notification, so the watch must read at intervals even without
// changes.
func TestWatch_noticesOutageWithoutChanges(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		outage := errors.New("no route to host")
		var began time.Time
		time.AfterFunc(time.Minute, func() { // by then the watch has yielded all changes
			began = time.Now()
			w.faults(memstore.Fault{Err: outage}, on(memstore.Read))
		})
		for _, err := range w.client("ann").WatchLines(ctx, "") {
			if err == nil {
				continue
			}
			expectError(t, err, outage)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the outage was yielded after %v, want 10s at most", took)
			}
			return
		}
		t.Error("the outage was not yielded")
	})
}
