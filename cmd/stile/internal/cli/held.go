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
	"github.com/stilelock/stile/storeurl"
)

// heldVar is the environment variable with all locks that a command runs under, the outermost
// first. It ends with the hold of the innermost stile run, so its beginning tells which commands
// are parts of which.
const heldVar = "STILE_HELD"

// held is a lock that is held for a command.
type held struct {
	Name  string `json:"name"`
	Token uint64 `json:"token,string"`
	Owner string `json:"owner"`
	// Validity is the reference of the record that says until when; see package validity.
	Validity string `json:"validity,omitempty"`
	// Slot is the slot number; nil for other locks than those of --slots.
	Slot *int `json:"slot,omitempty"`
}

// enclosingLocks returns the locks that this process runs under.
func enclosingLocks() []held {
	var all []held
	if json.Unmarshal([]byte(os.Getenv(heldVar)), &all) != nil {
		return nil // not set, or not by stile
	}
	return all
}

// heldEnv returns the value of heldVar for a command under these locks, and the beginning of that
// value that all processes under the command inherit: everything but the closing bracket.
func heldEnv(holds []held) (value, mark string) {
	b, err := json.Marshal(holds)
	if err != nil {
		panic(err) // cannot happen: strings and numbers
	}
	mark = strings.TrimSuffix(string(b), "]")
	if around := os.Getenv(heldVar); len(enclosingLocks()) > 0 {
		mark = strings.TrimSuffix(strings.TrimSpace(around), "]") + "," + mark[1:]
	}
	return mark + "]", mark
}

// holds reports whether the line's holder is this hold.
func (h held) holds(line stile.Line) bool {
	return line.Name == h.Name && h.Token != 0 && slices.ContainsFunc(line.Holders, func(e stile.Entry) bool {
		return e.Token == h.Token && e.Owner.String() == h.Owner
	})
}

// releaseOrphaned is the [watchdog.Release] for a lock in a store. It retries until ctx ends.
func releaseOrphaned(ctx context.Context, c watchdog.Target, safe <-chan struct{}) {
	_ = os.Chdir(c.Dir) // only relative paths in the URL need it
	os.Clearenv()
	for _, v := range c.Env {
		name, value, _ := strings.Cut(v, "=")
		_ = os.Setenv(name, value) // not visible to other users, unlike the initial environment
	}
	for tryReleaseOrphaned(ctx, c, safe) != nil {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

func tryReleaseOrphaned(ctx context.Context, c watchdog.Target, safe <-chan struct{}) error {
	opened, err := storeurl.Open(ctx, c.URL, nil)
	if err != nil {
		return err
	}
	return withClientOn(ctx, opened, func(client *stile.Client) error {
		select {
		case <-safe:
		case <-ctx.Done():
			return ctx.Err()
		}
		var errs []error
		for _, h := range c.Holds {
			errs = append(errs, breakOrphaned(ctx, client, held{Name: h.Name, Token: h.Token, Owner: h.Owner}))
		}
		return errors.Join(errs...)
	})
}

func breakOrphaned(ctx context.Context, client *stile.Client, h held) error {
	// A token identifies one entry as long as the store keeps its data. A store that has lost data
	// may have given the token to another entry.
	line, err := client.Line(ctx, h.Name)
	if err != nil || !h.holds(line) {
		return err
	}
	_, err = client.Break(ctx, h.Name, h.Token)
	if errors.Is(err, stile.ErrGone) {
		return nil
	}
	return err
}
