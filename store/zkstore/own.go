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

// ownNodes are the nodes of a session's entries for which the server may have no watch yet, or no longer. Every entry is
// watched from its arrival: so its owner hears at once that it was taken out, and a confirmation covers it.
//
// A watch is set for many nodes with one request (setWatches). So after a reconnection tens of thousands of entries are
// watched again with a few dozen requests, and a confirmation is not kept waiting. The request is answered
// with an event for each node that is not there, and leaves no watch on those.
type ownNodes struct {
	kick work.Signal   // there may be nodes that want a watch
	turn chan struct{} // is had by the call that sets watches

	mu      sync.Mutex // taken after those of the session and of a line
	wanted  map[string]uint64
	reasons uint64         // counts the reasons to set a watch; wanted has the latest of each path
	asked   map[string]int // how many requests of each path are not answered
	running bool           // the goroutine that sets watches has been started
}

func newOwnNodes() *ownNodes {
	return &ownNodes{kick: work.NewSignal(), turn: make(chan struct{}, 1), wanted: make(map[string]uint64), asked: make(map[string]int)}
}

// forget notes that nobody wants to hear of a node any more.
func (n *ownNodes) forget(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.wanted, path)
}

// count adds to the number of requests of nodes that are not answered.
func (n *ownNodes) count(nodes map[string]uint64, more int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for path := range nodes {
		if n.asked[path] += more; n.asked[path] == 0 {
			delete(n.asked, path)
		}
	}
}

// asking reports whether there is a request of a node that is not answered. Then what the server tells of the node may be part
// of the answer: it may have been so for long.
func (n *ownNodes) asking(path string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[path] > 0
}

const (
	// chunk is about how many bytes of paths one request has at most: servers accept a megabyte, or what jute.maxbuffer says.
	chunk = 128 << 10
	// pipelined is how many such requests are under way at a time. A confirmation may come behind them, on a slow line too.
	pipelined = 2
)

// chunks returns the nodes that want a watch, in portions that fit into one request each.
func (n *ownNodes) chunks() []map[string]uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []map[string]uint64
	size := chunk
	for path, reason := range n.wanted {
		if size += 4 + len(path); size > chunk {
			all, size = append(all, make(map[string]uint64)), 4+len(path)
		}
		all[len(all)-1][path] = reason
	}
	return all
}

// set notes that nodes are watched, as far as there has been no other reason since.
func (n *ownNodes) set(watched map[string]uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for path, reason := range watched {
		if n.wanted[path] == reason {
			delete(n.wanted, path)
		}
	}
}

// watchOwn sets the watches of the session's entries that are not set. When it returns nil, each entry that stood when it
// was called has been watched on the present connection, or has been reported gone: the server tells of the nodes that are
// not there before it answers.
func (se *session) watchOwn(ctx context.Context) error {
	select {
	case se.own.turn <- struct{}{}: // what another call is asking for need not be asked for again
		defer func() { <-se.own.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	chunks := se.own.chunks()
	answers := make(chan error, len(chunks))
	places := make(chan struct{}, pipelined)
	for _, nodes := range chunks {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		go func() {
			defer func() { <-places }()
			se.own.count(nodes, 1)
			err := se.client.setWatches(slices.Collect(maps.Keys(nodes)))
			se.own.count(nodes, -1)
			if err == nil {
				se.own.set(nodes) // also when nobody waits for it any more
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

// wantOwn has an entry's node watched: it is new, its watch is used up, or the connection is another. It may be called with
// the mutexes of the session and the line held.
func (se *session) wantOwn(path string) {
	n := se.own
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reasons++
	n.wanted[path] = n.reasons
	n.kick.Set()
	if !n.running {
		n.running = true
		se.life.Start(se.keepWatching)
	}
}

// keepWatching sets watches as they are wanted, until the session ends.
func (se *session) keepWatching() {
	life := se.life.Context()
	for {
		select {
		case <-se.own.kick:
		case <-life.Done():
			return
		}
		if err := se.watchOwn(life); err != nil && life.Err() == nil {
			se.store.logger.LogAttrs(life, slog.LevelDebug, "entries could not be watched", slog.Any("error", err))
			attempts.Rest(life, firstPause)
			se.own.kick.Set()
		}
	}
}

// pathEnd is behind each of the paths of nodes that are to be watched, where the library has room for one path only. It is a
// character that no path of an entry has; see allowed. Deletions alone have it at their end: for readings see watchMark.
const pathEnd = "\ue000"

// setWatches has the server tell of the next change of nodes: of the end at once, if they are not there. The library can
// ask that only after a reconnection, for all watches that it knows of. Its Delete takes the paths, and the answer, which
// is empty for both.
func (c *client) setWatches(paths []string) error {
	return c.Delete(strings.Join(paths, pathEnd)+pathEnd, -1)
}

// settingWatches turns the request of [client.setWatches] into what it stands for, and leaves others alone.
func settingWatches(p []byte) []byte {
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
	body = binary.BigEndian.AppendUint64(body, math.MaxInt64) // no change of a node's data is so new that it has to be told
	body = binary.BigEndian.AppendUint32(body, uint32(len(paths)))
	for _, path := range paths {
		body = appendBytes(body, path)
	}
	body = binary.BigEndian.AppendUint64(body, 0) // no watches of what does not exist, and none of children
	return appendBytes(nil, body)
}
