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
	handlers map[string]handler // for the next request, by operation
	sent     []string           // first words of all commands
	requests int                // number of requests
	answered int                // number of requests that the server has answered, with whatever reply
}

// A handler handles a request in place of the client. It may call send, which sends the request,
// any number of times.
type handler func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult

// interceptedStore returns a store on the server at addr whose requests go through an interceptor.
func interceptedStore(t *testing.T, addr string) (*redisstore.Store, *interceptor) {
	t.Helper()
	c := &interceptor{Client: connect(t, addr), handlers: make(map[string]handler)}
	return newStore(t, c, nil), c
}

// next sets the handler of the next request for an operation.
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
	return c.doMulti(ctx, c.Client, multi)
}

func (c *interceptor) Dedicated(f func(rueidis.DedicatedClient) error) error {
	return c.Client.Dedicated(func(d rueidis.DedicatedClient) error { return f(&dedicatedInterceptor{d, c}) })
}

// dedicatedInterceptor is a connection of an interceptor.
type dedicatedInterceptor struct {
	rueidis.DedicatedClient
	all *interceptor
}

func (c *dedicatedInterceptor) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	return c.all.doMulti(ctx, c.DedicatedClient, multi)
}

func (c *interceptor) doMulti(ctx context.Context, on rueidis.CoreClient, multi []rueidis.Completed) []rueidis.RedisResult {
	how := c.record(multi)
	if how == nil {
		return c.count(on.DoMulti(ctx, multi...))
	}
	var words [][]string // copied, because the client recycles a command that it has sent
	for _, cmd := range multi {
		words = append(words, slices.Clone(cmd.Commands()))
	}
	return c.count(how(ctx, func(ctx context.Context) []rueidis.RedisResult {
		again := make([]rueidis.Completed, 0, len(words))
		for _, w := range words {
			again = append(again, c.B().Arbitrary(w...).Build())
		}
		return on.DoMulti(ctx, again...)
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

// record records what is sent, and returns the handler, if any.
func (c *interceptor) record(multi []rueidis.Completed) handler {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	for _, cmd := range multi {
		c.sent = append(c.sent, cmd.Commands()[0])
	}
	for _, cmd := range multi {
		op := operationOf(cmd.Commands())
		if how := c.handlers[op]; how != nil {
			delete(c.handlers, op)
			return how
		}
	}
	return nil
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
