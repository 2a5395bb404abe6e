//go:build !lean

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stilelock/stile/cmd/stile/internal/local"
	"github.com/stilelock/stile/cmd/stile/internal/metrics"
	"github.com/stilelock/stile/cmd/stile/internal/node"
	"github.com/stilelock/stile/cmd/stile/internal/page"
	"github.com/stilelock/stile/internal/localserver"
)

func newServe(stdio Stdio) *cobra.Command {
	var o serveOptions
	var background string
	var ready int
	idle := duration(10 * time.Minute)
	cmd := &cobra.Command{
		Use:        "serve [flags]",
		SuggestFor: serveNames(),
		Short:      serveShort,
		Long: `Run a lock server in the foreground: an etcd, alone or as a member of a cluster; or, with --url,
only the web page of an existing store.

It is a complete etcd: besides stile, every etcd client can lock on it, including
etcdctl lock and the JSON gateway (/v3/lock/lock). SIGTERM and SIGINT stop it. Its data stays,
and leases continue after the next start. Its minimum TTL is one second, two in a cluster.

Without TLS it listens only on the loopback interface or on a unix socket. For clients on
other machines it requires TLS, and either client certificates or users, because TLS alone
admits everybody.

With --page the locks can be seen in a browser, and read as JSON. On the loopback interface every
user of this machine can read them, unless --page-tokens is given.`,
		Example: `  # for this machine
  stile serve
  stile serve --socket /run/stile/stile.sock
  STILE_URL=etcd://127.0.0.1:2379 stile run demo -- echo hello

  # for others: TLS, and users
  stile serve --listen 0.0.0.0:2379 --tls-cert server.pem --tls-key server-key.pem \
    --root-password-file root-password

  # a member of a cluster of three; the same on b and c, with their names
  stile serve --name a --peers a=https://a.example:2380,b=https://b.example:2380,c=https://c.example:2380 \
    --peer-listen 0.0.0.0:2380 --tls-peer-ca ca.pem \
    --listen 0.0.0.0:2379 --tls-cert a.pem --tls-key a-key.pem \
    --root-password-file root-password --data /var/lib/stile

  # with a web page; and only the page, of an existing store
  stile serve --page 127.0.0.1:7845
  stile serve --url redis://db1:6379

  # everything in a file: "listen: 0.0.0.0:2379" and so on
  stile serve --config-file /etc/stile/stile.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			urlInFile := !cmd.Flags().Changed("url")
			if o.configFile != "" {
				if err := readConfigFile(cmd.Flags(), o.configFile); err != nil {
					return err
				}
			}
			ctx, stop := untilStopSignal(cmd.Context())
			defer stop()
			log := slog.New(slog.NewTextHandler(stdio.Err, nil))
			o.warnOfOpenSecrets(urlInFile, log)
			if background != "" {
				return local.ServerDir{Dir: localserver.Dir(background)}.Serve(ctx, o.socket, time.Duration(idle), ready, log)
			}
			p, err := listenPage(cmd.Flags(), o, log)
			if err != nil {
				return err
			}
			defer p.Close()
			if o.url != "" {
				return stdio.servePage(ctx, o, p, log)
			}
			return serve(ctx, o, p, log)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	o.add(flags)
	flags.StringVar(&background, "background", "", "be the server behind local:, in this `directory`")
	flags.IntVar(&ready, "ready-fd", -1, "file to write a byte to when ready, with --background")
	flags.Var(&idle, "idle", "end after being idle that long, with --background")
	for _, name := range []string{"background", "ready-fd", "idle"} {
		flags.Lookup(name).Hidden = true
	}
	return cmd
}

// serveOptions are the values of the flags.
type serveOptions struct {
	listen, socket, data, health string
	tls                          node.TLS
	insecure                     bool
	rootPasswordFile             string
	name, peerListen             string
	peers                        peers
	url                          string
	page, pageSocket, pageTokens string
	allowBreak                   bool
	classes                      metrics.Classes
	configFile                   string
}

// defaultListen is the address used if neither --listen nor --socket is given.
const defaultListen = "127.0.0.1:2379"

func (o *serveOptions) add(flags *pflag.FlagSet) {
	flags.StringVar(&o.listen, "listen", "", "`host:port` for clients; port 0 picks a free one "+
		"(default: "+defaultListen+", but nothing with --socket)")
	flags.StringVar(&o.socket, "socket", "", "unix socket for clients, at this `path`")
	flags.StringVar(&o.data, "data", "", "data `directory` (default: server, in stile's state directory)")
	flags.StringVar(&o.health, "health", "", "`host:port` for /health, /livez, /readyz and /metrics in plain HTTP")
	flags.StringVar(&o.tls.Cert, "tls-cert", "", "PEM `file` with the server's certificate")
	flags.StringVar(&o.tls.Key, "tls-key", "", "PEM `file` with its private key")
	flags.StringVar(&o.tls.ClientCA, "tls-client-ca", "",
		"PEM `file` with the authorities for clients' certificates, which are required then")
	flags.BoolVar(&o.insecure, "insecure", false, "listen beyond loopback without TLS, or without client certificates and users")
	flags.StringVar(&o.rootPasswordFile, "root-password-file", "",
		"require users; the password of the user root is in this `file`")
	flags.StringVar(&o.name, "name", "", "`name` of this member of a cluster")
	flags.Var(&o.peers, "peers", "all members of the cluster, with the `URLs` for each other: NAME=URL,NAME=URL,NAME=URL")
	flags.StringVar(&o.peerListen, "peer-listen", "", "`host:port` for the other members (default: that in this member's URL)")
	flags.StringVar(&o.tls.PeerCA, "tls-peer-ca", "",
		"PEM `file` with the authorities for members' certificates (default: that of --tls-client-ca)")
	flags.StringVar(&o.page, "page", "", "`host:port` for the web page, its API and metrics "+
		"(default: none; with --url "+page.DefaultAddress+")")
	flags.StringVar(&o.pageSocket, "page-socket", "", "unix socket for the same, at this `path`")
	flags.StringVar(&o.pageTokens, "page-tokens", "", "`file` with a line \"read TOKEN\" or \"break TOKEN\" for each token that the page accepts")
	flags.BoolVar(&o.allowBreak, "allow-break", false, "let tokens of the role break break locks through the page")
	flags.Var(&o.classes, "class", "classes of locks in the metrics: `PATTERN=CLASS`, or several with commas (default: the name up to its first slash)")
	flags.StringVar(&o.url, "url", "", "serve only the page, for the existing store with this `URL`")
	flags.StringVar(&o.configFile, "config-file", "", "YAML `file` with the values of flags; the command line takes precedence")
}

// config returns the server's configuration.
func (o *serveOptions) config(log *slog.Logger) (node.Config, error) {
	cfg := node.Config{
		Dir: o.data, Listen: o.listen, Health: o.health, TLS: o.tls, Insecure: o.insecure,
		Cluster: node.Cluster{Name: o.name, Peers: o.peers, Listen: o.peerListen},
		Logger:  log,
	}
	if o.listen == "" && o.socket == "" {
		cfg.Listen = defaultListen
	}
	var err error
	if o.socket != "" {
		if cfg.Socket, err = freeSocket("--socket", o.socket); err != nil {
			return cfg, err
		}
	}
	if o.rootPasswordFile != "" {
		if cfg.RootPassword, err = readPassword(o.rootPasswordFile); err != nil {
			return cfg, err
		}
	}
	if o.data == "" {
		state, err := localserver.StateDir()
		if err != nil {
			return cfg, err
		}
		cfg.Dir = filepath.Join(state, "server")
		if err := localserver.MakeDir(cfg.Dir); err != nil {
			return cfg, fmt.Errorf("%w; or name a data directory with --data", err)
		}
	}
	cfg.Dir, err = filepath.Abs(cfg.Dir)
	return cfg, err
}

func serve(ctx context.Context, o serveOptions, p *servedPage, log *slog.Logger) error {
	cfg, err := o.config(log)
	if err != nil {
		return err
	}
	n, err := node.Start(ctx, cfg)
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped while starting
		}
		return err
	}
	defer n.Close()
	if err := p.showNode(n, o); err != nil {
		return err
	}
	defer p.Close() // before the node
	log.Info("ready", append(whereToFind(n), p.whereToFind()...)...)
	notify(daemon.SdNotifyReady, log)
	select {
	case <-ctx.Done():
		log.Info("stopping", "reason", context.Cause(ctx))
		notify(daemon.SdNotifyStopping, log)
		return nil
	case <-n.Stopped():
		return fmt.Errorf("the server has failed: %w; its data directory is %s", n.Err(), n.Dir())
	}
}

// whereToFind returns the attributes of the ready message.
func whereToFind(n *node.Node) []any {
	found := []any{"url", n.URL()}
	if socket := n.SocketURL(); socket != "" && socket != n.URL() {
		found = append(found, "socket_url", socket)
	}
	if health := n.HealthURL(); health != "" {
		found = append(found, "health", health)
	}
	return append(found, "data", n.Dir())
}

// notify sends a state to systemd if it has started this process and wants to know.
func notify(state string, log *slog.Logger) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("cannot notify systemd", "state", state, "err", err)
	}
}

// freeSocket returns the absolute path of a unix socket and checks that there is no other file or
// running server.
func freeSocket(flag, path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return path, nil
	case err != nil:
		return "", fmt.Errorf("%s: %w", flag, err)
	case info.Mode().Type() != os.ModeSocket:
		return "", fmt.Errorf("%s: %s exists and is not a socket; choose another path", flag, path)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		conn.Close()
	}
	if err == nil || errors.Is(err, syscall.EAGAIN) { // EAGAIN: the queue of connections is full, because the server hangs
		return "", fmt.Errorf("%s: another server listens at %s; stop it, or choose another path", flag, path)
	}
	return path, nil
}

// warnOfOpenSecrets warns of files with secrets that other users can read. It is no error: in a container
// they often can, and there are no other users.
func (o *serveOptions) warnOfOpenSecrets(urlInFile bool, log *slog.Logger) {
	secrets := []struct{ flag, file string }{{"--root-password-file", o.rootPasswordFile}, {"--tls-key", o.tls.Key}}
	if urlInFile && hasPassword(o.url) {
		secrets = append(secrets, struct{ flag, file string }{"--config-file", o.configFile})
	}
	for _, s := range secrets {
		if isOpenToOthers(s.file) {
			log.Warn("a file with a secret is accessible to other users; chmod o= it", "flag", s.flag, "file", s.file)
		}
	}
}

// readPassword reads a password from a file.
func readPassword(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--root-password-file: %w", err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	if password == "" {
		return "", fmt.Errorf("--root-password-file: %s is empty; the password is its first and only line", file)
	}
	if strings.Contains(password, "\n") {
		return "", fmt.Errorf("--root-password-file: %s has more than one line; the password is its only one", file)
	}
	return password, nil
}

// peers is the value of a flag: the members' URLs by their names.
type peers map[string]string

// Set implements pflag.Value.
func (p *peers) Set(s string) error {
	members := peers{}
	for member := range strings.SplitSeq(s, ",") {
		name, url, ok := strings.Cut(strings.TrimSpace(member), "=")
		if !ok || name == "" || url == "" {
			return fmt.Errorf("want NAME=URL,NAME=URL,NAME=URL, as in a=http://127.0.0.1:2380, not %q", member)
		}
		if members[name] != "" {
			return fmt.Errorf("there are two members called %q", name)
		}
		members[name] = url
	}
	*p = members
	return nil
}

// String implements pflag.Value.
func (p *peers) String() string {
	members := make([]string, 0, len(*p))
	for _, name := range slices.Sorted(maps.Keys(*p)) {
		members = append(members, name+"="+(*p)[name])
	}
	return strings.Join(members, ",")
}

// Type implements pflag.Value.
func (p *peers) Type() string { return "members" }
