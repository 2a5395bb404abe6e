package zkstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// claimsNode is the container, in the directory of a line, of the claims of slot numbers. It is the
// directory of no name, because no name is written like that.
const claimsNode = string(escape) + "slots" + otherSuffix

func claimsDir(dir string) string { return join(dir, claimsNode) }

// maxClaimBytes is what a claim adds to the transaction that ends its session; see [maxSessionBytes].
func maxClaimBytes(dir string) int64 {
	return int64(4 + len(join(claimsDir(dir), strconv.Itoa(line.MaxSlots))))
}

// claimState is what a client knows of the claim of one of its entries.
type claimState struct {
	// turn is held by the call that makes the claim or removes it.
	turn chan struct{}
	// request is held by requests that make the claim or look for it. Such a request may continue after
	// its caller has given up.
	request sync.Mutex
	// path is the path of the claim; nil if none is known to be there.
	path atomic.Pointer[string]
	// tried is the path of an attempt that has not been answered yet, or whose outcome is unknown.
	tried atomic.Pointer[string]
}

func newClaimState() claimState { return claimState{turn: make(chan struct{}, 1)} }

// mayExist reports whether there may be a claim.
func (c *claimState) mayExist() bool { return c.path.Load() != nil || c.tried.Load() != nil }

// claimNumber is [store.Extensions.ClaimNumber]. A claim is an ephemeral node: its name is the number,
// and its data the name of the entry's node.
func (e *entry) claimNumber(ctx context.Context) (number int, order uint64, err error) {
	se := e.session
	op := "claim a slot number"
	if err := se.life.Err(); err != nil {
		return 0, 0, err
	}
	if !e.line.stands(e.order) {
		return 0, 0, fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	n, err := e.claim(bounded)
	if err != nil {
		return 0, 0, se.wrapErr(ctx, op, err)
	}
	return n.number, n.order, nil
}

// claim repeats attempts until the entry has a number, or cannot get one. After each attempt it looks for
// the claim, so an entry has at most one. The reads are up to date: a server that lags would show too
// many free numbers, or a limit that was lowered since.
func (e *entry) claim(ctx context.Context) (numbering, error) {
	select {
	case e.number.turn <- struct{}{}:
		defer func() { <-e.number.turn }()
	case <-ctx.Done():
		return numbering{}, context.Cause(ctx)
	}
	se, dir := e.session, claimsDir(e.line.dir)
	for {
		if n, err := e.ownClaim(ctx); n.ok || err != nil {
			return n, err
		}
		claims, err := se.children(ctx, dir, true)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return numbering{}, err
		}
		limit, err := e.readLimit(ctx)
		if err != nil {
			return numbering{}, err
		}
		free, ok := line.FreeNumber(parseNumbers(claims), e.req.Mode.Within(limit).Slots())
		if ok {
			if err := e.tryClaim(ctx, free); err != nil {
				return numbering{}, err
			}
			continue
		}
		stale, err := e.haveStale(ctx, claims)
		switch {
		case err != nil:
			return numbering{}, err
		case !stale:
			return numbering{}, store.ErrNoNumber
		}
		attempts.Sleep(ctx, firstPause) // its owner is about to delete it, or its session to end
	}
}

// tryClaim makes one attempt to claim a number. It returns an error if others are useless.
func (e *entry) tryClaim(ctx context.Context, number int) error {
	refusedAt := -1
	type outcome struct {
		refusedAt int
		err       error
	}
	o, err := ask(ctx, func() (outcome, error) {
		at, err := e.createClaim(ctx, number)
		return outcome{at, err}, nil
	})
	if err == nil {
		refusedAt, err = o.refusedAt, o.err
	}
	switch {
	case err == nil, errors.Is(err, zk.ErrNodeExists):
		return nil
	case errors.Is(err, zk.ErrNoNode) && refusedAt == 0:
		return e.line.evictedErr()
	case errors.Is(err, zk.ErrNoNode):
		return e.session.store.makeDir(ctx, e.session.client, claimsDir(e.line.dir))
	case ctx.Err() != nil, refused(err):
		return err
	default: // the connection was lost
		attempts.Sleep(ctx, firstPause)
		return nil
	}
}

// createClaim creates the claim, if the entry's node is there. It returns which of the two was
// refused. It may be called by a goroutine whose caller has given up: then it must send nothing, and
// neither may it when the next attempt has begun.
func (e *entry) createClaim(ctx context.Context, number int) (refusedAt int, err error) {
	c := &e.number
	c.request.Lock()
	defer c.request.Unlock()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	path := join(claimsDir(e.line.dir), strconv.Itoa(number))
	c.tried.Store(&path)
	replies, err := e.session.client.Multi(
		&zk.CheckVersionRequest{Path: e.path(), Version: -1},
		&zk.CreateRequest{Path: path, Data: []byte(e.node.name), Acl: e.session.store.acl, Flags: zk.FlagEphemeral},
	)
	if err != nil && refused(err) {
		c.tried.Store(nil)
	}
	return slices.IndexFunc(replies, func(r zk.MultiResponse) bool { return r.Error != nil }), err
}

// A numbering is an entry's number and the order of its claim.
type numbering struct {
	number int
	order  uint64
	ok     bool // the entry has a number
}

// ownClaim looks for the claim that an attempt may have made.
func (e *entry) ownClaim(ctx context.Context) (numbering, error) {
	if !e.number.mayExist() {
		return numbering{}, nil
	}
	return attempt(ctx, e.session.client, func(int) (numbering, error) {
		c := &e.number
		c.request.Lock() // behind an attempt that may still be in flight
		defer c.request.Unlock()
		path := cmp.Or(c.tried.Load(), c.path.Load())
		if path == nil {
			return numbering{}, nil
		}
		stat, err := e.readClaim(*path)
		if err != nil {
			return numbering{}, err
		}
		c.tried.Store(nil)
		if stat == nil {
			c.path.Store(nil)
			return numbering{}, nil
		}
		c.path.Store(path)
		_, last := split(*path)
		number, err := strconv.Atoi(last)
		return numbering{number, uint64(stat.Czxid), true}, err
	})
}

// readClaim returns the metadata of a claim; nil if it does not exist or is another entry's.
func (e *entry) readClaim(path string) (*zk.Stat, error) {
	se := e.session
	connection := se.connection.Load()
	if _, err := se.client.Sync(path); err != nil { // a server that lags may not have the claim yet
		return nil, err
	}
	data, stat, err := se.client.Get(path)
	switch {
	case se.connection.Load() != connection:
		return nil, errMoved
	case errors.Is(err, zk.ErrNoNode), err == nil && string(data) != e.node.name:
		return nil, nil
	}
	return stat, err
}

// haveStale reports whether a claim is of an entry that is not in the line any more. Its owner deletes
// it, or it ends with the owner's session.
func (e *entry) haveStale(ctx context.Context, claims []string) (bool, error) {
	se := e.session
	var names []string
	for _, claim := range claims {
		path := join(claimsDir(e.line.dir), claim)
		data, err := attempt(ctx, se.client, func(int) ([]byte, error) {
			data, _, err := se.client.Get(path)
			return data, err
		})
		if errors.Is(err, zk.ErrNoNode) {
			return true, nil // deleted meanwhile
		}
		if err != nil {
			return false, err
		}
		names = append(names, string(data))
	}
	cs, err := se.list(ctx, e.line.dir, true)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(names, func(name string) bool {
		return !slices.ContainsFunc(cs, func(c listedEntry) bool { return c.name == name })
	}), nil
}

// removeClaim deletes the claim of an entry that has left its line without it, if there is one. It
// retries until that is done or the session has ended.
func (e *entry) removeClaim() {
	life := e.session.life.Context()
	select {
	case e.number.turn <- struct{}{}:
		defer func() { <-e.number.turn }()
	case <-life.Done():
		return // the servers delete it with the session
	}
	attempts.UntilDone(life, maxPause, func() error {
		n, err := e.ownClaim(life)
		if !n.ok || err != nil {
			return err
		}
		_, err = e.session.client.remove(life, *e.number.path.Load(), "")
		return err
	})
}

// deleteNode deletes a node of the entry's, and its claim in the same transaction if it is known. No
// other client deletes that claim without the entry's node.
func (e *entry) deleteNode(path string) error {
	claim := ""
	if known := e.number.path.Load(); known != nil {
		claim = *known
	}
	err := e.session.client.deleteBoth(path, claim)
	if err == nil && claim != "" {
		e.number.path.Store(nil)
	}
	return err
}

// deleteBoth deletes the node of an entry, and that of its claim unless claim is empty or there is none.
func (c *client) deleteBoth(path, claim string) error {
	if claim == "" {
		return c.Delete(path, -1)
	}
	replies, err := c.Multi(&zk.DeleteRequest{Path: path, Version: -1}, &zk.DeleteRequest{Path: claim, Version: -1})
	if errors.Is(err, zk.ErrNoNode) && slices.IndexFunc(replies, func(r zk.MultiResponse) bool { return r.Error != nil }) == 1 {
		return c.Delete(path, -1)
	}
	return err
}

// claimOf returns the path of the claim of any client's entry; empty if it has none.
func (c *client) claimOf(ctx context.Context, dir, entry string) (string, error) {
	claims, err := c.list(ctx, claimsDir(dir))
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return "", err
	}
	for _, claim := range claims {
		path := join(claimsDir(dir), claim)
		data, err := attempt(ctx, c, func(int) ([]byte, error) {
			data, _, err := c.Get(path)
			return data, err
		})
		switch {
		case err == nil && string(data) == entry:
			return path, nil
		case err != nil && !errors.Is(err, zk.ErrNoNode):
			return "", err
		}
	}
	return "", nil
}

// parseNumbers returns the numbers among the children of the container of claims.
func parseNumbers(children []string) []int {
	var numbers []int
	for _, child := range children {
		if n, err := strconv.Atoi(child); err == nil {
			numbers = append(numbers, n)
		}
	}
	return numbers
}
