package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/stilelock/stile/cmd/stile/internal/local"
	"github.com/stilelock/stile/storeurl"
)

// urlVar is the environment variable that names the store where no flag does.
const urlVar = "STILE_URL"

// storeURL returns the URL to use when the flag is as given.
func storeURL(flag string) string { return cmp.Or(flag, os.Getenv(urlVar), local.URL) }

// openStore opens the store that a URL names. If the URL means the local server, that is started if need be.
func openStore(ctx context.Context, url string) (*storeurl.Opened, error) {
	switch {
	case url == local.URL:
		return openLocal(ctx)
	case strings.HasPrefix(url, local.URL):
		return nil, fmt.Errorf("store URL %s: nothing may follow %s", url, local.URL)
	default:
		return storeurl.Open(ctx, url, nil)
	}
}

func openLocal(ctx context.Context) (*storeurl.Opened, error) {
	home, err := local.DefaultHome()
	if err != nil {
		return nil, err
	}
	url, _, err := home.Ensure(ctx)
	if err != nil {
		return nil, err
	}
	opened, err := storeurl.Open(ctx, url, nil)
	if err == nil {
		return opened, nil
	}
	// The server may have died just after it was found. Then there is a new one now.
	url, started, again := home.Ensure(ctx)
	if again != nil || !started {
		return nil, err
	}
	return storeurl.Open(ctx, url, nil)
}
