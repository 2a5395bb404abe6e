package guard_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/guardtest"
)

func TestForgetful(t *testing.T) {
	t.Parallel()
	guardtest.Tokens(t, &guard.Forgetful{})
}

func TestCheckToken(t *testing.T) {
	t.Parallel()
	for token, ok := range map[uint64]bool{0: false, 1: true, math.MaxInt64: true, math.MaxInt64 + 1: false, math.MaxUint64: false} {
		err := guard.CheckToken("orders", token)
		if ok && err != nil || !ok && (!errors.Is(err, guard.ErrBadToken) || !strings.Contains(err.Error(), `"orders"`)) {
			t.Errorf("CheckToken(%d): got %v, want an error: %v", token, err, !ok)
		}
	}
}

func TestStaleError(t *testing.T) {
	t.Parallel()
	err := error(&guard.StaleError{Resource: "orders", Token: 5, Newest: 6})
	if !errors.Is(err, guard.ErrStale) || errors.Is(err, guard.ErrBadToken) {
		t.Error("a StaleError matches not only ErrStale, or not that")
	}
	for _, part := range []string{`"orders"`, "5", "6", "stale fencing token", "the lock is lost"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got %q, want %q in it", err, part)
		}
	}
}
