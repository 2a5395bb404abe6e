package storeurl

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/internal/patience"
)

// tether declares sessions to a server of Stile's: see [Options.Tethered]. The protocol is described in
// package tether of the command.
type tether struct {
	socket string // the server's, for etcd clients
	logger *slog.Logger
}

// declareTimeout limits a declaration, and firstWait how long a session waits for its first one: the lease is
// not renewed meanwhile. The pauses are between attempts. Until a server has accepted the declaration, the TTL
// counts.
const (
	declareTimeout  = patience.Factor * 5 * time.Second
	firstWait       = 100 * time.Millisecond
	minDeclarePause = time.Second
	maxDeclarePause = 10 * time.Second
	withdrawTimeout = time.Second
	maxReply        = 256 // bytes
)

// declare is an [etcdstore.Options.SessionOpened]. It declares the session, and again whenever the
// connection has ended, as after a restart of the server.
func (t tether) declare(ctx context.Context, lease clientv3.LeaseID) (closed func()) {
	keeping, cancel := context.WithCancel(context.WithoutCancel(ctx))
	tried, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t.keep(keeping, lease, sync.OnceFunc(func() { close(tried) }))
	}()
	select {
	case <-tried:
	case <-ctx.Done():
	case <-time.After(firstWait):
	}
	return func() {
		cancel()
		<-ended
	}
}

// keep keeps a session declared until ctx ends. It calls tried after each attempt.
func (t tether) keep(ctx context.Context, lease clientv3.LeaseID, tried func()) {
	reported := false
	for pause := minDeclarePause; ; pause = min(2*pause, maxDeclarePause) {
		conn, err := t.connect(ctx, lease)
		tried()
		if err == nil {
			awaitEnd(ctx, conn)
			pause, reported = minDeclarePause, false
		} else if !reported && ctx.Err() == nil {
			t.logger.LogAttrs(ctx, slog.LevelWarn, "session not tethered: after a crash it ends with its TTL", slog.Any("error", err))
			reported = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// awaitEnd waits until the server has closed the connection. If ctx ends first, it withdraws the
// declaration.
func awaitEnd(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { withdraw(conn) })()
	_, _ = conn.Read(make([]byte, 1))
}

// withdraw withdraws a declaration that the server may have received, and closes its connection. Closed alone,
// the server would take the declaration for valid for a time, in which this process may make another one and die.
func withdraw(conn net.Conn) {
	_ = conn.SetWriteDeadline(time.Now().Add(withdrawTimeout))
	_, _ = conn.Write([]byte{'\n'}) // any byte
	_ = conn.Close()
}

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
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		stop()
		if err != nil {
			withdraw(conn)
		}
	}()
	declared, err := declaration(lease)
	if err != nil {
		return nil, err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(declareTimeout))
	_, err = io.WriteString(conn, declared)
	reply, readErr := bufio.NewReaderSize(conn, maxReply).ReadSlice('\n') // a server that refuses at once may have closed
	switch reason, refused := strings.CutPrefix(strings.TrimSuffix(string(reply), "\n"), "refused: "); {
	case refused:
		return nil, errors.New("refused by the server: " + reason)
	case cmp.Or(err, readErr) != nil:
		return nil, cmp.Or(err, readErr)
	case string(reply) != "ok\n":
		return nil, fmt.Errorf("refused by the server: unexpected reply %q", reply)
	}
	return conn, nil
}

// declaration returns what is sent to declare a session. It fails where there is no Linux.
func declaration(lease clientv3.LeaseID) (string, error) {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("stile-tether 1 %x %d %s %s\n", int64(lease), os.Getpid(), namespace, strings.TrimSpace(string(boot))), nil
}
