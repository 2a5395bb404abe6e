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

// courier is a client that can lose, keep back and repeat what the store asks the script for, operation by operation. What
// other clients do, the store's subscriptions among them, is not its business.
type courier struct {
	rueidis.Client

	mu       sync.Mutex
	treat    map[string]treatment // by operation
	sent     []string             // the first words of all commands
	requests int                  // those made
	answered int                  // those of them that the server has answered, whatever it said
}

// A treatment stands between the store and the server. send carries the requests out, as often as it is called.
type treatment func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult

// storeBy returns a store on the server at addr whose requests go through a courier.
func storeBy(t *testing.T, addr string) (*redisstore.Store, *courier) {
	t.Helper()
	c := &courier{Client: connect(t, addr), treat: make(map[string]treatment)}
	return newStore(t, c, nil), c
}

// next has the next request for an operation treated so.
func (c *courier) next(op string, how treatment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.treat[op] = how
}

// commands returns the first words of all commands since it was called last.
func (c *courier) commands() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := c.sent
	c.sent = nil
	return sent
}

func (c *courier) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	how := c.look(multi)
	if how == nil {
		return c.note(c.Client.DoMulti(ctx, multi...))
	}
	var words [][]string // the client takes a command back when it has sent it
	for _, cmd := range multi {
		words = append(words, slices.Clone(cmd.Commands()))
	}
	return c.note(how(ctx, func(ctx context.Context) []rueidis.RedisResult {
		again := make([]rueidis.Completed, 0, len(words))
		for _, w := range words {
			again = append(again, c.B().Arbitrary(w...).Build())
		}
		return c.Client.DoMulti(ctx, again...)
	}))
}

// note counts a request that was answered.
func (c *courier) note(results []rueidis.RedisResult) []rueidis.RedisResult {
	for _, r := range results {
		if _, said := rueidis.IsRedisErr(r.Error()); r.Error() != nil && !said && !rueidis.IsRedisNil(r.Error()) {
			return results // it was given up
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered++
	return results
}

// counts returns how many requests have been made so far, and how many of them the server has answered.
func (c *courier) counts() (requests, answered int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests, c.answered
}

// look notes what is sent, and returns how to treat it.
func (c *courier) look(multi []rueidis.Completed) treatment {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	for _, cmd := range multi {
		c.sent = append(c.sent, cmd.Commands()[0])
	}
	for _, cmd := range multi {
		op := operationOf(cmd.Commands())
		if how := c.treat[op]; how != nil {
			delete(c.treat, op)
			return how
		}
	}
	return nil
}

// operationOf returns the script's operation that a command asks for.
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

// unanswered carries a request out and loses the reply.
func unanswered(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
	send(ctx)
	return failed(ctx, send)
}

// failed returns, when ctx has ended, what the client returns then; nothing is sent.
func failed(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
	<-ctx.Done()
	return send(ctx)
}
