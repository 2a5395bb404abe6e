package attempts_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
)

var (
	errRefused = errors.New("the server says no")
	errCut     = errors.New("connection reset")
	errGone    = errors.New("the session is gone")
)

func refused(err error) bool { return errors.Is(err, errRefused) }

const firstPause = 20 * time.Millisecond

// untilAnswered is what is tested, with the arguments that do not matter.
func untilAnswered(ctx context.Context, request func(context.Context) error) error {
	return attempts.UntilAnswered(ctx, firstPause, refused, request)
}

// script is a server that gives one answer after the other, the last one again and again.
type script struct {
	answers []func(context.Context) error
	begun   []time.Duration // when there were attempts, from the first
	first   time.Time
}

func (s *script) request(ctx context.Context) error {
	if s.begun == nil {
		s.first = time.Now()
	}
	s.begun = append(s.begun, time.Since(s.first))
	return s.answers[min(len(s.begun), len(s.answers))-1](ctx)
}

// answering answers at once.
func answering(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

// silent is a server that does not answer.
func silent(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestAnAnswerEndsIt(t *testing.T) {
	for name, answer := range map[string]error{"success": nil, "refusal": errRefused} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{answers: []func(context.Context) error{answering(errCut), silent, answering(answer)}}
				if err := untilAnswered(t.Context(), s.request); err != answer {
					t.Errorf("got %v", err)
				}
				if len(s.begun) != 3 {
					t.Errorf("%d attempts, and the third was answered", len(s.begun))
				}
			})
		})
	}
}

// An answer is an answer, even if it comes when nobody has time any more: the request was carried out, or it was not.
func TestAnAnswerCountsAlsoAfterTheEnd(t *testing.T) {
	for name, answer := range map[string]error{"success": nil, "refusal": errRefused} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			err := untilAnswered(ctx, func(context.Context) error {
				cancel()
				return answer
			})
			if err != answer {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestPatienceGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		s := &script{answers: []func(context.Context) error{silent}}
		_ = untilAnswered(ctx, s.request)

		const ms, s1 = time.Millisecond, time.Second
		want := []time.Duration{0, 500 * ms, 1000 * ms, 2 * s1, 4 * s1, 8 * s1, 13 * s1, 18 * s1}
		if !slices.Equal(s.begun, want) {
			t.Errorf("attempts began at %v; want %v", s.begun, want)
		}
	})
}

func TestPausesGrowWhereAttemptsFailAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		s := &script{answers: []func(context.Context) error{answering(errCut)}}
		_ = untilAnswered(ctx, s.request)

		const ms = time.Millisecond
		want := []time.Duration{0, 20 * ms, 60 * ms, 140 * ms, 300 * ms, 620 * ms, 1120 * ms, 1620 * ms}
		if !slices.Equal(s.begun, want) {
			t.Errorf("attempts began at %v; want %v", s.begun, want)
		}
	})
}

func TestAFailureThatTookLongerThanThePauseIsFollowedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(context.Context) error {
			time.Sleep(firstPause)
			return errCut
		}
		s := &script{answers: []func(context.Context) error{slow, answering(nil)}}
		if err := untilAnswered(t.Context(), s.request); err != nil {
			t.Fatal(err)
		}
		if want := []time.Duration{0, firstPause}; !slices.Equal(s.begun, want) {
			t.Errorf("attempts began at %v; want %v", s.begun, want)
		}
	})
}

func TestNothingIsAskedOnceTheContextHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errGone)
	err := untilAnswered(ctx, func(context.Context) error {
		t.Error("there was an attempt")
		return nil
	})
	if err != errGone {
		t.Errorf("got %v; want the cause alone", err)
	}
}

func TestWhoGivesUpHearsWhyAndWhatHadGoneWrong(t *testing.T) {
	for name, test := range map[string]struct {
		answers []func(context.Context) error
		want    string
	}{
		"in a pause":           {[]func(context.Context) error{answering(errCut)}, "the session is gone (last attempt: connection reset)"},
		"in a later attempt":   {[]func(context.Context) error{answering(errCut), silent}, "the session is gone (last attempt: connection reset)"},
		"in the first attempt": {[]func(context.Context) error{silent}, "the session is gone (last attempt: context canceled)"},
		"in the first attempt, which fails otherwise": {[]func(context.Context) error{func(ctx context.Context) error { <-ctx.Done(); return errCut }}, "the session is gone (last attempt: connection reset)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				const when = 310 * time.Millisecond // nothing else happens then
				time.AfterFunc(when, func() { cancel(errGone) })
				s := &script{answers: test.answers}
				start := time.Now()
				err := untilAnswered(ctx, s.request)
				if took := time.Since(start); took != when {
					t.Errorf("gave up after %v; the context ended after %v", took, when)
				}
				if err.Error() != test.want {
					t.Errorf("got %q; want %q", err, test.want)
				}
			})
		})
	}
}

func TestTheErrorOfARequestThatWasGivenUp(t *testing.T) {
	for name, test := range map[string]struct {
		last    error
		want    string
		matches []error
	}{
		"nothing had gone wrong":      {nil, "the session is gone", []error{errGone}},
		"something had":               {errCut, "the session is gone (last attempt: connection reset)", []error{errGone, errCut}},
		"the attempt says why itself": {errGone, "the session is gone", []error{errGone}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(errGone)
			check(t, attempts.GaveUp(ctx, test.last), test.want, test.matches)
		})
	}
}

func TestTheErrorOfACallMatchesTheEndOfItsContext(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	late, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	canceledToo := errors.Join(context.Canceled, errCut)
	for name, test := range map[string]struct {
		ctx     context.Context
		err     error
		want    string
		matches []error
	}{
		"the context has not ended": {t.Context(), errCut, "connection reset", []error{errCut}},
		"it has":                    {ended, errCut, "context canceled: connection reset", []error{context.Canceled, errCut}},
		"the error says so":         {ended, canceledToo, canceledToo.Error(), []error{context.Canceled, errCut}},
		"there is no error":         {ended, nil, "context canceled", []error{context.Canceled}},
		"a context of its own has":  {ended, context.DeadlineExceeded, "context canceled", []error{context.Canceled}},
		"its own was canceled":      {late, context.Canceled, "context deadline exceeded", []error{context.DeadlineExceeded}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, attempts.EndedBy(test.ctx, test.err), test.want, test.matches)
		})
	}
	if err := attempts.EndedBy(t.Context(), nil); err != nil {
		t.Errorf("neither has gone wrong, and the error is %v", err)
	}
}

func check(t *testing.T, err error, text string, matches []error) {
	t.Helper()
	if err.Error() != text {
		t.Errorf("the error is %q; want %q", err, text)
	}
	for _, m := range matches {
		if !errors.Is(err, m) {
			t.Errorf("%q does not match %q", err, m)
		}
	}
}

func TestRestEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		attempts.Rest(ctx, 59*time.Second)
		if took := time.Since(start); took != 59*time.Second {
			t.Errorf("rested for %v", took)
		}
		attempts.Rest(ctx, time.Hour)
		if took := time.Since(start); took != time.Minute {
			t.Errorf("rested until %v after the beginning, and the context has ended after a minute", took)
		}
	})
}

func TestNobodyRestsForNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		attempts.Rest(t.Context(), 0)
		attempts.Rest(t.Context(), -time.Hour)
		if took := time.Since(start); took != 0 {
			t.Errorf("rested for %v", took)
		}
	})
}

func TestWithinEndsWithWhicheverEndsFirst(t *testing.T) {
	errCaller := errors.New("the caller has enough")
	for name, test := range map[string]struct {
		first, second error // which ends first, which later
		want          error
	}{
		"the caller":  {errCaller, errGone, errCaller},
		"the session": {errGone, errCaller, errGone},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, endCtx := context.WithCancelCause(t.Context())
				life, endLife := context.WithCancelCause(t.Context())
				within, cancel := attempts.Within(ctx, life)
				defer cancel()
				if within.Err() != nil {
					t.Fatal("ended before either")
				}
				ends := map[error]context.CancelCauseFunc{errCaller: endCtx, errGone: endLife}
				ends[test.first](test.first)
				synctest.Wait()
				ends[test.second](test.second)
				synctest.Wait()
				if got := context.Cause(within); got != test.want {
					t.Errorf("ended because of %v; want %v", got, test.want)
				}
			})
		})
	}
}

func TestWithinEndsWhenItIsCanceledAndEndsNothingElse(t *testing.T) {
	ctx, endCtx := context.WithCancel(t.Context())
	defer endCtx()
	life, endLife := context.WithCancel(t.Context())
	defer endLife()
	within, cancel := attempts.Within(ctx, life)
	cancel()
	if within.Err() == nil || ctx.Err() != nil || life.Err() != nil {
		t.Errorf("within: %v, ctx: %v, life: %v; want only the first to have ended", within.Err(), ctx.Err(), life.Err())
	}
}

// A session lives long, and each of its calls is made within it.
func TestNothingOfWithinStaysBehindInTheSession(t *testing.T) {
	life := &countedLife{Context: t.Context(), done: make(chan struct{})}
	_, cancel := attempts.Within(t.Context(), life)
	if life.waiting != 1 {
		t.Fatalf("%d wait for the session's end; want one", life.waiting)
	}
	cancel()
	if life.waiting != 0 {
		t.Error("the session keeps what was canceled")
	}
}

// countedLife counts those who wait for its end by [context.AfterFunc].
type countedLife struct {
	context.Context
	done    chan struct{} // makes it another context than the one it is made of
	waiting int
}

func (l *countedLife) Done() <-chan struct{} { return l.done }

func (l *countedLife) AfterFunc(func()) (stop func() bool) {
	l.waiting++
	return func() bool {
		l.waiting--
		return true
	}
}

func TestUntilDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, n := time.Now(), 0
		if !attempts.UntilDone(t.Context(), time.Second, func() error {
			if n++; n < 4 {
				return errors.New("not yet")
			}
			return nil
		}) {
			t.Error("it has succeeded, and UntilDone says that it has not")
		}
		if took := time.Since(start); n != 4 || took != 3*time.Second {
			t.Errorf("%d calls took %v, want 4 calls with three pauses of 1s", n, took)
		}
	})
}

func TestUntilDone_endsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		start, n := time.Now(), 0
		done := attempts.UntilDone(ctx, time.Minute, func() error { n++; return errors.New("never") })
		if took := time.Since(start); done || n != 2 || took != 90*time.Second {
			t.Errorf("done %t after %d calls and %v", done, n, took)
		}
	})
}

func TestKeepUp_pausesGrowWhileNothingLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := time.Now()
		var pauses []time.Duration
		refused := errors.New("refused")
		err := attempts.KeepUp(t.Context(), 100*time.Millisecond, func() error {
			pauses = append(pauses, time.Since(last))
			switch len(pauses) {
			case 6:
				time.Sleep(time.Minute) // this one lasts
			case 7:
				return refused
			}
			last = time.Now()
			return nil
		})
		ms := time.Millisecond
		want := []time.Duration{0, 100 * ms, 200 * ms, 400 * ms, attempts.LongestPause, attempts.LongestPause, 100 * ms}
		if err != refused || !slices.Equal(pauses, want) {
			t.Errorf("the pauses were %v, want %v; the error is %v", pauses, want, err)
		}
	})
}

func TestKeepUp_endsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, cancel)
		err := attempts.KeepUp(ctx, time.Millisecond, func() error { return nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
	})
}
