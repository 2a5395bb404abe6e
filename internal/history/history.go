// Package history decides whether a job has to run again. The history of a lock's name is its record in
// the store: for each key, the last success and the last failure of a command. Only a holder of the lock
// writes it, and reads it before. stile once and the adapters for cron libraries write it.
package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stilelock/stile"
)

// MaxKeyBytes is the maximum length of a key.
const MaxKeyBytes = 256

// A History has what is recorded under one name. The zero value is an empty history.
type History struct {
	// Format is the version of the format.
	Format int `json:"stile_once"`
	// Jobs has the last attempts for each key. The key is empty for a job that has none.
	Jobs map[string]Job `json:"jobs"`
}

// A Job has the last attempts for one key. One of them may be missing.
type Job struct {
	Success *Attempt `json:"success,omitempty"`
	Failure *Attempt `json:"failure,omitempty"` // removed by the next success
}

// An Attempt is a run of a command that has ended.
type Attempt struct {
	// Called is when stile was called for it, by the clock of its host.
	Called time.Time `json:"called"`
	// ExitCode is that of the command.
	ExitCode int `json:"exit_code"`
	// Token is that of the hold. It is larger than those of all earlier attempts under the name.
	Token uint64 `json:"token,string"`
	// Owner is who has run it.
	Owner string `json:"owner"`
}

const (
	format = 1
	// maxFailures is how many failures are kept. They matter only to the calls that waited meanwhile.
	maxFailures = 100
	// maxOwnerBytes is how much of an owner is kept.
	maxOwnerBytes = 200
)

// Parse returns the history in a record. An empty record is an empty history.
func Parse(record []byte) (History, error) {
	var h History
	if len(record) == 0 {
		return h, nil
	}
	if err := json.Unmarshal(record, &h); err != nil {
		return History{}, fmt.Errorf("it was not written by stile once: %w", err)
	}
	if h.Format != format {
		return History{}, fmt.Errorf("it was not written by stile once, or by another version of it (format %d)", h.Format)
	}
	for key, job := range h.Jobs {
		if err := job.check(); err != nil {
			return History{}, fmt.Errorf("the entry for the key %q is damaged: %w", key, err)
		}
	}
	return h, nil
}

func (j Job) check() error {
	switch {
	case j.Success != nil && j.Success.ExitCode != 0:
		return fmt.Errorf("a success with the exit code %d", j.Success.ExitCode)
	case j.Failure != nil && (j.Failure.ExitCode < 1 || j.Failure.ExitCode > 255):
		return fmt.Errorf("a failure with the exit code %d", j.Failure.ExitCode)
	}
	return nil
}

// CheckKey returns an error if a key is not valid.
func CheckKey(key string) error {
	switch {
	case key == "":
		return errors.New("it is empty")
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("it has %d bytes, more than %d", len(key), MaxKeyBytes)
	case !utf8.ValidString(key) || slices.ContainsFunc([]rune(key), unicode.IsControl):
		return errors.New("it must be UTF-8 without control characters")
	}
	return nil
}

// ErrFull means that a history has too many keys to be recorded.
var ErrFull = fmt.Errorf("it has more keys than fit into %d bytes", stile.MaxRecordBytes)

// Record returns the record of the history. It is empty if the history is.
func (h History) Record() ([]byte, error) {
	if len(h.Jobs) == 0 {
		return nil, nil
	}
	h.Format = format
	record, err := json.Marshal(h)
	if err == nil && len(record) > stile.MaxRecordBytes {
		err = ErrFull
	}
	return record, err
}

// A Call is one call of stile once.
type Call struct {
	// At is when it was called.
	At time.Time
	// Key is the key of the job; empty if it has none.
	Key string
	// Every is the period in which the job is to succeed once; zero if it is to succeed once for ever.
	Every time.Duration
	// Retry is set if a failure of somebody else is no reason not to run the command.
	Retry bool
	// Seen is the token of the last failure for the key before the call joined the line; zero if there was
	// none.
	Seen uint64
}

// A Verdict says what a call has to do.
type Verdict int

// The verdicts.
const (
	Run       Verdict = iota // run the command
	Succeeded                // it has succeeded: do not run it
	Failed                   // it has failed while the call waited: do not run it, and fail as it did
)

// Judge returns the verdict on a call, and the attempt from which it follows; nil for Run. now is the
// present time.
//
// A success counts for a period if its call was made less than nine tenths of the period before this
// one. Calls of a timer come after about a whole period. So all calls for one tick of the timer make one
// success, if they come within a tenth of the period of each other, by the clocks of their hosts. Neither
// the duration of the command nor the wait matters, so nothing drifts. A success whose call lies in the
// future, by more than a tenth of the period, does not count: the clock of its host was wrong, perhaps by
// years.
//
// A failure counts if it was recorded while the call waited: if its token is larger than c.Seen.
func (h History) Judge(c Call, now time.Time) (Verdict, *Attempt) {
	job := h.Jobs[c.Key]
	switch s, f := job.Success, job.Failure; {
	case s != nil && (c.Every == 0 || c.At.Sub(s.Called) < c.Every-c.Every/10 && !s.inFuture(c.Every, now)):
		return Succeeded, s
	case f != nil && f.Token > c.Seen && !c.Retry:
		return Failed, f
	}
	return Run, nil
}

// InFuture returns the success that does not count because its call lies in the future; nil if there is
// none.
func (h History) InFuture(c Call, now time.Time) *Attempt {
	if s := h.Jobs[c.Key].Success; s != nil && c.Every > 0 && s.inFuture(c.Every, now) {
		return s
	}
	return nil
}

func (a *Attempt) inFuture(every time.Duration, now time.Time) bool {
	return a.Called.Sub(now) > every/10
}

// LastFailure returns the token of the last failure for a key; zero if there is none.
func (h History) LastFailure(key string) uint64 {
	if f := h.Jobs[key].Failure; f != nil {
		return f.Token
	}
	return 0
}

// With returns the history with one more attempt for a key: a success if its exit code is zero. If keep is
// not zero, it forgets other keys whose success was called more than keep before the attempt.
func (h History) With(key string, a Attempt, keep time.Duration) History {
	jobs := make(map[string]Job, len(h.Jobs)+1)
	for k, job := range h.Jobs {
		if s := job.Success; k != key && keep > 0 && s != nil && a.Called.Sub(s.Called) > keep {
			job.Success = nil
		}
		jobs[k] = job
	}
	a.Owner = strings.ToValidUTF8(a.Owner[:min(len(a.Owner), maxOwnerBytes)], "")
	job := jobs[key]
	if a.ExitCode == 0 {
		job = Job{Success: &a}
	} else {
		job.Failure = &a
	}
	jobs[key] = job
	dropFailures(jobs)
	return History{Jobs: jobs}
}

// dropFailures removes the oldest failures, and keys without attempts.
func dropFailures(jobs map[string]Job) {
	var tokens []uint64
	for _, job := range jobs {
		if job.Failure != nil {
			tokens = append(tokens, job.Failure.Token)
		}
	}
	slices.Sort(tokens)
	oldest := uint64(0)
	if len(tokens) > maxFailures {
		oldest = tokens[len(tokens)-maxFailures]
	}
	for key, job := range jobs {
		if job.Failure != nil && job.Failure.Token < oldest {
			job.Failure = nil
		}
		if jobs[key] = job; job.Success == nil && job.Failure == nil {
			delete(jobs, key)
		}
	}
}

// Without returns the history without a key.
func (h History) Without(key string) History {
	jobs := make(map[string]Job, len(h.Jobs))
	for k, job := range h.Jobs {
		if k != key {
			jobs[k] = job
		}
	}
	return History{Jobs: jobs}
}
