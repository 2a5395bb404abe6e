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

// do carries out requests, in one round unless there are very many.
func (s *server) do(ctx context.Context, replicas int, requests []request) []reply {
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
		if err == nil && n < int64(replicas) {
			err = fmt.Errorf("%w: %d of %d within %v", ErrNotReplicated, n, replicas, s.replication)
		}
		return err
	})
	if err != nil {
		all = make([]reply, len(requests))
		for i := range all {
			all[i].err = err
		}
	}
	return all
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
// confirmed when the server has said that the subscription stands.
func (s *server) listen(ctx context.Context, channel string, confirmed func(), heard func(string)) error {
	ctx = rueidis.WithOnSubscriptionHook(ctx, func(sub rueidis.PubSubSubscription) {
		if strings.HasSuffix(sub.Kind, "subscribe") && !strings.Contains(sub.Kind, "unsubscribe") {
			confirmed()
		}
	})
	each := func(m rueidis.PubSubMessage) { heard(m.Message) }
	if s.cluster {
		// Not on a connection of its own: there may be many such channels, and they share one for each node. So nothing is
		// ever unsubscribed.
		return s.cli.Receive(ctx, s.cli.B().Ssubscribe().Channel(channel).Build(), each)
	}
	c, _ := s.cli.Dedicate()
	defer c.Close() // not released, which would unsubscribe: the client panics if a server that is busy with a script refuses that
	return c.Receive(ctx, c.B().Subscribe().Channel(channel).Build(), each)
}

// milliseconds returns d as the script wants it, rounded up: nothing ends early.
func milliseconds(d time.Duration) string {
	ms := d.Milliseconds()
	if time.Duration(ms)*time.Millisecond < d {
		ms++
	}
	return strconv.FormatInt(ms, 10)
}
