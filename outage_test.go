package stile_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stilelock/stile/store/memstore"
)

// A store that cannot be reached cannot say so: whoever watches has to ask, every now and then.
func TestWatch_noticesOutageWithoutChanges(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		outage := errors.New("no route to host")
		var began time.Time
		time.AfterFunc(time.Minute, func() { // by then all has been heard that there is to be heard
			began = time.Now()
			w.faults(memstore.Fault{Err: outage}, on(memstore.Read))
		})
		for _, err := range w.client("ann").WatchLines(ctx, "") {
			if err == nil {
				continue
			}
			expectError(t, err, outage)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the outage was noticed after %v", took)
			}
			return
		}
		t.Error("the outage was not noticed")
	})
}
