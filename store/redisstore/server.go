package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // it is Redis that names scripts so; nothing is kept secret or safe by it
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

//go:embed line.lua
var lineScript string

//go:embed renew.lua
var renewScript string

//go:embed set.lua
var setScript string

// script is what servers run, and sum the digest by which they know it.
type script struct{ text, sum string }

// theScript returns set.lua, with the functions that it calls for each line. It is made when it is needed first,
// because programs that import the package may use another store.
var theScript = sync.OnceValue(func() script {
	text := `local time = redis.call('TIME')
local KEYS_TTL = 60000 -- how long the keys of a line are kept after all leases have ended
local function renew(K, H, X, E, id, ms)
` + renewScript + `end
local function operate(KEYS, ARGV)
` + lineScript + "end\n" + setScript
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	return script{text, hex.EncodeToString(sum[:])}
})

// ErrNotReplicated is matched by the error of a call whose change did not reach enough replicas in
// time; see [Options.WaitReplicas]. Lock and the other locking methods fail with it if the session or
// the entry was not replicated. A renewal that fails with it does not count, and is repeated like any
// failed renewal; the holds are lost if none succeeds in time. The master may have made the change all
// the same.
var ErrNotReplicated = errors.New("too few replicas have the change")

// server sends requests to Redis and receives messages from it.
type server struct {
	cli     rueidis.Client
	cluster bool
	keys    keys

	replicas           int
	replicationTimeout time.Duration

	chunkSize int // the largest number of requests sent in one round trip

	calls *calls

	mu            sync.Mutex
	redialed      time.Time                  // when the connections were last renewed
	notMaster     error                      // the last reply that the server is not the master
	subscriptions map[*subscription]struct{} // those that are established or being established
}

// A request builds one command. It is called for each attempt, because the client recycles a
// command that it has sent.
type request func(rueidis.Builder) rueidis.Completed

// An operation is one call of the script on one line, or on several without a cluster.
type operation struct {
	line    lineKeys
	others  []lineKeys // the lines after the first one
	op      string
	args    []string
	session string // the key of the session; the operation does nothing if it is gone. Not used in a cluster, where it may be on another server
}

// evalshaRequest returns the request that runs an operation on a server that has the script loaded.
func (s *server) evalshaRequest(o operation) request {
	return func(b rueidis.Builder) rueidis.Completed {
		keys, args := s.scriptArgs(o)
		return b.Evalsha().Sha1(theScript().sum).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
	}
}

// evalRequest returns the request that runs an operation and loads the script.
func (s *server) evalRequest(o operation) request {
	return func(b rueidis.Builder) rueidis.Completed {
		keys, args := s.scriptArgs(o)
		return b.Eval().Script(theScript().text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
	}
}

// scriptArgs returns the script's KEYS and ARGV.
func (s *server) scriptArgs(o operation) (keys, args []string) {
	if o.op == "renew" {
		keys = o.line.renewed()
		for _, l := range o.others {
			keys = append(keys, l.renewed()...)
		}
		return keys, append([]string{o.op}, o.args...)
	}
	publish, changes := "PUBLISH", s.keys.changes()
	if s.cluster {
		publish, changes = "SPUBLISH", "" // see Watch
	}
	keys = o.line.all()
	for _, l := range o.others {
		keys = append(keys, l.all()...)
	}
	if o.session != "" && !s.cluster {
		keys = append(keys, o.session)
	}
	return keys, append([]string{o.op, publish, s.wakePrefix(s.section(o.line)), changes, o.line.name}, o.args...)
}

// section returns the number of the group of lines that share channels. Without a cluster all lines
// share them. In a cluster a channel has a slot, as a key does, and the lines of one slot share
// channels.
func (s *server) section(l lineKeys) uint16 {
	if s.cluster {
		return slot(l.lock)
	}
	return 0
}

// wakePrefix returns the prefix of the channels on which clients with entries in a section are
// notified. Each client has one channel there.
func (s *server) wakePrefix(section uint16) string {
	if s.cluster {
		return inSlot(section) + s.keys.prefix + "//wake/"
	}
	return s.keys.prefix + "//wake/"
}

// A reply is a server's reply, or the reason that there is none.
type reply struct {
	rueidis.RedisMessage
	err error
}

// number returns a reply that is an integer.
func (r reply) number() (int64, error) {
	if r.err != nil {
		return 0, r.err
	}
	return r.AsInt64()
}

// numbers returns a reply that is a list of integers.
func (r reply) numbers() ([]int64, error) {
	if r.err != nil {
		return nil, r.err
	}
	return r.AsIntSlice()
}

// strings returns a reply that is a list of strings.
func (r reply) strings() ([]string, error) {
	if r.err != nil {
		return nil, r.err
	}
	return r.AsStrSlice()
}

// firstError returns the first error of replies, or nil.
func firstError(all []reply) error {
	for _, r := range all {
		if r.err != nil {
			return r.err
		}
	}
	return nil
}

// eval runs one operation of the script.
func (s *server) eval(ctx context.Context, l lineKeys, op string, args ...string) reply {
	return s.evalAll(ctx, 0, nil, []operation{{line: l, op: op, args: args}})[0]
}

// evalAll sends requests, followed by operations, as do does, and returns all replies in order. If
// replicas is not zero, and fewer replicas have the changes, each reply is an error that matches
// ErrNotReplicated.
func (s *server) evalAll(ctx context.Context, replicas int, first []request, operations []operation) []reply {
	requests := append(make([]request, 0, len(first)+len(operations)), first...)
	for _, o := range operations {
		requests = append(requests, s.evalshaRequest(o))
	}
	replies := s.do(ctx, replicas, requests)

	// A restarted server, or a promoted replica, may not have the script. One repetition with EVAL
	// loads it for the others. In a cluster another server may lack it too, hence the loop.
	for {
		var unknown []int
		var again []request
		for i, o := range operations {
			if reply, ok := rueidis.IsRedisErr(replies[len(first)+i].err); ok && reply.IsNoScript() {
				request := s.evalshaRequest(o)
				if len(again) == 0 {
					request = s.evalRequest(o)
				}
				unknown, again = append(unknown, len(first)+i), append(again, request)
			}
		}
		if len(again) == 0 {
			return replies
		}
		for i, r := range s.do(ctx, replicas, again) {
			replies[unknown[i]] = r
		}
	}
}

// defaultChunkSize is the largest number of requests sent in one round trip: large enough that
// round trips do not matter, small enough that requests of other callers do not wait long.
const defaultChunkSize = 2000

// do sends requests, in one round trip unless there are very many. If ctx ends first, each reply is
// its error, and the requests may yet be carried out.
func (s *server) do(ctx context.Context, replicas int, requests []request) []reply {
	all, err := call(ctx, s.calls, func() []reply { return s.send(ctx, replicas, requests) })
	if err != nil {
		return failures(len(requests), err)
	}
	s.leaveReplica(all)
	return all
}

// ask sends one request to a given server.
func (s *server) ask(ctx context.Context, node rueidis.Client, r request) reply {
	all, err := call(ctx, s.calls, func() []reply { return replies([]rueidis.RedisResult{node.Do(ctx, r(node.B()))}) })
	if err != nil {
		return reply{err: err}
	}
	return all[0]
}

func failures(n int, err error) []reply {
	all := make([]reply, n)
	for i := range all {
		all[i].err = err
	}
	return all
}

func (s *server) send(ctx context.Context, replicas int, requests []request) []reply {
	send := func(chunk []request) []reply { return replies(s.cli.DoMulti(ctx, build(s.cli.B(), chunk)...)) }
	if replicas > 0 {
		send = func(chunk []request) []reply { return s.doReplicated(ctx, replicas, chunk) }
	}
	size, inFlight := s.chunkSize, 2 // chunks in flight: the server works on one while the client prepares the other
	if replicas > 0 && s.cluster {
		// Each node waits for its own replicas, and only for changes made on the connection that it
		// is asked on.
		size, inFlight = 1, 16
	}
	if len(requests) <= size {
		return send(requests)
	}
	all := make([]reply, len(requests))
	sem := make(chan struct{}, inFlight)
	var working sync.WaitGroup
	for from := 0; from < len(requests); from += size {
		chunk := requests[from:min(from+size, len(requests))]
		sem <- struct{}{}
		working.Go(func() {
			copy(all[from:], send(chunk))
			<-sem
		})
	}
	working.Wait()
	return all
}

// doReplicated sends requests on one connection and then waits there for the replicas: WAIT covers
// only the changes made on its own connection.
func (s *server) doReplicated(ctx context.Context, replicas int, requests []request) []reply {
	var all []reply
	err := s.cli.Dedicated(func(c rueidis.DedicatedClient) error {
		all = replies(c.DoMulti(ctx, build(c.B(), requests)...))
		if slices.ContainsFunc(all, func(r reply) bool { return r.err != nil }) {
			c.Close()  // do not reuse: the server may be busy, see listen
			return nil // the replies hold the error
		}
		wait := c.B().Wait().Numreplicas(int64(replicas)).Timeout(s.replicationTimeout.Milliseconds()).Build()
		n, err := c.Do(ctx, wait).AsInt64()
		if err != nil {
			c.Close() // it may be connected to a former master
		} else if n < int64(replicas) {
			err = fmt.Errorf("%w: %d of %d within %v", ErrNotReplicated, n, replicas, s.replicationTimeout)
		}
		return err
	})
	if err != nil {
		return failures(len(requests), err)
	}
	return all
}

// redialInterval is the minimum time between two renewals of the connections.
const redialInterval = time.Second

var errReplica = errors.New("the server is not the master any more; reconnecting")

// reconnectError is why a request failed whose connection the store has closed itself. Whether the
// request was carried out is unknown: unlike reply, a reconnectError is not a server's answer to it.
type reconnectError struct {
	reply error // that the server is not the master
	err   error
}

func (e *reconnectError) Error() string   { return "reconnecting after " + e.reply.Error() }
func (e *reconnectError) Unwrap() []error { return []error{e.reply, e.err} }

// leaveReplica renews all connections if a server replies that it is not the master, or is still
// loading: behind an address that moves (a DNS name, a virtual IP) there may be another server now,
// and nothing else closes the connections to the old one. With Sentinel and in a cluster the client
// learns of the new master by itself.
//
// Requests that this fails get a reconnectError: that their connection broke does not say why.
func (s *server) leaveReplica(all []reply) {
	failed := slices.ContainsFunc(all, func(r reply) bool { return r.err != nil })
	if !failed || s.cli.Mode() != rueidis.ClientModeStandalone {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	leave, since := false, time.Since(s.redialed)
	for i, r := range all {
		if notMaster(r.err) {
			leave, s.notMaster = true, r.err
		} else if since < 2*redialInterval && brokeOff(r.err) { // renewing may take one interval
			all[i].err = &reconnectError{s.notMaster, r.err}
		}
	}
	if !leave || since < redialInterval {
		return
	}
	s.redialed = time.Now()
	for sub := range s.subscriptions {
		sub.end(errReplica)
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), redialInterval)
		defer cancel()
		// QUIT makes the server close a connection; the client notices with its next command. A
		// client has up to four connections and sends a command with a slot on any of them. After
		// 24 rounds it is very unlikely that one was never used.
		for range 24 {
			_, _ = call(ctx, s.calls, func() []rueidis.RedisResult {
				return s.cli.DoMulti(ctx, s.cli.B().Arbitrary("QUIT").Build().SetSlot("any"), s.cli.B().Ping().Build().SetSlot("any"))
			})
		}
	}()
}

// brokeOff reports whether an error says that a connection ended while it was used.
func brokeOff(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return errors.Is(err, io.EOF) || ok && op.Op != "dial" && !op.Timeout()
}

// subscription is an active call of listen.
type subscription struct{ end context.CancelCauseFunc }

// addSubscription registers a subscription, which is ended when the connections are renewed. The
// caller calls remove when the subscription has ended.
func (s *server) addSubscription(sub *subscription) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscriptions[sub] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subscriptions, sub)
	}
}

func replies(results []rueidis.RedisResult) []reply {
	all := make([]reply, 0, len(results))
	for _, r := range results {
		m, err := r.ToMessage()
		all = append(all, reply{m, err})
	}
	return all
}

func build(b rueidis.Builder, requests []request) []rueidis.Completed {
	cmds := make([]rueidis.Completed, 0, len(requests))
	for _, r := range requests {
		cmds = append(cmds, r(b))
	}
	return cmds
}

// listen subscribes to a channel and calls received with each message until ctx ends or the
// connection does. It calls confirmed when the server has confirmed the subscription. A callback
// may still be running when listen returns.
func (s *server) listen(ctx context.Context, channel string, confirmed func(), received func(string)) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer s.addSubscription(&subscription{end})()
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(sub rueidis.PubSubSubscription) {
		if ctx.Err() == nil && strings.HasSuffix(sub.Kind, "subscribe") && !strings.Contains(sub.Kind, "unsubscribe") {
			confirmed()
		}
	})
	each := func(m rueidis.PubSubMessage) {
		if ctx.Err() == nil {
			received(m.Message)
		}
	}
	var err, ended error
	if s.cluster {
		// There may be many such channels, so they share one connection for each node. They are
		// never unsubscribed, and calls does not count them.
		over := make(chan error, 1)
		go func() { over <- s.cli.Receive(hooked, s.cli.B().Ssubscribe().Channel(channel).Build(), each) }()
		err, ended = await(ctx, s.calls, over)
	} else {
		err, ended = call(ctx, s.calls, func() error {
			c, _ := s.cli.Dedicate()
			defer c.Close() // close instead of release: release would unsubscribe, and the client panics if a server that is busy with a script refuses that
			return c.Receive(hooked, c.B().Subscribe().Channel(channel).Build(), each)
		})
	}
	if ended != nil {
		return context.Cause(ctx)
	}
	return err
}

// milliseconds formats d for the script, rounded up so that nothing ends early.
func milliseconds(d time.Duration) string {
	ms := d.Milliseconds()
	if time.Duration(ms)*time.Millisecond < d {
		ms++
	}
	return strconv.FormatInt(ms, 10)
}
