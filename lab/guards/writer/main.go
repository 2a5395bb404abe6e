//go:build linux

// Command writer is a process that changes a journal under a lock, as the lines on its standard input tell
// it to. It answers each line with one line on its standard output.
//
//	writer KIND NAME TTL SERVERS    uses the journal NAME; SERVERS are a guards.Servers in JSON
//	writer serve DIR                serves the journals of httpguard, and prints its address
//	writer s3                       serves those of s3guard
//
// The lines are:
//
//	lock       waits for the lock, and answers "locked TOKEN"
//	check      looks whether the hold is valid, and answers "valid" or "invalid"
//	write      changes the journal, whatever became of the hold: "written", "stale NEWEST" or "error …"
//	release    gives the lock up, and answers "released"
//
// It prints "ready" once it has connected to all servers. It ends when its standard input is closed.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/lab/guards"
	"github.com/stilelock/stile/storeurl"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "writer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		return serve(ctx, func(ctx context.Context, l net.Listener) error { return guards.Serve(ctx, l, args[1]) })
	case len(args) == 1 && args[0] == "s3":
		return serve(ctx, guards.ServeS3)
	case len(args) == 4:
		return write(ctx, args[0], args[1], args[2], args[3])
	}
	return errors.New("usage: writer KIND NAME TTL SERVERS, writer serve DIR, or writer s3")
}

func serve(ctx context.Context, serve func(context.Context, net.Listener) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		bufio.NewScanner(os.Stdin).Scan() // until it is closed
		cancel()
	}()
	fmt.Println(l.Addr())
	return serve(ctx, l)
}

func write(ctx context.Context, kindName, name, lifetime, servers string) error {
	var s guards.Servers
	if err := json.Unmarshal([]byte(servers), &s); err != nil {
		return err
	}
	ttl, err := time.ParseDuration(lifetime)
	if err != nil {
		return err
	}
	kind, err := guards.KindNamed(kindName)
	if err != nil {
		return err
	}
	journal, err := kind.Open(ctx, s, name)
	if err != nil {
		return err
	}
	locks, err := storeurl.Open(ctx, kind.Locks(s), nil)
	if err != nil {
		return err
	}
	client, err := stile.New(locks.Store, &stile.Options{TTL: ttl})
	if err != nil {
		return err
	}
	w := &writer{journal: journal, mutex: client.Mutex(name)}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(w.do(ctx, in.Text()))
	}
	return errors.Join(client.Close(ctx), locks.Close(), journal.Close())
}

type writer struct {
	journal guards.Journal
	mutex   *stile.Mutex
	hold    *stile.Hold
}

// do does what a line says, and returns the answer.
func (w *writer) do(ctx context.Context, line string) string {
	var err error
	switch line {
	case "lock":
		if w.hold, err = w.mutex.Lock(ctx); err == nil {
			return fmt.Sprintf("locked %d", w.hold.Token())
		}
	case "check":
		if w.hold.Valid() {
			return "valid"
		}
		return "invalid"
	case "write":
		if err = w.journal.Append(ctx, unaware{w.hold}); err == nil {
			return "written"
		}
		if stale, ok := errors.AsType[*guard.StaleError](err); ok {
			return fmt.Sprintf("stale %d", stale.Newest)
		}
	case "release":
		if err = w.hold.Release(ctx); err == nil || errors.Is(err, stile.ErrLost) {
			return "released"
		}
	default:
		err = errors.New("unknown line")
	}
	return "error " + strings.ReplaceAll(fmt.Sprintf("%s: %v", line, err), "\n", " ")
}

// unaware is a hold that seems to be held for ever: its process looked at it before it was stopped.
type unaware struct{ *stile.Hold }

func (unaware) Context() context.Context { return context.Background() }
