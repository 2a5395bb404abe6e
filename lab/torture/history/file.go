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

// History is the history of one run.
type History struct {
	Run Run
	// Events are in the order of [Event.At].
	Events []Event
}

// Read reads the history in the file at path. It ignores an incomplete last line, which a recorder
// leaves that was killed.
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

// Parse reads a history. If a line is invalid, the error has its number. An incomplete last line is
// ignored.
func Parse(r io.Reader) (*History, error) {
	h, lines := &History{}, bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF) && n == 1:
			return nil, errors.New("not a history: the first line is missing")
		case errors.Is(err, io.EOF):
			slices.SortStableFunc(h.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
			return h, nil
		case err != nil:
			return nil, err
		}
		if n == 1 {
			err = json.Unmarshal(line, &h.Run)
			if err == nil && h.Run.Target == "" {
				err = errors.New("the target is missing")
			}
		} else {
			var e Event
			if err = json.Unmarshal(line, &e); err == nil {
				err = e.validate()
			}
			h.Events = append(h.Events, e)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d is invalid: %w", n, err)
		}
	}
}

// validate returns an error unless exactly one of the event's pointers is set.
func (e *Event) validate() error {
	n := 0
	for _, field := range reflect.ValueOf(*e).Fields() {
		if field.Kind() == reflect.Pointer && !field.IsNil() {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("got %d events, want exactly 1", n)
	}
	return nil
}

// A Writer writes a history. It is safe for concurrent use.
type Writer struct {
	mu  sync.Mutex
	out io.Writer
	err error
}

// NewWriter returns a writer that begins the history with run.
func NewWriter(out io.Writer, run Run) *Writer {
	w := &Writer{out: out}
	w.write(run)
	return w
}

// Write adds an event with a single call of the underlying writer, so that only the last line can
// be incomplete if the process is killed. It does nothing after an error: see [Writer.Err].
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

// Err returns the first write error. Nothing is written after it.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
