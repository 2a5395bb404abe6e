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

// channelsOf returns the prefix of the channels on which waiters for a lock are notified in a
// cluster.
func channelsOf(prefix, name string) string { return redisstore.Channel(prefix, name, "") }

// documentedACL returns the ACL rules in docs/stores.md, for the prefix team:.
func documentedACL(t *testing.T) string {
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

// between returns the text of the page between begin and end.
func between(t *testing.T, page, begin, end string) string {
	t.Helper()
	_, after, found := strings.Cut(page, begin)
	text, _, ended := strings.Cut(after, end)
	if !found || !ended {
		t.Fatalf("docs/stores.md: no text after %q", begin)
	}
	return text
}

// inline returns the inline code that follows begin in the docs, ignoring line breaks.
func inline(t *testing.T, begin string) string {
	t.Helper()
	return between(t, strings.ReplaceAll(storesPage(t), "\n", " "), begin, "`")
}

// In a cluster, the documented permissions suffice to be notified.
func TestACL_documentedSufficesInCluster(t *testing.T) {
	t.Parallel()
	more := inline(t, "in a cluster `")
	nodes := testservers.StartRedisCluster(t, 3, "user stile "+strings.ReplaceAll(documentedACL(t), "PASSWORD", "secret")+" "+more)
	session := func() store.Session {
		options := redisstore.ClientOptions(nodes[0].Addr(), nodes[1].Addr())
		options.Username, options.Password = "stile", "secret"
		st := newStore(t, connectWith(t, options), &redisstore.Options{Prefix: "team:"})
		st.DisablePolling()
		return open(t, st, longTTL)
	}
	a, b := session(), session()
	for _, name := range []string{newName(t), "{x}" + newName(t), newName(t) + "}"} {
		first, second := hold(t, a, name), join(t, b, name, line.Exclusive)
		subscribed := func(channel string) bool { return strings.HasPrefix(channel, channelsOf("team:", name)) }
		eventually(t, "the waiter has subscribed", func() bool { return slices.ContainsFunc(channels(t, nodes), subscribed) })
		first.leave(t)
		second.await(t, store.Admitted)
	}
}

// The documented permissions suffice for all operations, and do not give access to other keys.
func TestACL_documentedSuffices(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, "user stile "+strings.ReplaceAll(documentedACL(t), "PASSWORD", "secret"))
	newTeamStore := func() *redisstore.Store {
		options := redisstore.ClientOptions(server.Addr())
		options.Username, options.Password = "stile", "secret"
		return newStore(t, connectWith(t, options), &redisstore.Options{Prefix: "team:"})
	}
	st := newTeamStore()
	watching, stop := context.WithCancel(t.Context())
	changes := make(chan struct{}, 100)
	watched := make(chan error, 1)
	changed := func([]string) {
		select {
		case changes <- struct{}{}:
		default: // enough are buffered
		}
	}
	go func() { watched <- st.Watch(watching, "", changed) }()
	<-changes

	for _, mode := range []line.Mode{line.Exclusive, line.Shared, line.Slot(1)} {
		behind := line.Exclusive
		if !line.SameKind(mode, behind) {
			behind = mode
		}
		for _, name := range []string{newName(t), "{x}" + newName(t), newName(t) + "}"} {
			a, b := open(t, newTeamStore(), longTTL), open(t, newTeamStore(), longTTL)
			first := join(t, a, name, mode)
			order, _ := first.await(t, store.Admitted)
			second := join(t, b, name, behind)
			second.checkWaits(t)
			wantOtherKind(t, b, name, line.Slot(3), store.Entry{Mode: mode, Order: order.Order, Session: a.ID()})
			first.Extensions().NotifyContended(func() {})
			confirm(t, a)
			if l, err := store.CollectLines(st.Lines(t.Context(), name)); err != nil || len(l) != 1 || len(l[0].Entries) != 2 {
				t.Errorf("got lines %+v, %v", l, err)
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
	for _, s := range joinAll(t, open(t, st, longTTL), st, []string{newName(t), "{x}" + newName(t), newName(t) + "}"}) {
		s.await(t, store.Admitted)
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
		t.Errorf("reading another key: got %v, want NOPERM", err)
	}
}

// Another database needs one more permission.
func TestACL_documentedSufficesForDatabase(t *testing.T) {
	t.Parallel()
	more := inline(t, "a database other than 0 it needs `")
	server := testservers.StartRedis(t, "user stile "+strings.ReplaceAll(documentedACL(t), "PASSWORD", "secret")+" "+more)
	options := redisstore.ClientOptions(server.Addr())
	options.Username, options.Password, options.SelectDB = "stile", "secret", 1
	st := newStore(t, connectWith(t, options), &redisstore.Options{Prefix: "team:"})
	hold(t, open(t, st, longTTL), newName(t)).leave(t)
}

// Redis words a missing permission differently if it is the script that needs it.
func TestACL_scriptLacksPermission(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, "user clerk on >secret ~* &* +@all -zadd")
	options := redisstore.ClientOptions(server.Addr())
	options.Username, options.Password = "clerk", "secret"
	_, err := tryJoin(t.Context(), open(t, newStore(t, connectWith(t, options), nil), longTTL), newName(t), line.Exclusive)
	if err == nil || !strings.Contains(err.Error(), "docs/stores.md") {
		t.Errorf("got %v, want an error that names the page", err)
	}
}

// dropFirst is a client that never sends the first command of each kind.
type dropFirst struct {
	rueidis.Client

	mu   sync.Mutex
	seen map[string]bool
}

func (f *dropFirst) Nodes() map[string]rueidis.Client { return map[string]rueidis.Client{"server": f} }

func (f *dropFirst) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
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
