package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/local"
	"github.com/stilelock/stile/storeurl"
)

// urlVar is the environment variable that names the store where no flag does.
const urlVar = "STILE_URL"

// addURL adds the flag that names the store.
func addURL(flags *pflag.FlagSet, url *string) {
	flags.StringVar(url, "url", "", "the `store` (default: the environment's "+urlVar+", or else local:)")
}

// withClient opens the store that a --url names, as given, and calls f with a client on it, for verbs that read lines or
// break entries.
func withClient(ctx context.Context, url string, f func(*stile.Client) error) error {
	ctx, cancel := context.WithCancel(ctx) // afterwards nobody needs the local server, however long the output takes
	defer cancel()
	opened, err := openStore(ctx, storeURL(url))
	if err != nil {
		return err
	}
	defer func() { _ = opened.Close() }() // nothing was written that could be lost
	client, err := stile.New(opened.Store, nil)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }() // it has opened no session
	return f(client)
}

// storeURL returns the URL to use when the flag is as given.
func storeURL(flag string) string { return cmp.Or(flag, os.Getenv(urlVar), local.URL) }

// openStore opens the store that a URL names. If the URL means the local server, that is started if need be, and again if
// it ends before ctx does.
func openStore(ctx context.Context, url string) (*storeurl.Opened, error) {
	switch {
	case url == local.URL:
		home, err := local.DefaultHome()
		if err != nil {
			return nil, err
		}
		opened, err := openLocal(ctx, home)
		if err == nil {
			go home.Keep(ctx)
		}
		return opened, err
	case strings.HasPrefix(url, local.URL):
		return nil, fmt.Errorf("store URL %s: nothing may follow %s", url, local.URL)
	default:
		opened, err := storeurl.Open(ctx, url, nil)
		if errors.Is(err, storeurl.ErrScheme) {
			err = fmt.Errorf("%w; and %s, the server that stile starts by itself", err, local.URL)
		}
		return opened, err
	}
}

func openLocal(ctx context.Context, home local.Home) (*storeurl.Opened, error) {
	url, _, err := home.Ensure(ctx)
	if err != nil {
		return nil, err
	}
	found := home.PID()
	opened, err := storeurl.Open(ctx, url, nil)
	if err == nil {
		return opened, nil
	}
	if ctx.Err() != nil {
		return nil, err
	}
	// The server may have died just after it was found. Then there is a new one now, ours or that of somebody else.
	url, started, err := home.Ensure(ctx)
	if err != nil {
		return nil, err
	}
	if !started && home.PID() == found {
		return nil, home.Silent()
	}
	return storeurl.Open(ctx, url, nil)
}

// runningStore returns the URL of a store as openStore would open it, but starts no server: if none runs where one
// would be started, the error matches local.ErrNone.
func runningStore(ctx context.Context, url string) (string, error) {
	if url != local.URL {
		return url, nil
	}
	home, err := local.DefaultHome()
	if err != nil {
		return "", err
	}
	return home.Find(ctx)
}
