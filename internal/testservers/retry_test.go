package testservers

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, began := errors.New("no answer within 5s"), time.Now()
		got, err := Retry(func() (int, error) {
			if time.Since(began) < time.Minute {
				return 0, slow
			}
			return 1, nil
		})
		if got != 1 || err != nil {
			t.Errorf("got %v, %v, want what was opened after a minute", got, err)
		}
		if _, err := Retry(func() (int, error) { return 0, slow }); err != slow {
			t.Errorf("got error %v, want %v", err, slow)
		}
	})
}
