package storeurl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/stilelock/stile/internal/localserver"
)

// schemeLocal is the scheme of this user's local server.
const schemeLocal = "local"

// openLocal opens this user's local server if it runs. Its errors name the server, not the URL.
func openLocal(ctx context.Context, t target, logger *slog.Logger) (*Conn, error) {
	dir, err := localserver.DefaultDir()
	if err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	socket, err := dir.Find(within)
	if err == nil {
		t.scheme, t.endpoints, t.isLocal = schemeUnix, []string{unixPrefix + socket}, true
		var opened *Conn
		if opened, err = openEtcd(within, t, logger); err == nil {
			return opened, nil
		}
		if dir.HasEnded() { // just after it was found
			err = localserver.ErrNone
		} else {
			err = dir.UnresponsiveErr()
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("gave up waiting for the local server: %w", ctx.Err())
	case errors.Is(err, localserver.ErrNone):
		return nil, fmt.Errorf("%w in %s; the stile command starts it: run STILE_URL=local: stile ls", err, dir)
	}
	return nil, err
}
