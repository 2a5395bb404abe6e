package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/cmd/stile/internal/local"
	"github.com/stilelock/stile/cmd/stile/internal/node"
)

func newServe(stdio Stdio) *cobra.Command {
	var listen, data, background, socket string
	var ready int
	idle := duration(10 * time.Minute)
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Run a lock server: an etcd of one node, for clients of this machine",
		Long: `Run a lock server in the foreground: an etcd of one node, for clients of this machine.

It is a whole etcd: besides stile, every etcd client can lock on it, etcdctl lock and the
JSON gateway (/v3/lock/lock) too. SIGTERM and SIGINT stop it; its data stays, and a lease
goes on after the next start. Its shortest TTL is one second.

Without TLS and passwords it listens on the loopback interface only.`,
		Example: `  stile serve
  stile serve --listen 127.0.0.1:4001 --data /var/lib/stile
  STILE_URL=etcd://127.0.0.1:2379 stile run demo -- echo hello`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilToldToEnd(cmd.Context())
			defer stop()
			log := slog.New(slog.NewTextHandler(stdio.Err, nil))
			if background != "" {
				return local.Home(background).Serve(ctx, socket, time.Duration(idle), ready, log)
			}
			return serve(ctx, listen, data, log)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", "127.0.0.1:2379", "`host:port` to listen on; port 0 picks a free one")
	flags.StringVar(&data, "data", "", "data `directory` (default: server, in stile's state directory)")
	flags.StringVar(&background, "background", "", "be the server behind local:, whose home is this `directory`")
	flags.StringVar(&socket, "socket", "", "unix socket to listen on, with --background")
	flags.IntVar(&ready, "ready-fd", -1, "file to write a byte to when ready, with --background")
	flags.Var(&idle, "idle", "end after being idle that long, with --background")
	for _, name := range []string{"background", "socket", "ready-fd", "idle"} {
		flags.Lookup(name).Hidden = true
	}
	return cmd
}

func serve(ctx context.Context, listen, data string, log *slog.Logger) error {
	if data == "" {
		state, err := local.StateDir()
		if err != nil {
			return err
		}
		data = filepath.Join(state, "server")
	}
	n, err := node.Start(ctx, node.Config{Dir: data, Listen: listen, Logger: log})
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to end while it started
		}
		return err
	}
	defer n.Close()
	log.Info("ready", "url", n.URL(), "data", n.Dir())
	select {
	case <-ctx.Done():
		log.Info("stopping", "reason", context.Cause(ctx))
		return nil
	case <-n.Stopped():
		return errors.New("the server has failed")
	}
}

// untilToldToEnd returns a context that ends with SIGINT or SIGTERM, unless that was ignored when we were started: a
// shell script does so with SIGINT for what it runs in the background.
func untilToldToEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	signals := slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM}, signal.Ignored)
	return signal.NotifyContext(ctx, signals...)
}
