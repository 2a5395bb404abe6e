package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // it is Redis that names scripts so; nothing is kept secret or safe by it
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

//go:embed line.lua
var script string

// scriptSum is the name by which servers know the script.
var scriptSum = func() string {
	sum := sha1.Sum([]byte(script)) //nolint:gosec // see above
	return hex.EncodeToString(sum[:])
}()

// ErrNotReplicated is what an error matches when too few replicas had a change in time; see [Options.WaitReplicas].
var ErrNotReplicated = errors.New("not on enough replicas in time")

// server is what the store needs of Redis: scripts, and messages.
type server struct {
	cli     rueidis.Client
	cluster bool
	keys    keys

	replicas    int
	replication time.Duration

	round int // how many requests go out together

	calls *calls

	mu            sync.Mutex
	redialed      time.Time                  // when the connections were last made anew
	subscriptions map[*subscription]struct{} // those that stand, or are being made
}

// A request is one command, made as it is sent, and anew for each attempt: the client takes back what it has sent.
type request func(rueidis.Builder) rueidis.Completed

// An operation is one of the script's, on one line.
type operation struct {
	line    lineKeys
	op      string
	args    []string
	session string // the key of the session without which nothing is to be done; in a cluster, where it is elsewhere, ignored
}

// short returns the request to carry out an operation by a script that the server knows.
func (s *server) short(o operation) request {
	return func(b rueidis.Builder) rueidis.Completed {
		keys, args := s.words(o)
		return b.Evalsha().Sha1(scriptSum).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
	}
}

// long returns the same for a server that may not know the script.
func (s *server) long(o operation) request {
	return func(b rueidis.Builder) rueidis.Completed {
		keys, args := s.words(o)
		return b.Eval().Script(script).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
	}
}

// words returns the script's KEYS and ARGV.
func (s *server) words(o operation) (keys, args []string) {
	publish, changes := "PUBLISH", s.keys.changes()
	if s.cluster {
		publish, changes = "SPUBLISH", "" // see Watch
	}
	keys = o.line.all()
	if o.session != "" && !s.cluster {
		keys = append(keys, o.session)
	}
	return keys, append([]string{o.op, publish, s.wake(s.section(o.line)), changes, o.line.name}, o.args...)
}

// section says which lines have the same channels: all of them or, in a cluster, where a channel has a slot as a key does,
// those of one slot.
func (s *server) section(l lineKeys) uint16 {
	if s.cluster {
		return slot(l.lock)
	}
	return 0
}

// wake is what the channels begin with on which the clients are woken that have entries in the lines of a section. Each
// client has one there.
func (s *server) wake(section uint16) string {
	if s.cluster {
		return inSlot(section) + s.keys.prefix + "//wake/"
	}
	return s.keys.prefix + "//wake/"
}

// A reply is the server's, or why there is none.
type reply struct {
	rueidis.RedisMessage
	err error
}

// number returns the number that the server has replied with.
func (r reply) number() (int64, error) {
	if r.err != nil {
		return 0, r.err
	}
	return r.AsInt64()
}

// texts returns the texts that the server has replied with.
func (r reply) texts() ([]string, error) {
	if r.err != nil {
		return nil, r.err
	}
	return r.AsStrSlice()
}

// firstError returns the first error of replies.
func firstError(all []reply) error {
	for _, r := range all {
		if r.err != nil {
			return r.err
		}
	}
	return nil
}

// eval carries out an operation of the script.
func (s *server) eval(ctx context.Context, l lineKeys, op string, args ...string) reply {
	return s.evalAll(ctx, 0, nil, []operation{{line: l, op: op, args: args}})[0]
}

// evalAll carries out requests, and operations after them, as do does, and returns all replies in order. If replicas is not
// zero each reply is an error matching ErrNotReplicated if fewer have what was done.
func (s *server) evalAll(ctx context.Context, replicas int, first []request, operations []operation) []reply {
	requests := append(make([]request, 0, len(first)+len(operations)), first...)
	for _, o := range operations {
		requests = append(requests, s.short(o))
	}
	replies := s.do(ctx, replicas, requests)

	// A server that has been restarted, or a replica that has been promoted, may not know the script. It learns it with the
	// first operation that it is asked for again; in a cluster there may be another server that has to.
	for {
		var unknown []int
		var again []request
		for i, o := range operations {
			if said, ok := rueidis.IsRedisErr(replies[len(first)+i].err); ok && said.IsNoScript() {
				request := s.short(o)
				if len(again) == 0 {
					request = s.long(o)
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

// defaultRound is how many requests go out together: so many that round trips do not count, and so few that nobody has long to wait
// behind them.
const defaultRound = 2000

// do carries out requests, in one round unless there are very many. When ctx ends first, each reply is its error, and the
// requests may yet be carried out.
func (s *server) do(ctx context.Context, replicas int, requests []request) []reply {
	all, err := call(ctx, s.calls, func() []reply { return s.send(ctx, replicas, requests) })
	if err != nil {
		return failures(len(requests), err)
	}
	s.leaveReplica(all)
	return all
}

// ask carries out one request at one of the servers.
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
	send := func(some []request) []reply { return replies(s.cli.DoMulti(ctx, build(s.cli.B(), some)...)) }
	if replicas > 0 {
		send = func(some []request) []reply { return s.doReplicated(ctx, replicas, some) }
	}
	size, most := s.round, 2 // rounds at a time: the server works on one while the client does on another
	if replicas > 0 && s.cluster {
		// Each node waits for its own replicas, and only for what came through the connection that it is asked on.
		size, most = 1, 16
	}
	if len(requests) <= size {
		return send(requests)
	}
	all := make([]reply, len(requests))
	turns := make(chan struct{}, most)
	var working sync.WaitGroup
	for from := 0; from < len(requests); from += size {
		some := requests[from:min(from+size, len(requests))]
		turns <- struct{}{}
		working.Go(func() {
			copy(all[from:], send(some))
			<-turns
		})
	}
	working.Wait()
	return all
}

// doReplicated carries out requests on one connection, and waits there until the replicas have what they changed: a server
// answers for those changes only that came through the same connection.
func (s *server) doReplicated(ctx context.Context, replicas int, requests []request) []reply {
	var all []reply
	err := s.cli.Dedicated(func(c rueidis.DedicatedClient) error {
		all = replies(c.DoMulti(ctx, build(c.B(), requests)...))
		if slices.ContainsFunc(all, func(r reply) bool { return r.err != nil }) {
			c.Close()  // the server may be busy: see listen
			return nil // which the replies say
		}
		wait := c.B().Wait().Numreplicas(int64(replicas)).Timeout(s.replication.Milliseconds()).Build()
		n, err := c.Do(ctx, wait).AsInt64()
		if err != nil {
			c.Close() // it may lead to a server that is not the master any more
		} else if n < int64(replicas) {
			err = fmt.Errorf("%w: %d of %d within %v", ErrNotReplicated, n, replicas, s.replication)
		}
		return err
	})
	if err != nil {
		return failures(len(requests), err)
	}
	return all
}

// redialInterval is how long the connections are kept at least that were made anew.
const redialInterval = time.Second

var errReplica = errors.New("the server is not the master now; connecting anew")

// leaveReplica connects anew if a server says that it is not the master, or has no data yet: behind an address that moves
// (a DNS name, a virtual IP) there may be another one now, and nothing else ends the connections to the old one. Sentinels
// and clusters tell their clients.
func (s *server) leaveReplica(all []reply) {
	replica := func(r reply) bool { return beginsWith(r.err, "READONLY", "MASTERDOWN", "LOADING") }
	if s.cli.Mode() != rueidis.ClientModeStandalone || !slices.ContainsFunc(all, replica) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.redialed) < redialInterval {
		return
	}
	s.redialed = time.Now()
	for sub := range s.subscriptions {
		sub.end(errReplica)
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), redialInterval)
		defer cancel()
		// QUIT makes the server close a connection; the client notices with its next command. A client has up to four connections,
		// and sends a command that has a slot on any of them. 24 times leave hardly a chance that one was never chosen.
		for range 24 {
			_, _ = call(ctx, s.calls, func() []rueidis.RedisResult {
				return s.cli.DoMulti(ctx, s.cli.B().Arbitrary("QUIT").Build().SetSlot("any"), s.cli.B().Ping().Build().SetSlot("any"))
			})
		}
	}()
}

// subscription is something that listens on a connection.
type subscription struct{ end context.CancelCauseFunc }

// subscribed has a subscription ended when the connections are made anew, until the function that it returns is called.
func (s *server) subscribed(sub *subscription) (forget func()) {
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

// listen subscribes to a channel and calls heard with each message, until ctx ends or the connection does. It calls
// confirmed when the server has said that the subscription stands. A call may be under way when it returns.
func (s *server) listen(ctx context.Context, channel string, confirmed func(), heard func(string)) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer s.subscribed(&subscription{end})()
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(sub rueidis.PubSubSubscription) {
		if ctx.Err() == nil && strings.HasSuffix(sub.Kind, "subscribe") && !strings.Contains(sub.Kind, "unsubscribe") {
			confirmed()
		}
	})
	each := func(m rueidis.PubSubMessage) {
		if ctx.Err() == nil {
			heard(m.Message)
		}
	}
	var err, ended error
	if s.cluster {
		// Not on a connection of its own: there may be many such channels, and they share one for each node. So nothing is
		// ever unsubscribed, and they are not counted.
		over := make(chan error, 1)
		go func() { over <- s.cli.Receive(hooked, s.cli.B().Ssubscribe().Channel(channel).Build(), each) }()
		err, ended = await(ctx, s.calls, over)
	} else {
		err, ended = call(ctx, s.calls, func() error {
			c, _ := s.cli.Dedicate()
			defer c.Close() // not released, which would unsubscribe: the client panics if a server that is busy with a script refuses that
			return c.Receive(hooked, c.B().Subscribe().Channel(channel).Build(), each)
		})
	}
	if ended != nil {
		return context.Cause(ctx)
	}
	return err
}

// milliseconds returns d as the script wants it, rounded up: nothing ends early.
func milliseconds(d time.Duration) string {
	ms := d.Milliseconds()
	if time.Duration(ms)*time.Millisecond < d {
		ms++
	}
	return strconv.FormatInt(ms, 10)
}
