package local

import (
	"context"
	"log/slog"
	"time"

	"github.com/stilelock/stile/internal/localserver"
)

// Ensure returns an error: there is no local server on Windows.
func (d ServerDir) Ensure(context.Context) (string, bool, error) {
	return "", false, localserver.ErrWindows
}

// KeepRunning does nothing: there is no local server on Windows.
func (d ServerDir) KeepRunning(context.Context, func(error)) {}

// Neighbor returns nothing: there is no local server on Windows.
func (d ServerDir) Neighbor() string { return "" }

// Serve returns an error: there is no local server on Windows.
func (d ServerDir) Serve(context.Context, string, time.Duration, int, *slog.Logger) error {
	return localserver.ErrWindows
}
