// Package guardtest has the tests that every [guard.Tokens] has to pass.
package guardtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stilelock/stile/guard"
)

// Tokens tests an empty guard.Tokens.
func Tokens(t *testing.T, tokens guard.Tokens) {
	t.Helper()
	t.Run("smaller tokens are refused", func(t *testing.T) {
		const resource = "orders/42"
		for _, step := range []struct {
			token, newest uint64 // newest is set if the token is stale
		}{{5, 0}, {5, 0}, {7, 0}, {6, 7}, {5, 7}, {7, 0}, {1 << 62, 0}, {8, 1 << 62}, {1<<63 - 1, 0}, {1<<63 - 2, 1<<63 - 1}} {
			err := tokens.Raise(t.Context(), resource, step.token)
			if step.newest == 0 {
				if err != nil {
					t.Errorf("token %d: got %v, want it accepted", step.token, err)
				}
				continue
			}
			stale, ok := errors.AsType[*guard.StaleError](err)
			if !ok || !errors.Is(err, guard.ErrStale) || *stale != (guard.StaleError{Resource: resource, Token: step.token, Newest: step.newest}) {
				t.Errorf("token %d: got %v, want it refused because of %d", step.token, err, step.newest)
			}
		}
	})
	t.Run("resources are independent", func(t *testing.T) {
		names := []string{"a", "A", "a ", "a/b", "a.b", "../a", "世", "a\\b", `"a" -- ?`, "%61", "a%", strings.Repeat("世", 170), strings.Repeat("世", 169) + "x"}
		for i, name := range names {
			if err := tokens.Raise(t.Context(), name, uint64(1000-i)); err != nil { // smaller than those before
				t.Errorf("the first token of %q: %v", name, err)
			}
		}
		for i, name := range names {
			if err := tokens.Raise(t.Context(), name, uint64(999-i)); !errors.Is(err, guard.ErrStale) {
				t.Errorf("a smaller token of %q: got %v, want ErrStale", name, err)
			}
		}
	})
	t.Run("tokens that no hold has", func(t *testing.T) {
		for _, token := range []uint64{0, 1 << 63, 1<<64 - 1} {
			if err := tokens.Raise(t.Context(), "bad", token); !errors.Is(err, guard.ErrBadToken) {
				t.Errorf("token %d: got %v, want ErrBadToken", token, err)
			}
		}
		if err := tokens.Raise(t.Context(), "bad", 1); err != nil {
			t.Errorf("a good token after bad ones: %v", err)
		}
	})
	t.Run("at once", func(t *testing.T) {
		// Whatever is accepted after the largest accepted token was, is at least as large.
		var wg sync.WaitGroup
		var accepted atomic.Uint64 // the largest token that was accepted before now
		errs := make(chan error, 400)
		for w := range 4 {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			wg.Go(func() {
				for range 50 {
					before := accepted.Load()
					token := before + 1 + r.Uint64N(10)
					if token > 3 && r.Uint64N(2) == 0 {
						token -= 3
					}
					switch err := tokens.Raise(t.Context(), "at once", token); {
					case err == nil && token < before:
						errs <- fmt.Errorf("token %d was accepted after %d", token, before)
					case err != nil && !errors.Is(err, guard.ErrStale):
						errs <- err
					case err == nil:
						for old := accepted.Load(); token > old && !accepted.CompareAndSwap(old, token); old = accepted.Load() {
						}
					}
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			t.Error(err)
		}
	})
}
