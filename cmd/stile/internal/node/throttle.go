package node

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// throttle logs events that any client can cause at will, without letting them fill the disk. The
// first events of a minute are logged one by one. The others are counted, and logged as one summary
// at the end of the minute, with the attributes of the last.
type throttle struct {
	logger *slog.Logger
	level  slog.Level
	text   string

	mu     sync.Mutex
	minute *time.Timer // nil if no minute has begun
	events int         // in this minute
	last   []any       // attributes of the last event that was only counted
	closed bool
}

// maxPerMinute is how many events of a minute are logged one by one.
const maxPerMinute = 10

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
	if t.events > maxPerMinute {
		t.last = attributes
		return
	}
	t.logger.Log(context.Background(), t.level, t.text, attributes...)
}

// summarize ends the minute and logs the events that were only counted.
func (t *throttle) summarize() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.summarizeLocked()
}

func (t *throttle) summarizeLocked() {
	if more := t.events - maxPerMinute; more > 0 {
		t.logger.Log(context.Background(), t.level, t.text+" repeatedly", append(t.last, "times", more)...)
	}
	t.minute, t.events, t.last = nil, 0, nil
}

// close ends the minute early. Later events are dropped.
func (t *throttle) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.minute != nil {
		t.minute.Stop()
		t.summarizeLocked()
	}
	t.closed = true
}
