// Package top shows the lines of a store live in a terminal.
package top

import (
	"context"
	"errors"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
)

// A Row describes a line. Its texts contain only printable characters.
type Row struct {
	Name, Holder, Age, Left string
	Waiting                 int
	// Since is when the holder has acquired the lock, or joined its line if that is not known; zero if
	// neither is. Rows are sorted by it.
	Since time.Time
}

// Texts are the texts shown. The functions return only printable characters, because names and owners in
// the store may be hostile.
type Texts struct {
	Row     func(stile.Line, time.Time) Row
	Details func(stile.Line, time.Time) string // everything known, in several lines
	Plain   func(string) string                // any other text
}

// Run shows the observer's lines until the user quits or ctx ends; neither is an error. The observer must
// be running and have read the lines. in and out must be terminals.
func Run(ctx context.Context, o *observe.Observer, texts Texts, in, out *os.File) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the goroutine that waits for changes
	_, err := tea.NewProgram(newModel(ctx, o, texts), tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out)).Run()
	if ctx.Err() != nil || errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}
