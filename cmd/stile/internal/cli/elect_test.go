package cli

import (
	"slices"
	"testing"
	"time"
)

func TestPauses(t *testing.T) {
	t.Parallel()
	var p pauses
	var got []time.Duration
	for _, led := range []time.Duration{0, 0, maxPause - 1, 0, 0, 0, 0, maxPause, 0, time.Hour} {
		got = append(got, p.after(led)/time.Second)
	}
	if want := []time.Duration{1, 2, 4, 8, 16, 30, 30, 1, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("got pauses of %d seconds, want %d", got, want)
	}
}
