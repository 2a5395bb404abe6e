package node

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// throttle logs events that strangers can cause as often as they like, so that they cannot fill the disk. The first few of
// a minute have a line each. The others are counted, and have one line at the end of the minute, with what the last of them
// was.
type throttle struct {
	logger *slog.Logger
	level  slog.Level
	text   string

	mu     sync.Mutex
	minute *time.Timer // nil if none has begun
	events int         // in this minute
	last   []any       // of those without a line, the attributes of the last
	closed bool
}

// each is how many events of a minute have a line each.
const each = 10

// log logs an event. After close it does nothing.
func (t *throttle) log(attributes ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	if t.minute == nil {
		t.minute = time.AfterFunc(time.Minute, t.summarize)
	}
	t.events++
	if t.events > each {
		t.last = attributes
		return
	}
	t.logger.Log(context.Background(), t.level, t.text, attributes...)
}

// summarize ends the minute.
func (t *throttle) summarize() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.summarizeLocked()
}

func (t *throttle) summarizeLocked() {
	if more := t.events - each; more > 0 {
		t.logger.Log(context.Background(), t.level, t.text+", more often", append(t.last, "times", more)...)
	}
	t.minute, t.events, t.last = nil, 0, nil
}

// close ends the minute early.
func (t *throttle) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.minute != nil {
		t.minute.Stop()
		t.summarizeLocked()
	}
	t.closed = true
}
