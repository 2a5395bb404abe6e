package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// subscriber listens to one channel, and subscribes again whenever the subscription ends.
type subscriber struct {
	listening atomic.Bool // the server has said that the subscription stands, and nothing else since

	cancel context.CancelFunc
	work   sync.WaitGroup
	once   sync.Once
	ready  chan struct{} // closed when the subscription stands for the first time, or is refused
	err    error         // the refusal; read it after ready
}

// subscribe begins to listen. It calls received with each message, and confirmed each time the subscription stands. The
// connection waits for both.
func (s *Store) subscribe(channel string, confirmed func(), received func(string)) *subscriber {
	ctx, cancel := context.WithCancel(context.Background())
	sub := &subscriber{cancel: cancel, ready: make(chan struct{})}
	sub.work.Go(func() { s.listen(ctx, sub, channel, confirmed, received) })
	return sub
}

// await waits until the subscription stands for the first time, and returns why it does not.
func (sub *subscriber) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, attempts.Patience, errPatience)
	defer cancel()
	select {
	case <-sub.ready:
		return sub.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop ends the subscription, and returns when nothing is received any more.
func (sub *subscriber) stop() {
	sub.cancel()
	sub.work.Wait()
}

func (s *Store) listen(ctx context.Context, sub *subscriber, channel string, confirmed func(), received func(string)) {
	_ = attempts.KeepUp(ctx, firstPause, func() error {
		err := s.server.listen(ctx, channel, func() {
			sub.listening.Store(true)
			sub.once.Do(func() { close(sub.ready) })
			confirmed()
		}, received)
		sub.listening.Store(false)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if refused(err) {
			sub.once.Do(func() {
				sub.err = fmt.Errorf("subscribe to channel %q: %w", channel, err)
				close(sub.ready)
			})
		}
		s.logger.LogAttrs(ctx, slog.LevelWarn, "subscription lost; subscribing again",
			slog.String("channel", channel), slog.Any("error", err))
		return nil
	})
}

// received passes on what the script has published on a channel.
func (s *Store) received(message string) {
	words := strings.Fields(message)
	if len(words) < 2 || s.deaf {
		return
	}
	s.mu.Lock()
	e := s.entries[words[1]]
	s.mu.Unlock()
	switch {
	case e == nil: // it is leaving, or has left
	case words[0] == "in" && len(words) == 3:
		e.update(standingOf(words[0], words[2], e))
	case words[0] == "gone" && len(words) == 3:
		e.update(store.Standing{State: store.Gone, Cause: e.evicted(words[2])})
	case words[0] == "crowd":
		e.callContended()
	}
}

// standingOf returns a standing as the script tells it: a word and a number.
func standingOf(word, number string, e *entry) store.Standing {
	n, err := strconv.ParseUint(number, 10, 64)
	switch {
	case word != "in" && word != "wait":
		return store.Standing{State: store.Gone, Cause: e.evicted("")}
	case err != nil || n == 0 || n > store.MaxOrder:
		return store.Standing{State: store.Gone, Cause: fmt.Errorf("%w: the server gives it the number %q", store.ErrGone, number)}
	case word == "in":
		return store.Standing{State: store.Admitted, Order: n}
	default:
		return store.Standing{State: store.Waiting, Ahead: int(n)}
	}
}

// evicted says why an entry is not in its line, for the reasons that the script gives.
func (e *entry) evicted(why string) error {
	what := map[string]string{
		"expired":   "it was not confirmed in time",
		"taken":     fmt.Sprintf("somebody has deleted or replaced the key %q", e.line.lock),
		"broken":    "it was broken",
		"forgotten": "the server has forgotten that it was let in",
	}[why]
	if what == "" {
		what = "it is not in the line any more"
	}
	return fmt.Errorf("%w: %s", store.ErrGone, what)
}

var errVoid = errors.New("it was taken out while it was being put in")
