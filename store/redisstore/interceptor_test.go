package redisstore_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store/redisstore"
)

// interceptor is a Redis client that can lose, delay and repeat the script's operations. It does
// not affect subscriptions or other clients.
type interceptor struct {
	rueidis.Client

	mu       sync.Mutex
	handlers map[string]handler       // for the next request, by operation
	running  map[string]chan struct{} // closed when the handler of a request returns, by operation
	sent     []string                 // first words of all commands
	requests int                      // number of requests
	answered int                      // number of requests that the server has answered, with whatever reply
}

// A handler handles a request in place of the client. It may call send, which sends the request,
// any number of times.
type handler func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult

// interceptedStore returns a store on the server at addr whose requests go through an interceptor.
func interceptedStore(t *testing.T, addr string) (*redisstore.Store, *interceptor) {
	t.Helper()
	c := &interceptor{Client: connect(t, addr), handlers: make(map[string]handler), running: make(map[string]chan struct{})}
	return newStore(t, c, nil), c
}

// next sets the handler of the next request for an operation. While it runs, further requests for the
// operation wait, unless they have handlers too: on a busy machine the store repeats a request that its test
// has not dealt with yet.
func (c *interceptor) next(op string, how handler) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers[op] = how
}

// hold delays all requests for an operation until the channel is closed.
func (c *interceptor) hold(op string, until <-chan struct{}) {
	c.next(op, func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		c.hold(op, until)
		<-until
		return send(ctx)
	})
}

// commands returns the first words of all commands since its last call.
func (c *interceptor) commands() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := c.sent
	c.sent = nil
	return sent
}

func (c *interceptor) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	c.record(multi)
	how, returned := c.handler(multi)
	if how == nil {
		return c.count(c.Client.DoMulti(ctx, multi...))
	}
	defer returned()
	var words [][]string // copied, because the client recycles a command that it has sent
	for _, cmd := range multi {
		words = append(words, slices.Clone(cmd.Commands()))
	}
	return c.count(how(ctx, func(ctx context.Context) []rueidis.RedisResult {
		again := make([]rueidis.Completed, 0, len(words))
		for _, w := range words {
			again = append(again, c.B().Arbitrary(w...).Build())
		}
		return c.Client.DoMulti(ctx, again...)
	}))
}

// count counts a request that was answered.
func (c *interceptor) count(results []rueidis.RedisResult) []rueidis.RedisResult {
	for _, r := range results {
		if _, reply := rueidis.IsRedisErr(r.Error()); r.Error() != nil && !reply && !rueidis.IsRedisNil(r.Error()) {
			return results // no answer
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered++
	return results
}

// counts returns the number of requests so far, and how many of them the server has answered.
func (c *interceptor) counts() (requests, answered int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests, c.answered
}

// record records what is sent.
func (c *interceptor) record(multi []rueidis.Completed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	for _, cmd := range multi {
		c.sent = append(c.sent, cmd.Commands()[0])
	}
}

// handler returns the handler of a request, if any, and a function to call when that has returned. It waits
// while another request of the operation is handled.
func (c *interceptor) handler(multi []rueidis.Completed) (how handler, returned func()) {
	for _, cmd := range multi {
		op := operationOf(cmd.Commands())
		for {
			how, others := c.take(op)
			if how != nil {
				return how, func() { c.handled(op, others) }
			}
			if others == nil {
				break
			}
			<-others
		}
	}
	return nil, nil
}

// take removes and returns the handler of an operation, with the channel to close when it has returned. If
// there is none, it returns the channel of the handler that runs, if any.
func (c *interceptor) take(op string) (handler, chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	how := c.handlers[op]
	if how == nil {
		return nil, c.running[op]
	}
	delete(c.handlers, op)
	c.running[op] = make(chan struct{})
	return how, c.running[op]
}

func (c *interceptor) handled(op string, returned chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(returned)
	if c.running[op] == returned {
		delete(c.running, op)
	}
}

// operationOf returns the script's operation in a command.
func operationOf(words []string) string {
	if words[0] != "EVAL" && words[0] != "EVALSHA" {
		return ""
	}
	keys, err := strconv.Atoi(words[2])
	if err != nil {
		return ""
	}
	return words[3+keys]
}

// loseReply sends a request and loses the reply.
func loseReply(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
	send(ctx)
	return failRequest(ctx, send)
}

// failRequest waits for the end of ctx and returns the client's error. The request is not sent.
func failRequest(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
	<-ctx.Done()
	return send(ctx)
}
