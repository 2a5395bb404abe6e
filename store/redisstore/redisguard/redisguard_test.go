package redisguard_test

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/guardtest"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store/redisstore"
	"github.com/stilelock/stile/store/redisstore/redisguard"
)

// testTimeout is how long tests wait for events that should happen at once, on however busy a
// machine.
const testTimeout = 2 * time.Minute

// sharedServer is a Redis for all tests that do not disturb it. Each test uses its own keys.
var sharedServer = testservers.Shared[*testservers.Redis]{
	New: func() (*testservers.Redis, error) { return testservers.NewRedis() },
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	sharedServer.Close()
	os.Exit(code)
}

// connect returns a client of the servers at addrs. It repeats requests that may be repeated, which is
// the default of rueidis, so that tests show that it does not repeat those of the guard.
func connect(t *testing.T, addrs ...string) rueidis.Client {
	t.Helper()
	options := redisstore.ClientOptions(addrs...)
	options.DisableRetry, options.ConnWriteTimeout = false, testTimeout
	options.PipelineMultiplex = -1 // one connection, so that no request has to wait for another one
	return connectWith(t, options)
}

func connectWith(t *testing.T, options rueidis.ClientOption) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// newName returns a unique name, for keys on the shared server.
func newName(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("%s-%x-", t.Name(), rand.Uint64())
}

// value returns the value of a key, or "" if it does not exist.
func value(t *testing.T, client rueidis.Client, key string) string {
	t.Helper()
	text, err := client.Do(t.Context(), client.B().Get().Key(key).Build()).ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		t.Fatal(err)
	}
	return text
}

func do(t *testing.T, client rueidis.Client, words ...string) {
	t.Helper()
	if err := client.Do(t.Context(), client.B().Arbitrary(words...).Build()).Error(); err != nil {
		t.Fatalf("%q: %v", words, err)
	}
}

// checkStale checks that err is the refusal of token because of newest.
func checkStale(t *testing.T, err error, resource string, token, newest uint64) {
	t.Helper()
	refused, ok := errors.AsType[*guard.StaleError](err)
	if !ok || !errors.Is(err, guard.ErrStale) || *refused != (guard.StaleError{Resource: resource, Token: token, Newest: newest}) {
		t.Errorf("token %d: got %v, want it refused because of %d", token, err, newest)
	}
}

// checkSet sets a key, and checks that the token was accepted if newest is 0, and otherwise refused
// because of it.
func checkSet(t *testing.T, client rueidis.Client, fence string, token, newest uint64, key string) {
	t.Helper()
	before, text := value(t, client, key), fmt.Sprint("written with ", token)
	err := redisguard.Set(t.Context(), client, fence, token, key, text)
	want := text
	if newest == 0 && err != nil {
		t.Errorf("token %d: got %v, want it accepted", token, err)
	}
	if newest != 0 {
		checkStale(t, err, fence, token, newest)
		want = before
	}
	if got := value(t, client, key); got != want {
		t.Errorf("after token %d: the value is %q, want %q", token, got, want)
	}
	if got, want := value(t, client, fence), fmt.Sprintf("%020d", max(token, newest)); got != want {
		t.Errorf("after token %d: the fence is %q, want %q", token, got, want)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	base := newName(t)
	client := connect(t, sharedServer.Get(t).Addr())
	guardtest.Tokens(t, redisguard.Tokens{Client: client, Prefix: base + ":"})
}

func TestTokens_errorsNameTheResource(t *testing.T) {
	t.Parallel()
	base := newName(t)
	client := connect(t, sharedServer.Get(t).Addr())
	tokens := redisguard.Tokens{Client: client, Prefix: base + ":"}
	do(t, client, "SET", base+":orders", "7")
	err := tokens.Raise(t.Context(), "orders", 8)
	for _, part := range []string{`"orders"`, strconv.Quote(base + ":orders"), "damaged"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %s in it", err, part)
		}
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	base := newName(t)
	client := connect(t, sharedServer.Get(t).Addr())
	for i, steps := range [][]struct{ token, newest uint64 }{
		{{5, 0}, {5, 0}, {7, 0}, {6, 7}, {5, 7}, {7, 0}},
		{{9, 0}, {10, 0}, {9, 10}, {99, 0}, {100, 0}, {99, 100}},                                     // not in the order of strings
		{{1 << 53, 0}, {1<<53 + 1, 0}, {1 << 53, 1<<53 + 1}, {1<<53 + 1, 0}, {1<<53 - 1, 1<<53 + 1}}, // no doubles
		{{9_999_999_999, 0}, {10_000_000_000, 0}, {9_999_999_999, 10_000_000_000}},                   // between the halves
		{{20_000_000_001, 0}, {10_000_000_002, 20_000_000_001}, {20_000_000_000, 20_000_000_001}},    // the left half is more important
		{{math.MaxInt64 - 1, 0}, {math.MaxInt64, 0}, {math.MaxInt64 - 1, math.MaxInt64}, {1, math.MaxInt64}, {math.MaxInt64, 0}},
	} {
		fence, key := fmt.Sprint(base, "-fence-", i), fmt.Sprint(base, "-", i)
		for _, step := range steps {
			checkSet(t, client, fence, step.token, step.newest, key)
		}
	}
}

// A fence key never expires, even if something else has given it a TTL.
func TestSet_fenceWithTTL(t *testing.T) {
	t.Parallel()
	fence := newName(t) + "-fence"
	client := connect(t, sharedServer.Get(t).Addr())
	checkSet(t, client, fence, 5, 0, fence+"-key")
	if err := client.Do(t.Context(), client.B().Expire().Key(fence).Seconds(3600).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	checkSet(t, client, fence, 5, 0, fence+"-key")
	if ttl, err := client.Do(t.Context(), client.B().Ttl().Key(fence).Build()).AsInt64(); err != nil || ttl != -1 {
		t.Errorf("got a TTL of %d, %v, want none", ttl, err)
	}
}

func TestSet_tokensThatNoHoldHas(t *testing.T) {
	t.Parallel()
	base := newName(t)
	client := connect(t, sharedServer.Get(t).Addr())
	for _, token := range []uint64{0, math.MaxInt64 + 1, math.MaxUint64} {
		if err := redisguard.Set(t.Context(), client, base+"fence", token, base, "x"); !errors.Is(err, guard.ErrBadToken) {
			t.Errorf("token %d: got %v, want ErrBadToken", token, err)
		}
	}
	if got := value(t, client, base) + value(t, client, base+"fence"); got != "" {
		t.Errorf("got %q, want nothing written", got)
	}
}

// Random tokens of all lengths are compared as numbers.
func TestSet_comparesAsNumbers(t *testing.T) {
	t.Parallel()
	base := newName(t)
	client, fence := connect(t, sharedServer.Get(t).Addr()), base+"fence"
	for range 300 {
		newest := rand.Uint64()>>(1+rand.IntN(63)) | 1
		token := rand.Uint64()>>(1+rand.IntN(63)) | 1
		if rand.IntN(2) == 0 && newest > 4 && newest < math.MaxInt64-4 {
			token = newest + rand.Uint64N(7) - 3 // a neighbor
		}
		do(t, client, "SET", fence, fmt.Sprintf("%020d", newest))
		err := redisguard.Set(t.Context(), client, fence, token, base, "")
		if token >= newest && err != nil {
			t.Errorf("token %d after %d: %v", token, newest, err)
		} else if token < newest {
			checkStale(t, err, fence, token, newest)
		}
	}
}

// The commands see their own keys and arguments, each time, and whether they are sent or known.
func TestScript_keysAndArgs(t *testing.T) {
	t.Parallel()
	base := newName(t)
	client, fence := connect(t, sharedServer.Get(t).Addr()), base+"fence"
	script := redisguard.NewScript(`
		if pcall(function() return fence end) or pcall(function() return token end) then error('it sees names of the guard') end
		local all = {}
		for i, key in ipairs(KEYS) do all[#all + 1] = i .. '=' .. key end
		for i, arg in ipairs(ARGV) do all[#all + 1] = i .. '=' .. arg end
		return {#KEYS, #ARGV, all}`)
	many := make([]string, 20_000) // more than a Lua stack takes
	for i := range many {
		many[i] = "x"
	}
	for range 3 { // with EVAL, then with EVALSHA
		for _, c := range []struct{ keys, args []string }{
			{nil, nil}, {[]string{"k"}, nil}, {nil, []string{"a"}}, {[]string{"k", "l"}, []string{"a", "", "c\x00\r\n"}}, {nil, many},
		} {
			want := make([]string, 0, len(c.args))
			for i, key := range c.keys {
				want = append(want, fmt.Sprint(i+1, "=", key))
			}
			for i, arg := range c.args {
				want = append(want, fmt.Sprint(i+1, "=", arg))
			}
			keys, args := slices.Clone(c.keys), slices.Clone(c.args)
			reply, err := script.Exec(t.Context(), client, fence, 7, keys, args).ToArray()
			if err != nil {
				t.Fatal(err)
			}
			k, _ := reply[0].AsInt64()
			a, _ := reply[1].AsInt64()
			got, _ := reply[2].AsStrSlice()
			if k != int64(len(c.keys)) || a != int64(len(c.args)) || !slices.Equal(got, want) {
				t.Errorf("%d keys, %d args: the script saw %d and %d: %.100q", len(c.keys), len(c.args), k, a, got)
			}
			if !slices.Equal(keys, c.keys) || !slices.Equal(args, c.args) {
				t.Error("Exec changed its arguments")
			}
		}
	}
}

// The error of the commands is theirs, even if it looks like the guard's. The token stays raised.
func TestScript_errorsOfTheCommands(t *testing.T) {
	t.Parallel()
	base := newName(t)
	client := connect(t, sharedServer.Get(t).Addr())
	for i, c := range []struct{ commands, want string }{
		{"return redis.error_reply('OUCH it hurts')", "OUCH it hurts"},
		{"return {err = 'OUCH it hurts'}", "OUCH it hurts"},
		{"return redis.error_reply('STILEGUARD token 6 is stale, a later holder was here with 9')", "STILEGUARD token 6 is stale, a later holder was here with 9"},
		{"return redis.error_reply('STILEGUARD token 7 is stale, a later holder was here with nine')", "STILEGUARD token 7 is stale, a later holder was here with nine"},
		{"return redis.error_reply('STILEGUARD token 71 was not compared, the fence key is damaged')", "STILEGUARD token 71 was not compared, the fence key is damaged"},
		{"return redis.error_reply('stale fencing token')", "stale fencing token"},
		{"return redis.call('INCR', KEYS[2])", "value is not an integer"},
		{"error('on purpose')", "on purpose"},
		{"return redis.call('NOSUCHCOMMAND')", "Unknown Redis command"},
		{"here = 1", "readonly table"}, // scripts cannot set globals
	} {
		fence, keys := fmt.Sprint(base, i, "fence"), []string{fmt.Sprint(base, i), fmt.Sprint(base, i, "text")}
		do(t, client, "SET", keys[1], "text")
		script := redisguard.NewScript("redis.call('SET', KEYS[1], 'written')\n" + c.commands)
		err := script.Exec(t.Context(), client, fence, 7, keys, nil).Error()
		reply, ok := rueidis.IsRedisErr(err)
		if !ok || !strings.Contains(reply.Error(), c.want) || errors.Is(err, guard.ErrStale) {
			t.Errorf("%s: got %v, want %q", c.commands, err, c.want)
		}
		if strings.HasPrefix(c.commands, "return redis.error_reply") && err.Error() != c.want {
			t.Errorf("got %q, want %q", err, c.want)
		}
		if got := value(t, client, keys[0]); got != "written" {
			t.Errorf("%s: the first command wrote %q", c.commands, got)
		}
		checkSet(t, client, fence, 6, 7, keys[0])
	}
	err := redisguard.NewScript("redis.call('SET', KEYS[1]").Exec(t.Context(), client, base, 7, []string{base + "x"}, nil).Error()
	if _, ok := rueidis.IsRedisErr(err); !ok || value(t, client, base) != "" {
		t.Errorf("commands that do not compile: got %v, want an error and no token", err)
	}
	err = redisguard.NewScript("local x = 1").Exec(t.Context(), client, base, 7, nil, nil).Error()
	if !rueidis.IsRedisNil(err) {
		t.Errorf("commands that return nothing: got %v, want Nil", err)
	}
}

// Nothing runs if the fence key has not a token.
func TestScript_damagedFence(t *testing.T) {
	t.Parallel()
	base := newName(t)
	client, fence := connect(t, sharedServer.Get(t).Addr()), base+"fence"
	for _, words := range [][]string{
		{"SET", fence, ""},
		{"SET", fence, "7"},
		{"SET", fence, "0000000000000000007"},
		{"SET", fence, "000000000000000000007"},
		{"SET", fence, "0000000000000000000x"},
		{"SET", fence, "-0000000000000000007"},
		{"SET", fence, "000000000000000007.0"},
		{"SET", fence, "0x000000000000000007"},
		{"SET", fence, " 0000000000000000007"},
		{"SET", fence, "0000000000\n000000007"},
		{"SET", fence, "00000000000000000\x0007"},
		{"SET", fence, "99999999999999999999"},
		{"SET", fence, "10000000000000000000"},
		{"RPUSH", fence, "00000000000000000007"},
		{"HSET", fence, "a", "b"},
	} {
		do(t, client, "DEL", fence)
		do(t, client, words...)
		err := redisguard.Set(t.Context(), client, fence, 8, base, "x")
		if err == nil || errors.Is(err, guard.ErrStale) || !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), strconv.Quote(fence)) {
			t.Errorf("%q: got %v, want an error that names the damaged fence", words, err)
		}
		if got := value(t, client, base); got != "" {
			t.Fatalf("%q: written", words)
		}
		if words[0] == "SET" && value(t, client, fence) != words[2] {
			t.Errorf("%q: the fence was changed", words)
		}
	}
	do(t, client, "SET", fence, strings.Repeat("0", 20)) // an operator may begin anew
	checkSet(t, client, fence, 1, 0, base)
}

// A server that does not know the script gets it. If it was known, one request is enough.
func TestScript_unknownToTheServer(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	client := connect(t, server.Addr())
	calls := func(command string) int64 {
		text, err := server.Do("INFO", "commandstats").ToString()
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(text, "cmdstat_"+command+":calls=")
		digits, _, _ := strings.Cut(after, ",")
		n, _ := strconv.ParseInt(digits, 10, 64)
		return n
	}
	for i := range 3 {
		server.Do("SCRIPT", "FLUSH")
		token := uint64(2*i + 2)
		checkSet(t, client, "fence", token, 0, "a")
		checkSet(t, client, "fence", token, 0, "a")
		checkSet(t, client, "fence", token-1, token, "a")
		if eval, evalsha := calls("eval"), calls("evalsha"); eval != int64(i+1) || evalsha != int64(3*i+3) {
			t.Errorf("round %d: %d EVAL and %d EVALSHA", i, eval, evalsha)
		}
	}
	server.Restart()
	for end := time.Now().Add(testTimeout); client.Do(t.Context(), client.B().Ping().Build()).Error() != nil; {
		if time.Now().After(end) {
			t.Fatal("the client does not reconnect")
		}
	}
	checkSet(t, client, "fence", 1, 0, "a") // the data is lost, and so is the fence
}

// Text works with other clients, which have to pass a token.
func TestScript_text(t *testing.T) {
	t.Parallel()
	base := newName(t)
	server := sharedServer.Get(t)
	client, fence, key := connect(t, server.Addr()), base+"fence", base
	text := redisguard.NewScript("return redis.call('RPUSH', KEYS[1], unpack(ARGV))").Text()
	eval := func(words ...string) error {
		return client.Do(t.Context(), client.B().Arbitrary(append([]string{"EVAL", text}, words...)...).Build()).Error()
	}
	if err := eval("2", fence, key, "7", "a", "b"); err != nil {
		t.Fatal(err)
	}
	if err := eval("2", fence, key, "6", "c"); err == nil || err.Error() != "STILEGUARD token 6 is stale, a later holder was here with 7" {
		t.Errorf("a stale token: got %v", err)
	}
	for _, words := range [][]string{
		{"0"},
		{"0", "8"},
		{"2", fence, key},
		{"2", fence, key, "", "c"},
		{"2", fence, key, "0", "c"},
		{"2", fence, key, "08", "c"},
		{"2", fence, key, "-8", "c"},
		{"2", fence, key, "8.0", "c"},
		{"2", fence, key, "1e3", "c"},
		{"2", fence, key, "0x8", "c"},
		{"2", fence, key, "8 ", "c"},
		{"2", fence, key, "10000000000000000000", "c"},
		{"2", fence, key, "8\x00", "c"},
	} {
		if err := eval(words...); err == nil || !strings.HasPrefix(err.Error(), "STILEGUARD token ") {
			t.Errorf("%q: got %v, want an error of the guard", words, err)
		}
	}
	if list, err := client.Do(t.Context(), client.B().Lrange().Key(key).Start(0).Stop(-1).Build()).AsStrSlice(); !slices.Equal(list, []string{"a", "b"}) {
		t.Errorf("got %q, %v", list, err)
	}
	checkSet(t, client, fence, 6, 7, key+"value") // this package reads what Text has written
}

// Writers at once: each element of the list is written with a token that is no smaller than the one
// before, and every refused writer has written nothing.
func TestScript_atOnce(t *testing.T) {
	t.Parallel()
	base := newName(t)
	addr, fence, key := sharedServer.Get(t).Addr(), base+"fence", base
	push := redisguard.NewScript("return redis.call('RPUSH', KEYS[1], ARGV[1])")
	var mu sync.Mutex
	accepted := make(map[string]bool)
	var writers sync.WaitGroup
	const perWriter = 100
	refused := 0
	for w := range 6 {
		client := connect(t, addr)
		writers.Go(func() {
			for i := range perWriter {
				token := 1<<53 + uint64(i/2+rand.IntN(6))
				name := fmt.Sprint(token, "/", w, "/", i)
				err := push.Exec(t.Context(), client, fence, token, []string{key}, []string{name}).Error()
				mu.Lock()
				switch {
				case err == nil:
					accepted[name] = true
				case errors.Is(err, guard.ErrStale):
					refused++
				default:
					t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	client := connect(t, addr)
	list, err := client.Do(t.Context(), client.B().Lrange().Key(key).Start(0).Stop(-1).Build()).AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	last := uint64(0)
	for _, name := range list {
		digits, _, _ := strings.Cut(name, "/")
		token, _ := strconv.ParseUint(digits, 10, 64)
		if token < last {
			t.Errorf("token %d has written after %d", token, last)
		}
		last = token
		if !accepted[name] {
			t.Errorf("%s was written and not accepted", name)
		}
	}
	if len(list) != len(accepted) || refused == 0 || len(list)+refused != 6*perWriter {
		t.Errorf("%d written, %d accepted, %d refused", len(list), len(accepted), refused)
	}
}

// A request whose reply is lost is not repeated by the client, although it repeats others.
func TestScript_lostReply(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	proxy := testservers.NewProxy(t, server.Addr())
	client := connect(t, proxy.Addr())
	count := redisguard.NewScript("return redis.call('INCR', KEYS[1])")
	if err := count.Exec(t.Context(), client, "fence", 5, []string{"n"}, nil).Error(); err != nil { // loads the script
		t.Fatal(err)
	}
	proxy.CutReplies()
	failed := make(chan error, 1)
	go func() { failed <- count.Exec(t.Context(), client, "fence", 6, []string{"n"}, nil).Error() }()
	counted := func() string {
		text, err := server.Do("GET", "n").ToString()
		if err != nil {
			t.Error(err)
		}
		return text
	}
	for end := time.Now().Add(testTimeout); counted() != "2"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the request does not arrive")
		}
	}
	proxy.Reset()
	proxy.Release()
	err := <-failed
	if err == nil || errors.Is(err, guard.ErrStale) || !strings.Contains(err.Error(), `"fence"`) || !strings.Contains(err.Error(), " 6 ") {
		t.Errorf("got %v, want an error that names the fence and the token", err)
	}
	// The same token again runs the commands again; a smaller one does not.
	if n, err := count.Exec(t.Context(), client, "fence", 6, []string{"n"}, nil).AsInt64(); n != 3 || err != nil {
		t.Errorf("got %d, %v, want 3: once more, and not repeated before", n, err)
	}
	checkStale(t, count.Exec(t.Context(), client, "fence", 5, []string{"n"}, nil).Error(), "fence", 5, 6)
}

func TestServerDown(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	client := connect(t, server.Addr())
	server.Kill()
	err := redisguard.Set(t.Context(), client, "the fence", 5, "key", "value")
	if err == nil || !strings.Contains(err.Error(), `"the fence"`) {
		t.Errorf("Set: got %v, want the fence in it", err)
	}
	err = redisguard.Tokens{Client: client, Prefix: "fence:"}.Raise(t.Context(), "orders", 5)
	if err == nil || !strings.Contains(err.Error(), `"orders"`) || !strings.Contains(err.Error(), `"fence:orders"`) {
		t.Errorf("Raise: got %v, want the resource and the fence key in it", err)
	}
}

// A replica refuses every token, also one that would change nothing.
func TestScript_replica(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	servers[1].ReplicaOf(servers[0])
	master, replica := connect(t, servers[0].Addr()), connect(t, servers[1].Addr())
	checkSet(t, master, "fence", 5, 0, "key")
	servers[0].Do("WAIT", "1", "0")
	err := redisguard.Tokens{Client: replica}.Raise(t.Context(), "fence", 5)
	if reply, ok := errors.AsType[*rueidis.RedisError](err); !ok || !strings.HasPrefix(reply.Error(), "READONLY") {
		t.Errorf("the same token: got %v, want READONLY", err)
	}
	checkStale(t, redisguard.Set(t.Context(), replica, "fence", 4, "key", "x"), "fence", 4, 5)

	// After a failover the replica has the token too.
	servers[0].Kill()
	servers[1].ReplicaOf(nil)
	checkSet(t, replica, "fence", 4, 5, "key")
	checkSet(t, replica, "fence", 6, 0, "key")
}

// A server without memory refuses the token, and runs nothing.
func TestScript_outOfMemory(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, "maxmemory-policy noeviction")
	client := connect(t, server.Addr())
	checkSet(t, client, "fence", 5, 0, "key")
	server.Do("CONFIG", "SET", "maxmemory", "1")
	del := redisguard.NewScript("return redis.call('DEL', KEYS[1])") // a command that needs no memory
	if err := del.Exec(t.Context(), client, "fence", 6, []string{"key"}, nil).Error(); err == nil || !strings.HasPrefix(err.Error(), "OOM") {
		t.Errorf("got %v, want OOM", err)
	}
	server.Do("CONFIG", "SET", "maxmemory", "0")
	if value(t, client, "key") == "" || value(t, client, "fence") != fmt.Sprintf("%020d", 5) {
		t.Error("something was run")
	}
}

func TestScript_documentedACL(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	as := func(rules ...string) rueidis.Client {
		user := fmt.Sprint("user", rand.Uint64())
		server.Do(append([]string{"ACL", "SETUSER", user, "on", "nopass"}, rules...)...)
		options := redisstore.ClientOptions(server.Addr())
		options.Username, options.Password = user, "any"
		return connectWith(t, options)
	}
	all := []string{"+eval", "+evalsha", "+get", "+set", "~fence"}
	client := as(all...)
	for _, token := range []uint64{5, 6} { // with EVAL, then with EVALSHA
		if err := (redisguard.Tokens{Client: client}).Raise(t.Context(), "fence", token); err != nil {
			t.Error(err)
		}
	}
	for i := range all {
		server.Do("SCRIPT", "FLUSH")
		client := as(slices.Delete(slices.Clone(all), i, i+1)...)
		err := redisguard.Tokens{Client: client}.Raise(t.Context(), "fence", 7)
		if err == nil || !strings.Contains(err.Error(), "perm") && !strings.Contains(err.Error(), "can't run") {
			t.Errorf("without %s: got %v, want it refused", all[i], err)
		}
	}
	if got, _ := server.Do("GET", "fence").ToString(); got != fmt.Sprintf("%020d", 6) {
		t.Errorf("the fence is %s", got)
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := testservers.StartRedisCluster(t, 3)
	addrs := make([]string, 0, len(nodes))
	for _, node := range nodes {
		addrs = append(addrs, node.Addr())
	}
	client := connect(t, addrs...)
	if client.Mode() != rueidis.ClientModeCluster {
		t.Fatalf("the client's mode is %v", client.Mode())
	}
	for i := range 6 { // on all nodes
		tag := fmt.Sprint("{orders", i, "}")
		for _, step := range []struct{ token, newest uint64 }{{5, 0}, {7, 0}, {6, 7}, {7, 0}} {
			checkSet(t, client, tag+"fence", step.token, step.newest, tag+"key")
		}
	}
	guardtest.Tokens(t, redisguard.Tokens{Client: client, Prefix: "fence:"})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("keys in different slots: no panic")
			}
		}()
		_ = redisguard.Set(t.Context(), client, "{a}fence", 5, "{b}key", "x")
	}()
}
