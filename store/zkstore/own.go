package zkstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/work"
)

// ownNodes are the nodes of a session's entries that may have no watch at the server. Every entry
// is watched from its creation, so its owner is notified when it is removed, and confirmations
// cover it.
//
// One request (setWatches) sets the watches of many nodes. So after a reconnection tens of
// thousands of entries are watched again with a few dozen requests, and a confirmation does not
// wait long. The reply comes after an event for each node that does not exist; such nodes get no
// watch.
type ownNodes struct {
	wakeup work.Signal   // nodes may need a watch
	turn   chan struct{} // held by the call that sets watches

	mu         sync.Mutex // taken after those of the session and of a line
	wanted     map[string]uint64
	generation uint64         // counts reasons to set a watch; wanted has the latest for each path
	asked      map[string]int // unanswered requests for each path
	running    bool           // the goroutine that sets watches has been started
}

func newOwnNodes() *ownNodes {
	return &ownNodes{wakeup: work.NewSignal(), turn: make(chan struct{}, 1), wanted: make(map[string]uint64), asked: make(map[string]int)}
}

// forget drops a node that needs no watch any more.
func (n *ownNodes) forget(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.wanted, path)
}

// count changes the numbers of unanswered requests for nodes.
func (n *ownNodes) count(nodes map[string]uint64, more int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for path := range nodes {
		if n.asked[path] += more; n.asked[path] == 0 {
			delete(n.asked, path)
		}
	}
}

// asking reports whether a request for a node is unanswered. An event for the node may then be part
// of the reply, and report what happened long ago.
func (n *ownNodes) asking(path string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[path] > 0
}

const (
	// maxChunkBytes is about the largest number of bytes of paths in one request: servers accept a
	// megabyte by default (jute.maxbuffer).
	maxChunkBytes = 128 << 10
	// maxChunksInFlight is how many such requests are in flight at a time. A confirmation may wait
	// behind them on a slow network.
	maxChunksInFlight = 2
)

// chunks returns the nodes that need a watch, in portions of one request each.
func (n *ownNodes) chunks() []map[string]uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []map[string]uint64
	size := maxChunkBytes
	for path, reason := range n.wanted {
		if size += 4 + len(path); size > maxChunkBytes {
			all, size = append(all, make(map[string]uint64)), 4+len(path)
		}
		all[len(all)-1][path] = reason
	}
	return all
}

// set records that nodes are watched, unless there was another reason since.
func (n *ownNodes) set(watched map[string]uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for path, reason := range watched {
		if n.wanted[path] == reason {
			delete(n.wanted, path)
		}
	}
}

// watchOwn sets the missing watches of the session's entries. If it returns nil, each entry that
// was in a line when it was called has been watched on the present connection, or its end has been
// reported: the server reports nodes that do not exist before it replies.
func (se *session) watchOwn(ctx context.Context) error {
	select {
	case se.own.turn <- struct{}{}: // another call may be requesting the same
		defer func() { <-se.own.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	chunks := se.own.chunks()
	answers := make(chan error, len(chunks))
	sem := make(chan struct{}, maxChunksInFlight)
	for _, nodes := range chunks {
		select {
		case sem <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		go func() {
			defer func() { <-sem }()
			se.own.count(nodes, 1)
			err := se.client.setWatches(slices.Collect(maps.Keys(nodes)))
			se.own.count(nodes, -1)
			if err == nil {
				se.own.set(nodes) // even if no caller waits any more
			}
			answers <- err
		}()
	}
	for range chunks {
		select {
		case err := <-answers:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// requestOwnWatch requests a watch of an entry's node: it is new, its watch has fired, or the
// connection is new. The caller may hold the mutexes of the session and the line.
func (se *session) requestOwnWatch(path string) {
	n := se.own
	n.mu.Lock()
	defer n.mu.Unlock()
	n.generation++
	n.wanted[path] = n.generation
	n.wakeup.Set()
	if !n.running {
		n.running = true
		se.life.Start(se.keepWatching)
	}
}

// keepWatching sets requested watches until the session ends.
func (se *session) keepWatching() {
	life := se.life.Context()
	for {
		select {
		case <-se.own.wakeup:
		case <-life.Done():
			return
		}
		if err := se.watchOwn(life); err != nil && life.Err() == nil {
			se.store.logger.LogAttrs(life, slog.LevelDebug, "watching entries failed; retrying", slog.Any("error", err))
			attempts.Sleep(life, firstPause)
			se.own.wakeup.Set()
		}
	}
}

// pathEnd follows each path of the nodes to watch, in an argument of the library that is for one
// path. No entry's path has this character; see allowed. Only deletions end in it: for reads see
// watchMark.
const pathEnd = "\ue000"

// setWatches requests an event for the next change of each node; for a node that does not exist, at
// once. The library makes this request only after a reconnection, for all watches that it knows. So
// its Delete carries the paths and gets the reply, which is empty for both.
func (c *client) setWatches(paths []string) error {
	return c.Delete(strings.Join(paths, pathEnd)+pathEnd, -1)
}

// rewriteDelete turns a request of [client.setWatches] into setWatches, and returns others
// unchanged.
func rewriteDelete(p []byte) []byte {
	const path = requestHeader + 4
	if len(p) < path || int64(binary.BigEndian.Uint32(p[requestHeader:])) != int64(len(p)-path-4) {
		return p
	}
	all, marked := bytes.CutSuffix(p[path:len(p)-4], []byte(pathEnd))
	if !marked {
		return p
	}
	paths := bytes.Split(all, []byte(pathEnd))
	body := binary.BigEndian.AppendUint32(bytes.Clone(p[4:8]), opSetWatches)
	body = binary.BigEndian.AppendUint64(body, math.MaxInt64) // so that no change of a node's data is reported
	body = binary.BigEndian.AppendUint32(body, uint32(len(paths)))
	for _, path := range paths {
		body = appendBytes(body, path)
	}
	body = binary.BigEndian.AppendUint64(body, 0) // neither watches for creation nor for children
	return appendBytes(nil, body)
}
