package attempts_test

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
)

var (
	errRefused = errors.New("request refused")
	errCut     = errors.New("connection reset")
	errDial    = &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded} // as if the deadline of the connection had passed
	errGone    = errors.New("the session is gone")
)

func refused(err error) bool { return errors.Is(err, errRefused) }

const firstPause = 20 * time.Millisecond

// untilAnswered calls attempts.UntilAnswered with fixed arguments.
func untilAnswered(ctx context.Context, request func(context.Context) error) error {
	return attempts.UntilAnswered(ctx, firstPause, refused, request)
}

// script is a server that gives the answers in order, and repeats the last one.
type script struct {
	answers []func(context.Context) error
	begun   []time.Duration // start of each attempt, relative to the first
	first   time.Time
}

func (s *script) request(ctx context.Context) error {
	if s.begun == nil {
		s.first = time.Now()
	}
	s.begun = append(s.begun, time.Since(s.first))
	return s.answers[min(len(s.begun), len(s.answers))-1](ctx)
}

// answering returns an answer that is given at once.
func answering(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

// silent is a server that does not answer.
func silent(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestUntilAnswered_returnsAnswer(t *testing.T) {
	for name, answer := range map[string]error{"success": nil, "refusal": errRefused} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{answers: []func(context.Context) error{answering(errCut), silent, answering(answer)}}
				if err := untilAnswered(t.Context(), s.request); err != answer {
					t.Errorf("got %v", err)
				}
				if len(s.begun) != 3 {
					t.Errorf("got %d attempts, want 3", len(s.begun))
				}
			})
		})
	}
}

// An answer counts even if ctx has ended when it arrives: the request was carried out, or it was
// not.
func TestUntilAnswered_answerAfterContextEnded(t *testing.T) {
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

func TestUntilAnswered_attemptsGetLonger(t *testing.T) {
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

// A server that takes three seconds is sent few requests twice, and later ones once.
func TestPace_slowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pace attempts.Pace
		slow := func(ctx context.Context) error {
			select {
			case <-time.After(3 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		var begun []int
		for range 3 {
			n := 0
			err := pace.UntilAnswered(t.Context(), firstPause, refused, func(ctx context.Context) error {
				n++
				return slow(ctx)
			})
			if err != nil {
				t.Fatal(err)
			}
			begun = append(begun, n)
		}
		if want := []int{5, 1, 1}; !slices.Equal(begun, want) { // timeouts of 0.5, 0.5, 1, 2 and 4 s
			t.Errorf("got %v attempts, want %v", begun, want)
		}
		if got := pace.Timeout(); got != attempts.MaxTimeout {
			t.Errorf("got a timeout of %v, want the maximum", got)
		}
	})
}

// After the server has become fast again the first timeout goes back to the minimum.
func TestPace_fastAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pace attempts.Pace
		request := func(took time.Duration) func(context.Context) error {
			return func(context.Context) error { time.Sleep(took); return nil }
		}
		for range 3 {
			_ = pace.UntilAnswered(t.Context(), firstPause, refused, request(400*time.Millisecond))
		}
		if got, want := pace.Timeout(), 1600*time.Millisecond; got != want {
			t.Errorf("requests of 400 ms: got a timeout of %v, want %v", got, want)
		}
		for range 20 {
			_ = pace.UntilAnswered(t.Context(), firstPause, refused, request(time.Millisecond))
		}
		if got := pace.Timeout(); got != attempts.MinTimeout {
			t.Errorf("requests of 1 ms: got a timeout of %v, want %v", got, attempts.MinTimeout)
		}
	})
}

// With two places, two of five requests are under way. The others wait for a place. Their timeouts begin when they
// get it, so none is repeated.
func TestPace_places(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := attempts.NewPace(2)
		start := time.Now()
		const took = attempts.MinTimeout - time.Millisecond
		var mu sync.Mutex
		var begun []time.Duration
		var calls sync.WaitGroup
		for range 5 {
			calls.Go(func() {
				err := pace.UntilAnswered(t.Context(), firstPause, refused, func(ctx context.Context) error {
					mu.Lock()
					begun = append(begun, time.Since(start))
					mu.Unlock()
					attempts.Sleep(ctx, took)
					return ctx.Err()
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		if want := []time.Duration{0, 0, took, took, 2 * took}; !slices.Equal(begun, want) {
			t.Errorf("attempts began at %v; want %v", begun, want)
		}
	})
}

// takePlace sends a request that is answered when answer is called.
func takePlace(t *testing.T, pace *attempts.Pace) (answer func()) {
	waits := make(chan struct{})
	var call sync.WaitGroup
	call.Go(func() {
		err := pace.UntilAnswered(t.Context(), firstPause, refused, func(context.Context) error {
			<-waits
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return func() { close(waits); call.Wait() }
}

// The timeout of a request is chosen after its wait, so it suits what earlier requests have found.
func TestPace_slowServerWithPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := attempts.NewPace(1)
		answer := takePlace(t, pace)
		time.AfterFunc(900*time.Millisecond, answer)
		n := 0
		err := pace.UntilAnswered(t.Context(), firstPause, refused, func(ctx context.Context) error {
			n++
			attempts.Sleep(ctx, 3*time.Second)
			return ctx.Err()
		})
		if err != nil || n != 1 {
			t.Errorf("got %d attempts and %v, want one", n, err)
		}
	})
}

// A request has a place while an attempt is under way, and not in the pause after it.
func TestPace_noPlaceDuringPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := attempts.NewPace(1)
		s := &script{answers: []func(context.Context) error{answering(errCut), answering(nil)}}
		var call sync.WaitGroup
		call.Go(func() { _ = pace.UntilAnswered(t.Context(), firstPause, refused, s.request) })
		synctest.Wait() // it pauses
		wantPlace(t, pace, 0)
		call.Wait()
	})
}

// wantPlace checks how long another request waits for its place.
func wantPlace(t *testing.T, pace *attempts.Pace, want time.Duration) {
	t.Helper()
	start := time.Now()
	if err := pace.UntilAnswered(t.Context(), firstPause, refused, answering(nil)); err != nil {
		t.Error(err)
	}
	if waited := time.Since(start); waited != want {
		t.Errorf("another request waited for %v, want %v", waited, want)
	}
}

// All places are taken. A request waits until its context ends, and the error says that it was not sent. An urgent
// request is sent at once.
func TestPace_allPlacesTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := attempts.NewPace(1)
		answer := takePlace(t, pace)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second/2, errGone)
		defer cancel()
		err := pace.UntilAnswered(ctx, firstPause, refused, func(context.Context) error {
			t.Error("a request without a place was sent")
			return nil
		})
		if !errors.Is(err, errGone) || !strings.Contains(err.Error(), "was not sent") {
			t.Errorf("got %v, want the cause of the context, and that the request was not sent", err)
		}
		start := time.Now()
		err = pace.UntilAnsweredUrgent(t.Context(), firstPause, refused, answering(errRefused))
		if waited := time.Since(start); err != errRefused || waited != 0 {
			t.Errorf("urgent: got %v after %v, want the answer at once", err, waited)
		}
		answer()
		wantPlace(t, pace, 0)
	})
}

// A request that may take ten seconds waits for its place for twenty. Its time begins when it has it.
func TestPace_waitForPlaceDoesNotCount(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer func(context.Context) error
		want   error
		after  time.Duration
	}{
		{"then it is answered", answering(nil), nil, 20 * time.Second},
		{"then the server is silent", silent, errGone, 30 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pace := attempts.NewPace(1)
				answer := takePlace(t, pace)
				time.AfterFunc(20*time.Second, answer)
				start := time.Now()
				err := pace.UntilAnsweredWithin(t.Context(), 10*time.Second, errGone, firstPause, refused, tt.answer)
				if took := time.Since(start); !errors.Is(err, tt.want) || took != tt.after {
					t.Errorf("got %v after %v, want %v after %v", err, took, tt.want, tt.after)
				}
			})
		})
	}
}

// A server is silent. A request keeps its place until its attempt times out.
func TestPace_silentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := attempts.NewPace(1)
		ctx, cancel := context.WithCancel(t.Context())
		var call sync.WaitGroup
		call.Go(func() { _ = pace.UntilAnswered(ctx, firstPause, refused, silent) })
		synctest.Wait()
		wantPlace(t, pace, attempts.MinTimeout)
		cancel()
		call.Wait()
	})
}

// A request that panics gives its place back.
func TestPace_panic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := attempts.NewPace(1)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was not passed on")
				}
			}()
			_ = pace.UntilAnswered(t.Context(), firstPause, refused, func(context.Context) error { panic("in an interceptor") })
		}()
		wantPlace(t, pace, 0)
	})
}

func TestUntilAnswered_pausesGetLonger(t *testing.T) {
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

func TestUntilAnswered_noPauseAfterSlowFailure(t *testing.T) {
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

func TestUntilAnswered_noAttemptIfContextHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errGone)
	err := untilAnswered(ctx, func(context.Context) error {
		t.Error("the request was sent")
		return nil
	})
	if err != errGone {
		t.Errorf("got %v, want only the cause", err)
	}
}

func TestUntilAnswered_errorHasCauseAndLastError(t *testing.T) {
	for name, test := range map[string]struct {
		answers []func(context.Context) error
		want    string
	}{
		"in a pause":           {[]func(context.Context) error{answering(errCut)}, "the session is gone (last error: connection reset)"},
		"in a later attempt":   {[]func(context.Context) error{answering(errCut), silent}, "the session is gone (last error: connection reset)"},
		"in the first attempt": {[]func(context.Context) error{silent}, "the session is gone (last error: context canceled)"},
		"in the first attempt, with another error": {[]func(context.Context) error{func(ctx context.Context) error { <-ctx.Done(); return errCut }}, "the session is gone (last error: connection reset)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				const when = 310 * time.Millisecond // between two attempts
				time.AfterFunc(when, func() { cancel(errGone) })
				s := &script{answers: test.answers}
				start := time.Now()
				err := untilAnswered(ctx, s.request)
				if took := time.Since(start); took != when {
					t.Errorf("returned after %v, want %v", took, when)
				}
				if err.Error() != test.want {
					t.Errorf("got %q; want %q", err, test.want)
				}
			})
		})
	}
}

// A reason that the server gave says more than that the attempts after it had no answer in time, or no connection.
func TestUntilAnswered_errorHasReasonFromBeforeTimeouts(t *testing.T) {
	for name, later := range map[string]func(context.Context) error{
		"no answer": silent, "no connection": answering(errDial),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				s := &script{answers: []func(context.Context) error{silent, answering(errCut), later}}
				err := untilAnswered(ctx, s.request)
				check(t, err, "context deadline exceeded (last error: connection reset)", []error{context.DeadlineExceeded, errCut})
				if len(s.begun) < 4 {
					t.Errorf("got %d attempts, want more than one that timed out after the error", len(s.begun))
				}
			})
		})
	}
}

func TestGaveUp(t *testing.T) {
	for name, test := range map[string]struct {
		last    error
		want    string
		matches []error
	}{
		"no earlier error":           {nil, "the session is gone", []error{errGone}},
		"earlier error":              {errCut, "the session is gone (last error: connection reset)", []error{errGone, errCut}},
		"earlier error is the cause": {errGone, "the session is gone", []error{errGone}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(errGone)
			check(t, attempts.GaveUp(ctx, test.last), test.want, test.matches)
		})
	}
}

func TestWithContextErr(t *testing.T) {
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
		"context not ended":        {t.Context(), errCut, "connection reset", []error{errCut}},
		"context ended":            {ended, errCut, "context canceled: connection reset", []error{context.Canceled, errCut}},
		"error matches it already": {ended, canceledToo, canceledToo.Error(), []error{context.Canceled, errCut}},
		"no error":                 {ended, nil, "context canceled", []error{context.Canceled}},
		"own context timed out":    {ended, context.DeadlineExceeded, "context canceled", []error{context.Canceled}},
		"own context canceled":     {late, context.Canceled, "context deadline exceeded", []error{context.DeadlineExceeded}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, attempts.WithContextErr(test.ctx, test.err), test.want, test.matches)
		})
	}
	if err := attempts.WithContextErr(t.Context(), nil); err != nil {
		t.Errorf("got %v, want nil", err)
	}
}

func check(t *testing.T, err error, text string, matches []error) {
	t.Helper()
	if err.Error() != text {
		t.Errorf("got %q, want %q", err, text)
	}
	for _, m := range matches {
		if !errors.Is(err, m) {
			t.Errorf("%q does not match %q", err, m)
		}
	}
}

func TestSleep_endsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		attempts.Sleep(ctx, 59*time.Second)
		if took := time.Since(start); took != 59*time.Second {
			t.Errorf("slept for %v", took)
		}
		attempts.Sleep(ctx, time.Hour)
		if took := time.Since(start); took != time.Minute {
			t.Errorf("both sleeps took %v, want 1m", took)
		}
	})
}

func TestSleep_zeroOrNegative(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		attempts.Sleep(t.Context(), 0)
		attempts.Sleep(t.Context(), -time.Hour)
		if took := time.Since(start); took != 0 {
			t.Errorf("slept for %v", took)
		}
	})
}

func TestWithin_endsWithTheFirst(t *testing.T) {
	errCaller := errors.New("the caller gave up")
	for name, test := range map[string]struct {
		first, second error // in the order in which they end
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
					t.Fatal("ended too early")
				}
				ends := map[error]context.CancelCauseFunc{errCaller: endCtx, errGone: endLife}
				ends[test.first](test.first)
				synctest.Wait()
				ends[test.second](test.second)
				synctest.Wait()
				if got := context.Cause(within); got != test.want {
					t.Errorf("got cause %v, want %v", got, test.want)
				}
			})
		})
	}
}

func TestWithin_cancelEndsNothingElse(t *testing.T) {
	ctx, endCtx := context.WithCancel(t.Context())
	defer endCtx()
	life, endLife := context.WithCancel(t.Context())
	defer endLife()
	within, cancel := attempts.Within(ctx, life)
	cancel()
	if within.Err() == nil || ctx.Err() != nil || life.Err() != nil {
		t.Errorf("within: %v, ctx: %v, life: %v; want only within to have ended", within.Err(), ctx.Err(), life.Err())
	}
}

// A session makes many calls, so a call must leave nothing registered at the session's context.
func TestWithin_cancelUnregistersFromSession(t *testing.T) {
	life := &countedLife{Context: t.Context(), done: make(chan struct{})}
	_, cancel := attempts.Within(t.Context(), life)
	if life.waiting != 1 {
		t.Fatalf("got %d registered functions, want 1", life.waiting)
	}
	cancel()
	if life.waiting != 0 {
		t.Error("a function is registered after cancel")
	}
}

// countedLife counts the functions registered by [context.AfterFunc].
type countedLife struct {
	context.Context
	done    chan struct{} // differs from the embedded context's, so AfterFunc is used
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
			t.Error("got false after success")
		}
		if took := time.Since(start); n != 4 || took != 3*time.Second {
			t.Errorf("%d calls took %v, want 4 calls with three pauses of 1s", n, took)
		}
	})
}

func TestUntilDone_endsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		start, n := time.Now(), 0
		done := attempts.UntilDone(ctx, time.Minute, func() error { n++; return errors.New("never") })
		if took := time.Since(start); done || n != 2 || took != 90*time.Second {
			t.Errorf("got %t after %d calls and %v, want false after 2 calls and 1m30s", done, n, took)
		}
	})
}

func TestKeepUp_pausesGetLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := time.Now()
		var pauses []time.Duration
		refused := errors.New("refused")
		err := attempts.KeepUp(t.Context(), 100*time.Millisecond, func() error {
			pauses = append(pauses, time.Since(last))
			switch len(pauses) {
			case 6:
				time.Sleep(time.Minute) // long enough to reset the pause
			case 7:
				return refused
			}
			last = time.Now()
			return nil
		})
		ms := time.Millisecond
		want := []time.Duration{0, 100 * ms, 200 * ms, 400 * ms, attempts.MaxPause, attempts.MaxPause, 100 * ms}
		if err != refused || !slices.Equal(pauses, want) {
			t.Errorf("got pauses %v, want %v; error %v", pauses, want, err)
		}
	})
}

func TestKeepUp_endsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, cancel)
		err := attempts.KeepUp(ctx, time.Millisecond, func() error { return nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	})
}
