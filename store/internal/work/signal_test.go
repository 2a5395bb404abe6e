package work_test

import (
	"testing"

	"github.com/stilelock/stile/store/internal/work"
)

func TestSignal_holdsOne(t *testing.T) {
	s := work.NewSignal()
	isSet := func() bool {
		select {
		case <-s:
			return true
		default:
			return false
		}
	}
	if isSet() {
		t.Error("a new signal is set")
	}
	s.Set()
	s.Set() // never blocks
	if !isSet() || isSet() {
		t.Error("a signal that was set twice: want one wake-up")
	}
	s.Set()
	s.Clear()
	s.Clear() // never blocks either
	if isSet() {
		t.Error("a signal that was cleared is set")
	}
}
