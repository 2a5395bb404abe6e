package cli

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/watchdog"
)

// heldVar is the environment variable that tells a command all locks that it runs under, the outermost first. It ends with the
// hold of the innermost stile run, so that what stands before that says which commands are parts of which.
const heldVar = "STILE_HELD"

// held is a lock that is held for a command.
type held struct {
	Name  string `json:"name"`
	Token uint64 `json:"token,string"`
	Owner string `json:"owner"`
}

// heldAround returns the locks that this process runs under.
func heldAround() []held {
	var all []held
	if json.Unmarshal([]byte(os.Getenv(heldVar)), &all) != nil {
		return nil // nobody has told, or it was not us
	}
	return all
}

// within returns the value of heldVar for the command that h is held for, and the beginning of it that those who run under that
// command inherit: all but the closing bracket.
func (h held) within() (value, mark string) {
	b, err := json.Marshal(h)
	if err != nil {
		panic(err) // strings and a number
	}
	mark = "[" + string(b)
	if around := os.Getenv(heldVar); len(heldAround()) > 0 {
		mark = strings.TrimSuffix(strings.TrimSpace(around), "]") + "," + string(b)
	}
	return mark + "]", mark
}

// holds reports whether it is this hold that a lock is held by.
func (h held) holds(line stile.Line) bool {
	return line.Name == h.Name && h.Token != 0 && slices.ContainsFunc(line.Holders, func(e stile.Entry) bool {
		return e.Token == h.Token && e.Owner.String() == h.Owner
	})
}

// releaseOrphaned is the [watchdog.Release] of a lock in a store. It goes on trying until ctx ends.
func releaseOrphaned(ctx context.Context, c watchdog.Charge, safe <-chan struct{}) {
	_ = os.Chdir(c.Dir) // what it is not needed for works without
	os.Clearenv()
	for _, v := range c.Env {
		name, value, _ := strings.Cut(v, "=")
		_ = os.Setenv(name, value) // within this process: others see the environment it was started with
	}
	for tryReleaseOrphaned(ctx, c, safe) != nil {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

func tryReleaseOrphaned(ctx context.Context, c watchdog.Charge, safe <-chan struct{}) error {
	opened, err := openRunning(ctx, choice{url: c.URL})
	if err != nil {
		return err
	}
	return withClientOn(ctx, opened, func(client *stile.Client) error {
		select {
		case <-safe:
		case <-ctx.Done():
			return ctx.Err()
		}
		// A token tells one entry from all others for as long as the store keeps its data. A store that has lost some may have
		// given the token to somebody else by now.
		line, err := client.Line(ctx, c.Name)
		if err != nil || !(held{c.Name, c.Token, c.Owner}).holds(line) {
			return err
		}
		_, err = client.Break(ctx, c.Name, c.Token)
		if errors.Is(err, stile.ErrGone) {
			return nil
		}
		return err
	})
}
