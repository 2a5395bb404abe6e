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

// Keep does nothing: there is no local server on Windows.
func (h Home) Keep(context.Context, func(error)) {}

// Neighbor returns nothing: there is no local server on Windows.
func (h Home) Neighbor() string { return "" }

// Find returns an error that matches [ErrNone].
func (h Home) Find(context.Context) (string, error) { return "", ErrNone }

// PID returns "unknown": there is no local server on Windows.
func (h Home) PID() string { return "unknown" }

// Silent returns an error: there is no local server on Windows.
func (h Home) Silent() error { return errWindows }

// Serve returns an error: there is no local server on Windows.
func (h Home) Serve(context.Context, string, time.Duration, int, *slog.Logger) error {
	return errWindows
}
