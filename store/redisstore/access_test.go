package redisstore_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// channelsOf returns what the channels begin with on which those are woken who wait for a lock in a cluster.
func channelsOf(prefix, name string) string { return redisstore.Channel(prefix, name, "") }

// rights returns what docs/stores.md says that a user needs, for the prefix team:.
func rights(t *testing.T) string {
	t.Helper()
	page := storesPage(t)
	return strings.Join(strings.Fields(strings.ReplaceAll(between(t, page, "ACL SETUSER stile ", "```"), "\\\n", " ")), " ")
}

func storesPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "stores.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// between returns what the docs say between two pieces of text.
func between(t *testing.T, page, begin, end string) string {
	t.Helper()
	_, after, found := strings.Cut(page, begin)
	text, _, ended := strings.Cut(after, end)
	if !found || !ended {
		t.Fatalf("docs/stores.md does not say what a user needs after %q", begin)
	}
	return text
}

// inline returns the code that stands in the docs after a piece of text, however the lines are broken.
func inline(t *testing.T, begin string) string {
	t.Helper()
	return between(t, strings.ReplaceAll(storesPage(t), "\n", " "), begin, "`")
}

// In a cluster, what the docs say is enough to be woken.
func TestUserWithTheDocumentedRightsIsWokenInACluster(t *testing.T) {
	t.Parallel()
	more := inline(t, "in a cluster `")
	nodes := testservers.StartRedisCluster(t, 3, "user stile "+strings.ReplaceAll(rights(t), "PASSWORD", "secret")+" "+more)
	session := func() store.Session {
		options := redisstore.ClientOptions(nodes[0].Addr(), nodes[1].Addr())
		options.Username, options.Password = "stile", "secret"
		st := newStore(t, connectWith(t, options), &redisstore.Options{Prefix: "team:"})
		st.DisablePolling()
		return open(t, st, lasting)
	}
	a, b := session(), session()
	for _, name := range []string{newName(t), "{x}" + newName(t), newName(t) + "}"} {
		first, second := hold(t, a, name), join(t, b, name, line.Exclusive)
		listens := func(channel string) bool { return strings.HasPrefix(channel, channelsOf("team:", name)) }
		eventually(t, "who waits listens", func() bool { return slices.ContainsFunc(channels(t, nodes), listens) })
		first.leave(t)
		second.await(t, store.Admitted)
	}
}

// What the docs say is enough for everything, and lets nobody touch other keys.
func TestUserWithTheDocumentedRightsCanDoEverything(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, "user stile "+strings.ReplaceAll(rights(t), "PASSWORD", "secret"))
	newTeamStore := func() *redisstore.Store {
		options := redisstore.ClientOptions(server.Addr())
		options.Username, options.Password = "stile", "secret"
		return newStore(t, connectWith(t, options), &redisstore.Options{Prefix: "team:"})
	}
	st := newTeamStore()
	watching, stop := context.WithCancel(t.Context())
	changes := make(chan struct{}, 100)
	watched := make(chan error, 1)
	changed := func() {
		select {
		case changes <- struct{}{}:
		default: // there are many
		}
	}
	go func() { watched <- st.Watch(watching, "", changed) }()
	<-changes

	for _, mode := range []line.Mode{line.Exclusive, line.Shared, line.Slot(2)} {
		for _, name := range []string{newName(t), "{x}" + newName(t), newName(t) + "}"} {
			a, b := open(t, newTeamStore(), lasting), open(t, newTeamStore(), lasting)
			first := join(t, a, name, mode)
			order, _ := first.await(t, store.Admitted)
			second := join(t, b, name, line.Exclusive)
			second.waits(t)
			first.Extensions().NotifyContended(func() {})
			confirm(t, a)
			if l, err := st.Lines(t.Context(), name); err != nil || len(l) != 1 || len(l[0].Entries) != 2 {
				t.Errorf("the lines are %+v, %v", l, err)
			}
			if _, err := st.Break(t.Context(), name, order.Order); err != nil {
				t.Error(err)
			}
			second.await(t, store.Admitted)
			if err := second.Extensions().WithdrawAfter(t.Context(), 50*time.Millisecond); err != nil {
				t.Error(err)
			}
		}
	}
	<-changes
	stop()
	<-watched

	cli := connectWith(t, func() (o rueidis.ClientOption) {
		o = redisstore.ClientOptions(server.Addr())
		o.Username, o.Password = "stile", "secret"
		return o
	}())
	if err := cli.Do(t.Context(), cli.B().Get().Key("other").Build()).Error(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
		t.Errorf("the user may read other keys: %v", err)
	}
}

// A database of its own takes one right more.
func TestUserWithTheDocumentedRightsCanUseAnotherDatabase(t *testing.T) {
	t.Parallel()
	more := inline(t, "a database other than 0 it needs `")
	server := testservers.StartRedis(t, "user stile "+strings.ReplaceAll(rights(t), "PASSWORD", "secret")+" "+more)
	options := redisstore.ClientOptions(server.Addr())
	options.Username, options.Password, options.SelectDB = "stile", "secret", 1
	st := newStore(t, connectWith(t, options), &redisstore.Options{Prefix: "team:"})
	hold(t, open(t, st, lasting), newName(t)).leave(t)
}

// What a script may not do is refused in other words than what a client may not.
func TestRightThatTheScriptLacksIsSaidToBeOne(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, "user clerk on >secret ~* &* +@all -zadd")
	options := redisstore.ClientOptions(server.Addr())
	options.Username, options.Password = "clerk", "secret"
	_, err := tryJoin(t.Context(), open(t, newStore(t, connectWith(t, options), nil), lasting), newName(t), line.Exclusive)
	if err == nil || !strings.Contains(err.Error(), "docs/stores.md") {
		t.Errorf("the error must say where the rights are listed: %v", err)
	}
}

// forgetful is a client that leaves the first command of each kind unanswered.
type forgetful struct {
	rueidis.Client

	mu   sync.Mutex
	seen map[string]bool
}

func (f *forgetful) Nodes() map[string]rueidis.Client { return map[string]rueidis.Client{"server": f} }

func (f *forgetful) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	f.mu.Lock()
	word := cmd.Commands()[0]
	known := f.seen[word]
	f.seen[word] = true
	f.mu.Unlock()
	if !known {
		<-ctx.Done()
	}
	return f.Client.Do(ctx, cmd)
}

// That a server has not answered in time is no finding: it is asked again.
func TestCheckThatIsNotAnsweredIsMadeAgain(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2, "min-replicas-to-write 1")
	servers[1].ReplicaOf(servers[0])
	client := &forgetful{Client: connect(t, servers[0].Addr()), seen: make(map[string]bool)}
	for _, word := range []string{"TIME", "INFO"} {
		client.seen[word] = true // else the check, whose patience ends, would be cut off more often than need be
	}
	all, err := newStore(t, client, &redisstore.Options{WaitReplicas: 1}).Check(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	if !client.seen["CONFIG"] || !client.seen["PUBLISH"] {
		t.Fatalf("it has asked %v only: the test is about nothing", client.seen)
	}
	if found := all[0].Findings; len(found) > 0 {
		t.Errorf("all is well, and it has found %q", found)
	}
}

func TestCheckFindsWhatWouldBreakPromises(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2, "maxmemory 100mb", "maxmemory-policy volatile-lru")
	master := servers[0]
	servers[1].ReplicaOf(master)
	st := storeAt(t, master.Addr())
	all, err := st.Check(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	h := all[0]
	if h.Replicas != 1 || h.RunID != master.RunID() || h.Version == "" || h.ClockOffset.Abs() > time.Hour {
		t.Errorf("the server is %+v", h)
	}
	found := strings.Join(h.Findings, "\n")
	for _, want := range []string{"maxmemory-policy is volatile-lru", "min-replicas-to-write is 0", "WaitReplicas"} {
		if !strings.Contains(found, want) {
			t.Errorf("it has not found %q:\n%s", want, found)
		}
	}

	ahead := testservers.StartRedisAhead(t)
	ahead.SetAhead(24 * time.Hour)
	all, err = storeAt(t, ahead.Addr()).Check(t.Context())
	if err != nil || len(all) != 1 || !strings.Contains(strings.Join(all[0].Findings, "\n"), "clock is off by") {
		t.Errorf("of a clock a day ahead it says %+v, %v", all, err)
	}

	mute := testservers.StartRedis(t, "user mute on nopass ~* resetchannels +@all")
	options := redisstore.ClientOptions(mute.Addr())
	options.Username, options.Password = "mute", "any"
	all, err = newStore(t, connectWith(t, options), nil).Check(t.Context())
	if err != nil || len(all) != 1 || !strings.Contains(strings.Join(all[0].Findings, "\n"), "//wake/") {
		t.Errorf("of a user who may not publish it says %+v, %v", all, err)
	}
}
