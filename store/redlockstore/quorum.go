package redlockstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store/internal/attempts"
)

var (
	errStrange = errors.New("unexpected answer")
	errSilent  = errors.New("no answer")
)

// tally is what has been heard from the masters.
type tally struct {
	masters []*master
	quorum  int
	heard   []bool
	errs    []error
}

func (s *Store) newTally() *tally {
	n := len(s.masters)
	return &tally{masters: s.masters, quorum: s.quorum, heard: make([]bool, n), errs: make([]error, n)}
}

// note notes that a master has answered, or why it has not.
func (t *tally) note(m *master, err error) { t.heard[m.number], t.errs[m.number] = true, err }

// answered counts the masters that have answered.
func (t *tally) answered() (n int) {
	for i, heard := range t.heard {
		if heard && t.errs[i] == nil {
			n++
		}
	}
	return n
}

// failed counts the masters that have not, and will not.
func (t *tally) failed() (n int) {
	for _, err := range t.errs {
		if err != nil {
			n++
		}
	}
	return n
}

// all reports whether every master has answered or failed to.
func (t *tally) all() bool { return !slices.Contains(t.heard, false) }

// err returns the error that says who has not answered.
func (t *tally) err() error {
	q := &quorumError{answered: t.answered(), all: len(t.masters)}
	for i, m := range t.masters {
		err := t.errs[i]
		if !t.heard[i] {
			err = errSilent
			if why := m.state(); why != nil {
				err = why
			}
		}
		if err != nil {
			q.errs = append(q.errs, fmt.Errorf("%s: %w", m.addr, err))
		}
	}
	return q
}

// quorumError says that no majority has answered as it should.
type quorumError struct {
	answered, all int
	errs          []error // of the others
}

// Error says which masters have not answered, and why.
func (e *quorumError) Error() string {
	texts := []string{fmt.Sprintf("no majority: %d of %d masters answered", e.answered, e.all)}
	for _, err := range e.errs {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns why the masters have not answered.
func (e *quorumError) Unwrap() []error { return e.errs }

// answer is what one master has answered to a question that all were asked.
type answer struct {
	master *master
	reply  rueidis.RedisMessage
	err    error
}

// poll asks all masters at once. Each answer arrives once, those of silent masters when they are given up.
func (s *Store) poll(ctx context.Context, script *rueidis.Lua, keys, args []string) <-chan answer {
	answers := make(chan answer, len(s.masters))
	for _, m := range s.masters {
		ask := func() {
			reply, err := m.ask(ctx, script, keys, args)
			answers <- answer{m, reply, err}
		}
		if !s.work.Start(ask) {
			answers <- answer{master: m, err: errClosed}
		}
	}
	return answers
}

// How long the other masters are waited for when a majority has answered, and there is an answer without them. Who reads
// waits longer: what a majority has cannot be told from what a minority has if the master that knows was just slow.
const (
	straggle       = 20 * time.Millisecond
	straggleToRead = 10 * straggle
)

// mostUsual is the longest that [Store.usual] returns.
const mostUsual = 500 * time.Millisecond

// usual is how long the other masters are waited for when a majority has answered and there is none: twice as long as the
// slowest takes, and a little more, but no longer than half a second. One that hangs is known by what it took before.
func (s *Store) usual() time.Duration {
	slowest := time.Duration(0)
	for _, m := range s.masters {
		m.mu.Lock()
		slowest = max(slowest, m.pace.least)
		m.mu.Unlock()
	}
	return min(2*slowest+5*time.Millisecond, mostUsual)
}

// ask asks all masters, and returns the answers: a majority of them at least, and those that come so soon after.
func (s *Store) ask(ctx context.Context, soon time.Duration, script *rueidis.Lua, keys, args []string) ([]answer, error) {
	var good []answer
	heard := s.newTally()
	answers := s.poll(ctx, script, keys, args)
	var late <-chan time.Time
	for !heard.all() {
		select {
		case a := <-answers:
			heard.note(a.master, a.err)
			if a.err == nil {
				good = append(good, a)
			}
		case <-late:
			return good, nil
		case <-ctx.Done():
			return nil, attempts.EndedBy(ctx, heard.err())
		}
		if len(good) == s.quorum && late == nil {
			late = time.After(soon)
		}
	}
	if len(good) < s.quorum {
		return nil, heard.err()
	}
	return good, nil
}

func isOne(reply rueidis.RedisMessage) (bool, error) {
	n, err := reply.AsInt64()
	if err != nil {
		return false, fmt.Errorf("%w: %w", errStrange, err)
	}
	return n == 1, nil
}

// millis writes a duration in milliseconds, rounded up, as scripts take it.
func millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
