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
	errUnexpectedReply = errors.New("unexpected reply")
	errNoReply         = errors.New("no answer")
)

// tally records which masters have answered a request, and which have failed.
type tally struct {
	masters []*master
	quorum  int
	done    []bool
	errs    []error
}

func (s *Store) newTally() *tally {
	n := len(s.masters)
	return &tally{masters: s.masters, quorum: s.quorum, done: make([]bool, n), errs: make([]error, n)}
}

// record records that a master has answered (err is nil) or failed.
func (t *tally) record(m *master, err error) { t.done[m.number], t.errs[m.number] = true, err }

// answered counts the masters that have answered.
func (t *tally) answered() (n int) {
	for i, done := range t.done {
		if done && t.errs[i] == nil {
			n++
		}
	}
	return n
}

// failed counts the masters that have failed.
func (t *tally) failed() (n int) {
	for _, err := range t.errs {
		if err != nil {
			n++
		}
	}
	return n
}

// all reports whether every master has answered or failed.
func (t *tally) all() bool { return !slices.Contains(t.done, false) }

// err returns the error that names the masters without an answer.
func (t *tally) err() error {
	q := &quorumError{answered: t.answered(), all: len(t.masters)}
	for i, m := range t.masters {
		err := t.errs[i]
		if !t.done[i] {
			err = errNoReply
			if why := m.connErr(); why != nil {
				err = why
			}
		}
		if err != nil {
			q.errs = append(q.errs, fmt.Errorf("%s: %w", m.addr, err))
		}
	}
	return q
}

// quorumError means that no majority has answered as it should.
type quorumError struct {
	answered, all int
	errs          []error // of the masters without an answer
}

// Error names the masters without an answer, and why.
func (e *quorumError) Error() string {
	texts := []string{fmt.Sprintf("no majority: %d of %d masters answered", e.answered, e.all)}
	for _, err := range e.errs {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors of the masters without an answer.
func (e *quorumError) Unwrap() []error { return e.errs }

// answer is one master's answer to a request that was sent to all.
type answer struct {
	master *master
	reply  rueidis.RedisMessage
	err    error
}

// askAll sends a request to all masters at once. The channel receives one answer for each master. A
// silent master's answer is an error, after its timeout.
func (s *Store) askAll(ctx context.Context, script *rueidis.Lua, keys, args []string) <-chan answer {
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

// stragglerWait and readStragglerWait are how long to wait for the other masters once a majority
// has answered and the outcome is known. Reads wait longer: if the one master that makes the
// difference is only slow, a lock that a majority has looks like one that a minority has.
const (
	stragglerWait     = 20 * time.Millisecond
	readStragglerWait = 10 * stragglerWait
)

// maxOutcomeWait bounds [Store.outcomeWait].
const maxOutcomeWait = 500 * time.Millisecond

// outcomeWait returns how long to wait for the other masters once a majority has answered and the
// outcome depends on them: twice the latency of the slowest master and a little more, at most half
// a second. For a master that hangs the latency before that counts.
func (s *Store) outcomeWait() time.Duration {
	slowest := time.Duration(0)
	for _, m := range s.masters {
		m.mu.Lock()
		slowest = max(slowest, m.latency.min)
		m.mu.Unlock()
	}
	return min(2*slowest+5*time.Millisecond, maxOutcomeWait)
}

// askMajority sends a request to all masters and returns at least a majority of the answers, and
// those that arrive within wait after that.
func (s *Store) askMajority(ctx context.Context, wait time.Duration, script *rueidis.Lua, keys, args []string) ([]answer, error) {
	var good []answer
	replies := s.newTally()
	answers := s.askAll(ctx, script, keys, args)
	var timeout <-chan time.Time
	for !replies.all() {
		select {
		case a := <-answers:
			replies.record(a.master, a.err)
			if a.err == nil {
				good = append(good, a)
			}
		case <-timeout:
			return good, nil
		case <-ctx.Done():
			return nil, attempts.WithContextErr(ctx, replies.err())
		}
		if len(good) == s.quorum && timeout == nil {
			timeout = time.After(wait)
		}
	}
	if len(good) < s.quorum {
		return nil, replies.err()
	}
	return good, nil
}

func parseBool(reply rueidis.RedisMessage) (bool, error) {
	n, err := reply.AsInt64()
	if err != nil {
		return false, fmt.Errorf("%w: %w", errUnexpectedReply, err)
	}
	return n == 1, nil
}

// millis formats a duration in milliseconds for a script, rounded up.
func millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
