//go:build !lean

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/pflag"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/local"
	"github.com/stilelock/stile/cmd/stile/internal/metrics"
	"github.com/stilelock/stile/cmd/stile/internal/node"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/cmd/stile/internal/page"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// servedPage is the page of a stile serve; without one, its methods do nothing.
type servedPage struct {
	page    *page.Page // nil if there is none
	classes metrics.Classes
	node    *node.Node // nil for an existing store, and until the server is ready
	close   []func()   // in this order
}

// flagsOfPage are the flags that have a meaning with --url.
var flagsOfPage = []string{
	"url", "page", "page-socket", "page-tokens", "allow-break", "class", "tls-cert", "tls-key", "tls-client-ca", "config-file",
}

// listenPage listens for the page, so that a mistake in its flags is found before the store is opened.
func listenPage(flags *pflag.FlagSet, o serveOptions, log *slog.Logger) (*servedPage, error) {
	if o.url != "" {
		var err error
		flags.VisitAll(func(f *pflag.Flag) { // with Changed, those in a file would be missing
			if f.Value.String() != f.DefValue && !slices.Contains(flagsOfPage, f.Name) {
				err = fmt.Errorf("--%s is for a server of its own; with --url, stile serve shows an existing store", f.Name)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	p := &servedPage{classes: o.classes}
	cfg, err := o.pageConfig(log)
	if err != nil {
		return nil, err
	}
	if cfg.Address == "" && cfg.Socket == "" {
		if o.pageTokens != "" || o.allowBreak || o.classes.String() != "" {
			return nil, errors.New("--page-tokens, --allow-break and --class are for the page: name its address with --page or --page-socket")
		}
		return p, nil
	}
	cfg.Restricted = func() bool { return p.node != nil && p.node.UsersRequired() }
	if o.url != "" && hasCredentials(o.url) || o.rootPasswordFile != "" || cfg.Address != "" && o.hasOnlySocket() {
		cfg.Restricted = func() bool { return true }
	}
	p.page, err = page.Listen(cfg)
	return p, err
}

func (o *serveOptions) pageConfig(log *slog.Logger) (page.Config, error) {
	cfg := page.Config{
		Address: o.page, AllowBreak: o.allowBreak, Store: "the etcd of this stile serve",
		Version: ourVersions().Stile, Logger: log,
	}
	if o.url != "" {
		cfg.Store = choice{url: o.url}.shown()
		if o.page == "" && o.pageSocket == "" {
			cfg.Address = page.DefaultAddress
		}
	}
	var err error
	if o.pageSocket != "" {
		if cfg.Socket, err = freeSocket("--page-socket", o.pageSocket); err != nil {
			return cfg, err
		}
	}
	if o.pageTokens != "" {
		if cfg.Tokens, err = page.ReadTokens(o.pageTokens); err != nil {
			return cfg, err
		}
	}
	if cfg.Address != "" {
		cfg.TLS, err = o.tls.Server()
	}
	return cfg, err
}

// hasOnlySocket reports whether clients reach the store by a unix socket only, so that perhaps not all users of
// the machine can.
func (o *serveOptions) hasOnlySocket() bool {
	if o.url == "" {
		return o.socket != "" && o.listen == ""
	}
	scheme, _, _ := strings.Cut(o.url, ":")
	return o.url == local.URL || strings.HasSuffix(scheme, "+unix")
}

// hasPassword reports whether a URL has a password.
func hasPassword(storeURL string) bool {
	return strings.Contains(choice{url: storeURL}.shown(), ":***@")
}

// hasCredentials reports whether a URL has a password, or names one or a key, so that not all users of the
// machine may read the store.
func hasCredentials(storeURL string) bool {
	if hasPassword(storeURL) {
		return true
	}
	_, query, _ := strings.Cut(storeURL, "?")
	parameters, err := url.ParseQuery(query)
	return err != nil || parameters.Has("password_file") || parameters.Has("password_env") || parameters.Has("key")
}

// showNode serves the page with the store of a server in this process.
func (p *servedPage) showNode(n *node.Node, o serveOptions) error {
	if p.page == nil {
		return nil
	}
	if n.UsersRequired() && o.rootPasswordFile == "" {
		return errors.New("the page cannot log in: the data of this server requires users; name the password of root with --root-password-file")
	}
	etcd, err := n.Client()
	if err != nil {
		return fmt.Errorf("the page: %w", err)
	}
	st, err := etcdstore.New(etcd, nil)
	if err != nil {
		return err
	}
	p.node = n
	p.close = append(p.close, func() { _ = etcd.Close() })
	return p.show(st)
}

// show serves the page with a store.
func (p *servedPage) show(st store.Store) error {
	client, err := stile.New(st, nil)
	if err != nil {
		return err
	}
	p.close = slices.Insert(p.close, 0, func() { _ = client.Close(context.Background()) }) // it has opened no session
	observer := observe.New(client)
	collector := metrics.New(observer, p.classes)
	p.page.Serve(page.Source{Client: client, Observer: observer, Metrics: metrics.Handler(collector)})
	return nil
}

// whereToFind returns attributes of the ready message.
func (p *servedPage) whereToFind() (found []any) {
	if p.page == nil {
		return nil
	}
	if url := p.page.URL(); url != "" {
		found = append(found, "page", url)
	}
	if socket := p.page.Socket(); socket != "" {
		found = append(found, "page_socket", socket)
	}
	return found
}

// Close stops the page. Closing again does nothing.
func (p *servedPage) Close() {
	if p.page == nil {
		return
	}
	p.page.Close()
	for _, f := range p.close {
		f()
	}
	p.page, p.close = nil, nil
}

// servePage serves the page of an existing store until ctx ends.
func (s Stdio) servePage(ctx context.Context, o serveOptions, p *servedPage, log *slog.Logger) error {
	opened, err := s.openStore(ctx, o.url)
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the user has stopped the start
		}
		return err
	}
	for _, text := range opened.Warnings {
		log.Warn("store", "warning", text)
	}
	if o.url == "mem:" {
		log.Warn("store", "warning", "mem: is private to this process: the page shows no lock of another one")
	}
	p.close = append(p.close, func() { _ = opened.Close() })
	if err := p.show(opened.Store); err != nil {
		return err
	}
	log.Info("ready", append(p.whereToFind(), "store", choice{url: o.url}.shown())...)
	notify(daemon.SdNotifyReady, log)
	<-ctx.Done()
	log.Info("stopping", "reason", context.Cause(ctx))
	notify(daemon.SdNotifyStopping, log)
	return nil
}
