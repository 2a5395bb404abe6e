// Package redisguard is a guard for data in Redis 7.0 or newer. Valkey is not tested.
//
// A fence key has the largest token seen. A [Script] is one Lua script that compares a hold's token with
// it, raises it, and runs commands. So the comparison and the commands are one step: if the commands were
// run, no larger token was seen before, and no smaller one is accepted after.
//
//	var pay = redisguard.NewScript(`
//		redis.call('HSET', KEYS[1], 'paid', ARGV[1])
//		return redis.call('INCR', KEYS[2])`)
//
//	paid, err := pay.Exec(ctx, client, "{orders}fence", hold.Token(),
//		[]string{"{orders}42", "{orders}paid"}, []string{"10"}).AsInt64()
//
// It is an order guard for exclusive holds, with the limits that package guard names. The lock may be in
// any store that has fencing tokens. Every writer has to use the guard, with the same fence key.
//
// # The fence key
//
// The fence key is a string of 20 digits without a TTL. It must not be the key of the lock. If it is
// deleted, the guard accepts a stale token. Redis must not evict it: maxmemory-policy must be noeviction,
// or one of those that begin with volatile. In a cluster the fence key and all other keys need the same
// hash tag, such as {orders}.
//
// The commands and the new token are replicated, and written to the append-only file, as one transaction.
// So a failover or a crash that loses the newest token also loses what was written with it. It does not lose
// what was written elsewhere: other servers need a guard of their own. A master that was cut off accepts
// stale tokens until it learns that it is not the master any more, and then all that it has accepted is
// lost.
//
// An ACL user needs +eval, +evalsha, +get and +set, the fence key, and what its own commands need.
package redisguard

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/guard"
)

// compare precedes the commands in every script.
//
//go:embed guard.lua
var compare string

// The errors of compare are mark, the token, and one of these. The commands see neither the token nor the
// fence key, so they have no such error by accident.
const (
	mark    = "STILEGUARD token "
	stale   = " is stale, a later holder was here with "
	damaged = " was not compared, the fence key is damaged"
)

// A Script is commands that run only if the token is not stale. It is safe for concurrent use.
type Script struct {
	text string
	lua  *rueidis.Lua
}

// NewScript returns a Script with commands in Lua, as for EVAL. They see their own KEYS and ARGV, without
// the fence key and the token. They cannot begin with "#!". Line numbers in their errors count the lines
// of the guard before them.
//
// Errors that the commands return must not begin with a word that makes the client repeat them: NOSCRIPT,
// and in a cluster MOVED and ASK.
func NewScript(commands string) *Script {
	text := compare + commands
	return &Script{text, rueidis.NewLuaScript(text)}
}

// Text returns the whole script, for other clients and languages: KEYS[1] is the fence key, and ARGV[1]
// the token in decimal digits. The keys and arguments of the commands follow. If the token is stale, the
// error begins with "STILEGUARD token ", the token and " is stale". Any other error that begins with
// "STILEGUARD " also means that nothing was run.
func (s *Script) Text() string { return s.text }

// Exec runs the commands with their keys and args, in one step with the comparison of the token, and
// returns their result. Commands that return nothing have the result [rueidis.Nil], which is an error.
//
// If the token is stale, the error is a [*guard.StaleError], whose Resource is the fence key. If no hold can
// have the token, the error matches [guard.ErrBadToken], and no request is sent. If the value of the fence
// key is not a token, the error says so. In all three cases nothing was run.
//
// Errors that Redis or the commands return are returned as they are, as a [*rueidis.RedisError]. Redis does
// not undo what a script did before it failed: the token and earlier commands may remain.
//
// After any other error, such as a lost connection or the end of ctx, the commands may have been run, and
// may also be run later. Exec does not repeat them. If the caller does, with the same token, they may be run
// twice, and the run of the first call may come last. The guard refuses it only if a later holder was there.
//
// With the client of a cluster, Exec panics if fence and keys are not in one slot, as all commands of
// rueidis do.
func (s *Script) Exec(ctx context.Context, client rueidis.Client, fence string, token uint64, keys, args []string) rueidis.RedisResult {
	return s.exec(ctx, client, fence, fence, token, keys, args)
}

// exec is Exec with the resource's name for errors.
func (s *Script) exec(ctx context.Context, client rueidis.Client, resource, fence string, token uint64, keys, args []string) rueidis.RedisResult {
	if err := guard.CheckToken(resource, token); err != nil {
		return rueidis.NewErrorResult(err)
	}
	decimal := strconv.FormatUint(token, 10)
	keys, args = append([]string{fence}, keys...), append([]string{decimal}, args...)
	result := s.lua.Exec(ctx, client, keys, args) // not the retryable kind
	if err := result.NonRedisError(); err != nil {
		return rueidis.NewErrorResult(fmt.Errorf("guard: %q: compare token %d with the fence key %q: %w", resource, token, fence, err))
	}
	reply, ok := errors.AsType[*rueidis.RedisError](result.Error())
	if !ok {
		return result
	}
	why, ours := strings.CutPrefix(reply.Error(), mark+decimal)
	if !ours {
		return result
	}
	if why == damaged {
		return rueidis.NewErrorResult(fmt.Errorf("guard: %q: the fence key %q is damaged: its value is not a token; nothing was run; "+
			"while nobody writes, set it to the last token, with 20 digits", resource, fence))
	}
	if text, ok := strings.CutPrefix(why, stale); ok {
		if newest, err := strconv.ParseUint(text, 10, 64); err == nil {
			return rueidis.NewErrorResult(&guard.StaleError{Resource: resource, Token: token, Newest: newest})
		}
	}
	return result
}

var set = NewScript("return redis.call('SET', KEYS[1], ARGV[1])")

// Set sets key to value, without a TTL, if the token is not stale. Its errors are those of [Script.Exec].
func Set(ctx context.Context, client rueidis.Client, fence string, token uint64, key, value string) error {
	return set.Exec(ctx, client, fence, token, []string{key}, []string{value}).Error()
}

// Tokens is a [guard.Tokens] that keeps each token in a fence key of its own. It is for resources outside
// Redis; for those inside, use a [Script]. It is weaker than other guards: if Redis loses the newest tokens
// in a crash or a failover, it accepts stale ones, although the resource has what was written with those.
type Tokens struct {
	Client rueidis.Client
	// Prefix and the name of the resource make the fence key. With "", the name is the fence key.
	Prefix string
}

var raise = NewScript("return 1")

// Raise implements [guard.Tokens]. If the value of the fence key is not a token, the error says so.
func (t Tokens) Raise(ctx context.Context, resource string, token uint64) error {
	err := raise.exec(ctx, t.Client, resource, t.Prefix+resource, token, nil, nil).Error()
	if reply, ok := errors.AsType[*rueidis.RedisError](err); ok {
		return fmt.Errorf("guard: %q: raise token %d at the fence key %q: %w", resource, token, t.Prefix+resource, reply)
	}
	return err
}
