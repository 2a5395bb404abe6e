package local

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

var errWindows = errors.New("there is no local server on Windows yet: start one with stile serve, and name it with " +
	"--url etcd://127.0.0.1:2379 or STILE_URL")

// Ensure returns an error: there is no local server on Windows.
func (h Home) Ensure(context.Context) (string, bool, error) { return "", false, errWindows }

// Serve returns an error: there is no local server on Windows.
func (h Home) Serve(context.Context, string, time.Duration, int, *slog.Logger) error {
	return errWindows
}
