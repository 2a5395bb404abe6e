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

// topic is a channel or a pattern to subscribe to.
type topic struct {
	channel string
	pattern bool
}

// event is what a listener receives from one master: a message, the confirmation of the
// subscription (from then on nothing is missed), or its refusal.
type event struct {
	from       *master
	channel    string
	payload    string
	subscribed bool
	refused    error
}

// listener receives the events of one topic. receive is called by the goroutines that read from the
// masters, with a mutex held, so it must not block.
type listener struct {
	topic
	receive func(event)
}

// subscriptions receives published messages for the whole store, on one connection to each master.
// Connections are made when the first listener is added.
type subscriptions struct {
	mu          sync.Mutex
	wanted      map[topic]map[*listener]struct{}
	subscribers []*subscriber // one for each master
}

// subscriber is the subscribing connection to one master.
type subscriber struct {
	all    *subscriptions
	master *master
	wakeup work.Signal     // the wanted topics have changed
	topics map[topic]error // topics that were subscribed to, wanted or not; the value is the refusal, if any
}

func newSubscriptions(masters []*master) *subscriptions {
	subs := &subscriptions{wanted: make(map[topic]map[*listener]struct{})}
	for _, m := range masters {
		subs.subscribers = append(subs.subscribers, &subscriber{all: subs, master: m, wakeup: work.NewSignal()})
	}
	return subs
}

// listen calls receive with the events of a topic until stop is called. A call may be running when
// stop returns. For each master there is first an event that confirms or refuses the subscription;
// if it is known already, listen delivers it itself.
func (subs *subscriptions) listen(t topic, receive func(event)) (stop func()) {
	l := &listener{topic: t, receive: receive}
	subs.mu.Lock()
	defer subs.mu.Unlock()
	if subs.wanted[t] == nil {
		subs.wanted[t] = make(map[*listener]struct{})
	}
	subs.wanted[t][l] = struct{}{}
	for _, sub := range subs.subscribers {
		if err, ok := sub.topics[t]; ok {
			l.receive(event{from: sub.master, subscribed: err == nil, refused: err})
		}
		sub.wakeup.Set()
	}
	return func() {
		subs.mu.Lock()
		defer subs.mu.Unlock()
		delete(subs.wanted[t], l)
		if len(subs.wanted[t]) == 0 {
			delete(subs.wanted, t)
			for _, sub := range subs.subscribers {
				sub.wakeup.Set()
			}
		}
	}
}

// publish delivers an event to the listeners of a topic.
func (subs *subscriptions) publish(t topic, n event) {
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
			case <-sub.wakeup:
			case <-ctx.Done():
			}
			continue
		}
		client := sub.master.await(ctx)
		if client == nil {
			return
		}
		start := time.Now()
		err := sub.serve(ctx, client)
		sub.reset()
		if ctx.Err() == nil {
			sub.master.logger.LogAttrs(ctx, slog.LevelDebug, "subscriptions lost; subscribing again", slog.Any("error", err))
			attempts.Sleep(ctx, max(firstRedial, lastRedial/4-time.Since(start)))
		}
	}
}

func (sub *subscriber) needed() bool {
	sub.all.mu.Lock()
	defer sub.all.mu.Unlock()
	return len(sub.all.wanted) > 0
}

func (sub *subscriber) reset() {
	sub.all.mu.Lock()
	defer sub.all.mu.Unlock()
	sub.topics = nil
}

// maxIdleTopics is the number of unwanted topics that may stay subscribed, unless more than that
// are wanted.
const maxIdleTopics = 100

var errIdleTopics = errors.New("too many unused subscriptions")

// serve subscribes to the wanted topics on one connection, until that ends or there are too many
// unwanted topics. It never unsubscribes: the Redis client panics if a server that is busy with a
// script refuses that.
func (sub *subscriber) serve(ctx context.Context, client rueidis.Client) error {
	conn, release := client.Dedicate()
	defer release()
	defer conn.Close()
	over := conn.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) {
		t := topic{channel: m.Channel}
		if m.Pattern != "" {
			t = topic{channel: m.Pattern, pattern: true}
		}
		sub.all.publish(t, event{from: sub.master, channel: m.Channel, payload: m.Message})
	}})
	for {
		begin, idle := sub.missingTopics()
		if idle {
			return errIdleTopics
		}
		for _, t := range begin {
			err := conn.Do(ctx, subscribe(conn.B(), t)).Error()
			if _, refused := rueidis.IsRedisErr(err); err != nil && !refused || temporary(err) {
				return err
			}
			sub.record(t, err)
		}
		select {
		case <-sub.wakeup:
		case err := <-over:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// missingTopics returns the wanted topics that are not subscribed to, and whether there are too
// many unwanted ones.
func (sub *subscriber) missingTopics() (begin []topic, idle bool) {
	sub.all.mu.Lock()
	defer sub.all.mu.Unlock()
	for t := range sub.all.wanted {
		if _, ok := sub.topics[t]; !ok {
			begin = append(begin, t)
		}
	}
	wanted := len(sub.all.wanted)
	notWanted := len(sub.topics) - (wanted - len(begin))
	return begin, notWanted > max(wanted, maxIdleTopics)
}

// record records that a topic is subscribed to, or refused, and notifies its listeners.
func (sub *subscriber) record(t topic, refused error) {
	sub.all.mu.Lock()
	defer sub.all.mu.Unlock()
	if sub.topics == nil {
		sub.topics = make(map[topic]error)
	}
	sub.topics[t] = refused
	for l := range sub.all.wanted[t] {
		l.receive(event{from: sub.master, subscribed: refused == nil, refused: refused})
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
