package history

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"sync"
)

// History is a whole run.
type History struct {
	Run Run
	// Events are in the order of [Event.At].
	Events []Event
}

// Read reads the history in the file at path. A last line that is cut short, because the recorder was killed, is ignored.
func Read(path string) (*History, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h, err := Parse(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}

// Parse reads a history. The error names the line that is no event.
func Parse(r io.Reader) (*History, error) {
	h, lines := &History{}, bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF) && n == 1:
			return nil, errors.New("not a history: it has no first line")
		case errors.Is(err, io.EOF):
			slices.SortStableFunc(h.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
			return h, nil
		case err != nil:
			return nil, err
		}
		if n == 1 {
			err = json.Unmarshal(line, &h.Run)
			if err == nil && h.Run.Target == "" {
				err = errors.New("it names no target")
			}
		} else {
			var e Event
			if err = json.Unmarshal(line, &e); err == nil {
				err = e.whole()
			}
			h.Events = append(h.Events, e)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d is not one of a history: %w", n, err)
		}
	}
}

// whole returns an error if an event does not tell of exactly one thing.
func (e *Event) whole() error {
	things := 0
	for _, field := range reflect.ValueOf(*e).Fields() {
		if field.Kind() == reflect.Pointer && !field.IsNil() {
			things++
		}
	}
	if things != 1 {
		return fmt.Errorf("it tells of %d things that have happened, not of one", things)
	}
	return nil
}

// A Writer writes a history. It is safe for concurrent use.
type Writer struct {
	mu  sync.Mutex
	out io.Writer
	err error
}

// NewWriter begins a history with what is run.
func NewWriter(out io.Writer, run Run) *Writer {
	w := &Writer{out: out}
	w.write(run)
	return w
}

// Write adds an event, in one write, so that nothing but the last line is lost with the process.
func (w *Writer) Write(e Event) { w.write(e) }

func (w *Writer) write(v any) {
	line, err := json.Marshal(v)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return
	}
	if err == nil {
		_, err = w.out.Write(append(line, '\n'))
	}
	w.err = err
}

// Err returns the first error of writing; nothing was written after it.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
