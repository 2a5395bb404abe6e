package redlockstore

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/work"
)

// topic is something to subscribe to.
type topic struct {
	channel string
	pattern bool
}

// news is what a listener receives from one master: what was published, or that nothing will be missed from now on, or
// that the master does not permit the subscription.
type news struct {
	from    *master
	channel string
	payload string
	begun   bool
	refused error
}

// listener receives what is published on one topic. receive is called by the goroutines that read from the masters: it must
// not block.
type listener struct {
	topic
	receive func(news)
}

// subscriptions receive for the whole store what the masters publish: from each master on one connection, which is made
// when there is first something to listen to.
type subscriptions struct {
	mu          sync.Mutex
	wanted      map[topic]map[*listener]struct{}
	subscribers []*subscriber // one for each master
}

// subscriber is the connection to one master.
type subscriber struct {
	all    *subscriptions
	master *master
	kick   work.Signal     // the wanted topics have changed
	begun  map[topic]error // nil for topics that are subscribed to, wanted or not; otherwise the refusal
}

func newSubscriptions(masters []*master) *subscriptions {
	subs := &subscriptions{wanted: make(map[topic]map[*listener]struct{})}
	for _, m := range masters {
		subs.subscribers = append(subs.subscribers, &subscriber{all: subs, master: m, kick: work.NewSignal()})
	}
	return subs
}

// listen calls receive with what is published from now on, until the function that it returns is called; a call may be
// under way then. It also calls it for each master when the subscription stands, at once if it does already.
func (subs *subscriptions) listen(t topic, receive func(news)) (stop func()) {
	l := &listener{topic: t, receive: receive}
	subs.mu.Lock()
	defer subs.mu.Unlock()
	if subs.wanted[t] == nil {
		subs.wanted[t] = make(map[*listener]struct{})
	}
	subs.wanted[t][l] = struct{}{}
	for _, sub := range subs.subscribers {
		if err, ok := sub.begun[t]; ok {
			l.receive(news{from: sub.master, begun: err == nil, refused: err})
		}
		sub.kick.Set()
	}
	return func() {
		subs.mu.Lock()
		defer subs.mu.Unlock()
		delete(subs.wanted[t], l)
		if len(subs.wanted[t]) == 0 {
			delete(subs.wanted, t)
			for _, sub := range subs.subscribers {
				sub.kick.Set()
			}
		}
	}
}

// publish passes on what was published on a topic.
func (subs *subscriptions) publish(t topic, n news) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	for l := range subs.wanted[t] {
		l.receive(n)
	}
}

// run keeps the master subscribed to the wanted topics until ctx ends.
func (sub *subscriber) run(ctx context.Context) {
	for ctx.Err() == nil {
		if !sub.needed() {
			select {
			case <-sub.kick:
			case <-ctx.Done():
			}
			continue
		}
		client := sub.master.await(ctx)
		if client == nil {
			return
		}
		start := time.Now()
		err := sub.follow(ctx, client)
		sub.forget()
		if ctx.Err() == nil {
			sub.master.logger.LogAttrs(ctx, slog.LevelDebug, "subscriptions lost; subscribing again", slog.Any("error", err))
			attempts.Rest(ctx, max(firstRedial, lastRedial/4-time.Since(start)))
		}
	}
}

func (sub *subscriber) needed() bool {
	sub.all.mu.Lock()
	defer sub.all.mu.Unlock()
	return len(sub.all.wanted) > 0
}

func (sub *subscriber) forget() {
	sub.all.mu.Lock()
	defer sub.all.mu.Unlock()
	sub.begun = nil
}

// maxIdle is how many topics that are not wanted any more may stay subscribed to, or else as many as are wanted.
const maxIdle = 100

var errIdle = errors.New("most subscriptions are not wanted any more")

// follow subscribes to the wanted topics on one connection, until that ends or too many topics are not wanted any more. It
// never unsubscribes: the Redis client panics if a server that is busy with a script refuses that.
func (sub *subscriber) follow(ctx context.Context, client rueidis.Client) error {
	conn, release := client.Dedicate()
	defer release()
	defer conn.Close()
	over := conn.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) {
		t := topic{channel: m.Channel}
		if m.Pattern != "" {
			t = topic{channel: m.Pattern, pattern: true}
		}
		sub.all.publish(t, news{from: sub.master, channel: m.Channel, payload: m.Message})
	}})
	for {
		begin, idle := sub.difference()
		if idle {
			return errIdle
		}
		for _, t := range begin {
			err := conn.Do(ctx, subscribe(conn.B(), t)).Error()
			if _, refused := rueidis.IsRedisErr(err); err != nil && !refused || passes(err) {
				return err
			}
			sub.note(t, err)
		}
		select {
		case <-sub.kick:
		case err := <-over:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// difference returns the wanted topics that are not subscribed to, and whether there are too many that are not wanted.
func (sub *subscriber) difference() (begin []topic, idle bool) {
	sub.all.mu.Lock()
	defer sub.all.mu.Unlock()
	for t := range sub.all.wanted {
		if _, ok := sub.begun[t]; !ok {
			begin = append(begin, t)
		}
	}
	wanted := len(sub.all.wanted)
	notWanted := len(sub.begun) - (wanted - len(begin))
	return begin, notWanted > max(wanted, maxIdle)
}

// note notes that a topic is subscribed to, or refused, and passes that on to its listeners.
func (sub *subscriber) note(t topic, refused error) {
	sub.all.mu.Lock()
	defer sub.all.mu.Unlock()
	if sub.begun == nil {
		sub.begun = make(map[topic]error)
	}
	sub.begun[t] = refused
	for l := range sub.all.wanted[t] {
		l.receive(news{from: sub.master, begun: refused == nil, refused: refused})
	}
	if refused != nil {
		sub.master.logger.LogAttrs(context.Background(), slog.LevelWarn, "SUBSCRIBE not permitted; falling back to polling",
			slog.String("channel", t.channel), slog.Any("error", refused))
	}
}

func subscribe(b rueidis.Builder, t topic) rueidis.Completed {
	if t.pattern {
		return b.Psubscribe().Pattern(t.channel).Build()
	}
	return b.Subscribe().Channel(t.channel).Build()
}
