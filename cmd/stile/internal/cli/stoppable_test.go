package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// hasty is a store that may end its sessions early, as ZooKeeper may.
type hasty struct{ store.Store }

func (h hasty) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	session, err := h.Store.Open(ctx, opts)
	return hastySession{session}, err
}

type hastySession struct{ store.Session }

func (s hastySession) Terms() store.Terms {
	granted := s.Session.Terms()
	granted.Slack = granted.TTL / 3
	return granted
}

// When a renewal is not answered another server must have a chance, before the command is told to end.
func TestACommandIsNotToldToEndBeforeAServerThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, st := range []store.Store{memstore.New(), hasty{memstore.New()}} {
		for _, ttl := range []time.Duration{time.Second, 15 * time.Second, 5 * time.Minute} {
			s := &stoppable{Store: st, killAfter: usualKillAfter(ttl)}
			session, err := s.Open(t.Context(), store.SessionOptions{TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			terms := keeper.TermsFor(session.Terms())
			told := terms.Valid - time.Duration(s.fitting.Load()) - busyTime(ttl)
			asked := terms.Every + terms.Attempt + terms.Retry
			if room := told - asked; room < ttl/20 {
				t.Errorf("%T, TTL %v: the command is told to end %v after a confirmation, and the second request goes out after %v",
					st, ttl, told, asked)
			}
		}
	}
}

func TestAKillAfterThatTheStoreLeavesNoTimeForIsRefused(t *testing.T) {
	t.Parallel()
	const ttl = 15 * time.Second
	open := func(st store.Store, killAfter time.Duration) (time.Duration, error) {
		s := &stoppable{Store: st, killAfter: killAfter, asked: true}
		_, err := s.Open(t.Context(), store.SessionOptions{TTL: ttl})
		return time.Duration(s.fitting.Load()), err
	}
	for _, tt := range []struct {
		st      store.Store
		longest time.Duration
	}{
		{memstore.New(), 5625 * time.Millisecond},
		{hasty{memstore.New()}, 3750 * time.Millisecond},
	} {
		if got, err := open(tt.st, tt.longest); err != nil || got != tt.longest {
			t.Errorf("%T: the longest possible: %v, %v", tt.st, got, err)
		}
		if _, err := open(tt.st, tt.longest+1); err == nil || !strings.Contains(err.Error(), tt.longest.String()) {
			t.Errorf("%T: more than the longest possible, %v: %v", tt.st, tt.longest, err)
		}
	}
}
