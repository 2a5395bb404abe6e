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
func (d ServerDir) Ensure(context.Context) (string, bool, error) { return "", false, errWindows }

// KeepRunning does nothing: there is no local server on Windows.
func (d ServerDir) KeepRunning(context.Context, func(error)) {}

// Neighbor returns nothing: there is no local server on Windows.
func (d ServerDir) Neighbor() string { return "" }

// Find returns an error that matches [ErrNone].
func (d ServerDir) Find(context.Context) (string, error) { return "", ErrNone }

// PID returns "unknown": there is no local server on Windows.
func (d ServerDir) PID() string { return "unknown" }

// UnresponsiveErr returns an error: there is no local server on Windows.
func (d ServerDir) UnresponsiveErr() error { return errWindows }

// Serve returns an error: there is no local server on Windows.
func (d ServerDir) Serve(context.Context, string, time.Duration, int, *slog.Logger) error {
	return errWindows
}
