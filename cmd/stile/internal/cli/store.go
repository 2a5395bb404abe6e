package cli

import (
	"context"
	"slices"

	"github.com/spf13/pflag"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/local"
	"github.com/stilelock/stile/storeurl"
)

// urlVar is the environment variable that names the store if no flag does.
const urlVar = "STILE_URL"

// addURL adds the flag that names the store.
func addURL(flags *pflag.FlagSet, url *string) {
	flags.StringVar(url, "url", "",
		"`URL` of the store (default: "+urlVar+", /etc/stile/config, a stile serve on this machine, or local:, this user's own server)")
}

// withClient opens the chosen store and calls f with a client on it. It is for verbs that read
// lines or break entries.
func (s Stdio) withClient(ctx context.Context, url string, f func(*stile.Client) error) error {
	chosen, err := chooseStore(url)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the use of the local server, however long the output takes
	defer cancel()
	opened, err := s.open(ctx, chosen)
	if err != nil {
		return err
	}
	return withClientOn(ctx, opened, f)
}

// withClientOn calls f with a client on a store, and closes both.
func withClientOn(ctx context.Context, opened *storeurl.Conn, f func(*stile.Client) error) error {
	defer func() { _ = opened.Close() }() // nothing was written that could be lost
	client, err := stile.New(opened.Store, nil)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }() // it has opened no session
	return f(client)
}

// open opens the chosen store and prints its warnings if a person reads them.
func (s Stdio) open(ctx context.Context, c choice) (*storeurl.Conn, error) {
	opened, err := s.openStore(ctx, c.url)
	if err != nil {
		return nil, c.explain(err)
	}
	for _, text := range slices.Concat(opened.Warnings, c.warnings()) {
		s.sayAtTerminal(text)
	}
	s.noticeOnce(c)
	return opened, nil
}

// openStore opens the store with the given URL. If the URL means the local server, the server is
// started if necessary, and again if it ends before ctx does. If it cannot be restarted, the reason
// is printed.
func (s Stdio) openStore(ctx context.Context, url string) (*storeurl.Conn, error) {
	if url != local.URL {
		return storeurl.Open(ctx, url, nil)
	}
	dir, err := local.DefaultServerDir()
	if err != nil {
		return nil, err
	}
	opened, err := openLocal(ctx, dir)
	if err == nil {
		go dir.KeepRunning(ctx, s.sayError)
	}
	return opened, err
}

func openLocal(ctx context.Context, dir local.ServerDir) (*storeurl.Conn, error) {
	url, _, err := dir.Ensure(ctx)
	if err != nil {
		return nil, err
	}
	found := dir.PID()
	opened, err := storeurl.Open(ctx, url, nil)
	if err == nil {
		return opened, nil
	}
	if ctx.Err() != nil {
		return nil, err
	}
	// The server may have ended just after it was found. Ensure then finds or starts another one.
	url, started, err := dir.Ensure(ctx)
	if err != nil {
		return nil, err
	}
	if !started && dir.PID() == found {
		return nil, local.OrOtherStore(dir.UnresponsiveErr())
	}
	return storeurl.Open(ctx, url, nil)
}
