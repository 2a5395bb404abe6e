package redlockstore

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store/internal/attempts"
)

// topic is something to subscribe to.
type topic struct {
	channel string
	pattern bool
}

// news is what a listener hears from one master: what was published, or that nothing will be missed from now on, or that
// the master does not allow listening.
type news struct {
	from    *master
	channel string
	payload string
	begun   bool
	refused error
}

// listener hears of one topic. heard is called by the goroutines that read from the masters: it must not block.
type listener struct {
	topic
	heard func(news)
}

// hub hears for the whole store what the masters publish: each master on one connection of its own, which is made when
// there is first something to listen to.
type hub struct {
	mu     sync.Mutex
	wanted map[topic]map[*listener]struct{}
	ears   []*ear
}

// ear is the hub's connection to one master.
type ear struct {
	hub    *hub
	master *master
	kick   chan struct{}   // tells that what is wanted has changed; holds one
	begun  map[topic]error // what is listened to, wanted or not, or was refused
}

func newHub(masters []*master) *hub {
	h := &hub{wanted: make(map[topic]map[*listener]struct{})}
	for _, m := range masters {
		h.ears = append(h.ears, &ear{hub: h, master: m, kick: make(chan struct{}, 1)})
	}
	return h
}

// listen has heard called with what is published from now on, until the function that it returns is called; a call may
// be under way then. It is also called for each master when it begins to be listened to, at once if it is already.
func (h *hub) listen(t topic, heard func(news)) (stop func()) {
	l := &listener{topic: t, heard: heard}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wanted[t] == nil {
		h.wanted[t] = make(map[*listener]struct{})
	}
	h.wanted[t][l] = struct{}{}
	for _, e := range h.ears {
		if err, ok := e.begun[t]; ok {
			l.heard(news{from: e.master, begun: err == nil, refused: err})
		}
		e.wake()
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.wanted[t], l)
		if len(h.wanted[t]) == 0 {
			delete(h.wanted, t)
			for _, e := range h.ears {
				e.wake()
			}
		}
	}
}

// tell tells those who listen to a topic.
func (h *hub) tell(t topic, n news) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.wanted[t] {
		l.heard(n)
	}
}

func (e *ear) wake() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// run listens until ctx ends.
func (e *ear) run(ctx context.Context) {
	for ctx.Err() == nil {
		if !e.needed() {
			select {
			case <-e.kick:
			case <-ctx.Done():
			}
			continue
		}
		client := e.master.await(ctx)
		if client == nil {
			return
		}
		start := time.Now()
		err := e.follow(ctx, client)
		e.forget()
		if ctx.Err() == nil {
			e.master.logger.LogAttrs(ctx, slog.LevelDebug, "listening ended; beginning again", slog.Any("error", err))
			attempts.Rest(ctx, max(firstRedial, lastRedial/4-time.Since(start)))
		}
	}
}

func (e *ear) needed() bool {
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	return len(e.hub.wanted) > 0
}

func (e *ear) forget() {
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	e.begun = nil
}

// mostIdle is how many topics that are not wanted any more may be listened to, or else as many as are wanted.
const mostIdle = 100

var errIdle = errors.New("most of what is listened to is not wanted any more")

// follow listens to what is wanted, on one connection, until that ends or too much of it is not wanted any more. It never
// unsubscribes: the Redis client panics if a server that is busy with a script refuses that.
func (e *ear) follow(ctx context.Context, client rueidis.Client) error {
	conn, release := client.Dedicate()
	defer release()
	defer conn.Close()
	over := conn.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) {
		t := topic{channel: m.Channel}
		if m.Pattern != "" {
			t = topic{channel: m.Pattern, pattern: true}
		}
		e.hub.tell(t, news{from: e.master, channel: m.Channel, payload: m.Message})
	}})
	for {
		begin, idle := e.difference()
		if idle {
			return errIdle
		}
		for _, t := range begin {
			err := conn.Do(ctx, subscribe(conn.B(), t)).Error()
			if _, refused := rueidis.IsRedisErr(err); err != nil && !refused || passes(err) {
				return err
			}
			e.note(t, err)
		}
		select {
		case <-e.kick:
		case err := <-over:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// difference returns what is to be listened to, and whether too much is listened to that is not.
func (e *ear) difference() (begin []topic, idle bool) {
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	for t := range e.hub.wanted {
		if _, ok := e.begun[t]; !ok {
			begin = append(begin, t)
		}
	}
	wanted := len(e.hub.wanted)
	notWanted := len(e.begun) - (wanted - len(begin))
	return begin, notWanted > max(wanted, mostIdle)
}

// note notes that a topic is listened to, or refused, and tells those who want to know.
func (e *ear) note(t topic, refused error) {
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	if e.begun == nil {
		e.begun = make(map[topic]error)
	}
	e.begun[t] = refused
	for l := range e.hub.wanted[t] {
		l.heard(news{from: e.master, begun: refused == nil, refused: refused})
	}
	if refused != nil {
		e.master.logger.LogAttrs(context.Background(), slog.LevelWarn, "the master does not allow listening; changes are heard of late",
			slog.String("channel", t.channel), slog.Any("error", refused))
	}
}

func subscribe(b rueidis.Builder, t topic) rueidis.Completed {
	if t.pattern {
		return b.Psubscribe().Pattern(t.channel).Build()
	}
	return b.Subscribe().Channel(t.channel).Build()
}
