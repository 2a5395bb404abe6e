package storeurl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// tether declares sessions to a server of Stile's: see [Options.Tethered]. The protocol is described in
// package tether of the command.
type tether struct {
	socket string // the server's, for etcd clients
	logger *slog.Logger
}

// declareTimeout limits a declaration. The pauses are between attempts to reach a server that does not
// answer; until one has accepted the declaration, the TTL counts.
const (
	declareTimeout  = 5 * time.Second
	minDeclarePause = time.Second
	maxDeclarePause = 10 * time.Second
	maxReply        = 256 // bytes
)

// declare is an [etcdstore.Options.SessionOpened]. It declares the session, and again whenever the
// connection has ended, as after a restart of the server.
func (t tether) declare(ctx context.Context, lease clientv3.LeaseID) (closed func()) {
	conn, err := t.connect(ctx, lease)
	keeping, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.keep(keeping, lease, conn, err)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// keep keeps a session declared until ctx ends or the server refuses it. conn and err are the outcome of
// the first declaration.
func (t tether) keep(ctx context.Context, lease clientv3.LeaseID, conn net.Conn, err error) {
	reported := false
	for pause := minDeclarePause; ; pause = min(2*pause, maxDeclarePause) {
		if err == nil {
			awaitEnd(ctx, conn)
			pause, reported = minDeclarePause, false
		} else if !reported && ctx.Err() == nil {
			t.logger.LogAttrs(ctx, slog.LevelWarn, "session not tethered: after a crash it ends with its TTL", slog.Any("error", err))
			reported = true
		}
		if errors.As(err, new(refusedError)) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		conn, err = t.connect(ctx, lease)
	}
}

// awaitEnd waits until the server has closed the connection. If ctx ends first, it withdraws the
// declaration.
func awaitEnd(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() {
		_, _ = conn.Write([]byte{'\n'}) // any byte withdraws it
		_ = conn.Close()
	})()
	_, _ = conn.Read(make([]byte, 1))
}

// refusedError is the reason of a server that refuses a declaration.
type refusedError string

func (e refusedError) Error() string { return "refused by the server: " + string(e) }

// connect makes a connection and declares the session with it.
func (t tether) connect(ctx context.Context, lease clientv3.LeaseID) (_ net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, declareTimeout)
	defer cancel()
	path, err := filepath.EvalSymlinks(t.socket) // local: has a link, which a later server may change
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path+".tether")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := fmt.Fprintf(conn, "stile-tether 1 %x %d\n", int64(lease), os.Getpid()); err != nil {
		return nil, err
	}
	reply, err := bufio.NewReaderSize(conn, maxReply).ReadSlice('\n')
	switch reason, refused := strings.CutPrefix(strings.TrimSuffix(string(reply), "\n"), "refused: "); {
	case err != nil:
		return nil, err
	case refused:
		return nil, refusedError(reason)
	case string(reply) != "ok\n":
		return nil, refusedError(fmt.Sprintf("unexpected reply %q", reply))
	}
	return conn, nil
}
