// Package history records what happens during a run, in a file of JSON lines that can be judged at
// any later time.
//
// The first line is the [Run], every other line an [Event]. Events are in the order in which the
// recorder received them, which is not always the order in which they happened: [Event.At] is.
//
// All times are nanoseconds of CLOCK_MONOTONIC, which is one clock for all processes of a machine,
// in all network namespaces. Times are taken so that no check can raise a false alarm: the time of
// a call before its request is sent, the time of a return after the reply has arrived. So a hold is
// never longer in the history than the real one, and a call for a lock never shorter.
package history

import (
	"strconv"
	"strings"
)

// Run describes what was run.
type Run struct {
	// Target is the lock under test and the cluster it runs on: "stile@etcd3", "redsync@redlock5",
	// "stile+release-unconditionally@redis".
	Target string `json:"target"`
	// Workload and Faults are as on the command line.
	Workload string `json:"workload"`
	Faults   string `json:"faults"`
	Seed     uint64 `json:"seed"`
	// TTL is the time to live of the locks' sessions, and For is how long faults were injected,
	// both in nanoseconds.
	TTL int64 `json:"ttl_ns"`
	For int64 `json:"for_ns"`
	// Began is the wall-clock time of the start, for readers.
	Began string `json:"began"`
	// Tested identifies the programs that acquired the locks: it changes with their source.
	Tested string `json:"tested,omitempty"`
	// Command is a command line that repeats the run.
	Command string `json:"command"`
	// Versions are the versions of the servers and libraries, by name.
	Versions map[string]string `json:"versions,omitempty"`
	// Offers says what the target's interface reports to its users. Rules that need more than that
	// are not checked.
	Offers Offers `json:"offers"`
	// Promised are the names of what the run must have reached to prove anything: see
	// verdict.Reached.
	Promised []string `json:"promised,omitempty"`
}

// Offers says what a lock's interface reports to its users.
type Offers struct {
	// Tokens: every hold has a fencing token.
	Tokens bool `json:"tokens"`
	// Deadlines: every hold says until when it is valid.
	Deadlines bool `json:"deadlines"`
	// Loss: the holder is notified if it loses its hold.
	Loss bool `json:"loss"`
	// Proof: a release that succeeds proves that the hold had lasted until then. Without it the
	// lock may have been lost before, and the release succeeds all the same.
	Proof bool `json:"proof"`
	// Fair: locks are granted in the order of arrival at the store.
	Fair bool `json:"fair"`
	// Sets: a call for several locks arrives at all of them in one step.
	Sets bool `json:"sets,omitempty"`
	// TurnBits is how many of the low bits of a token count the holds of one entry. Two exclusive holds of one
	// worker whose tokens differ only in these bits have the same entry in the store, one after the other.
	TurnBits int `json:"turn_bits,omitempty"`
	// Keeps: after a release, the client may keep the entry for a later hold. So a release is no proof.
	Keeps bool `json:"keeps,omitempty"`
}

// Event is one line of a history after the first. Exactly one of its pointers is set.
type Event struct {
	// At is when it happened; for an event that takes time, when it was over.
	At int64 `json:"at"`
	// Worker is the worker that sent the event: "w1", "w2" and so on; empty for the harness itself.
	// A worker that replaces a killed one has a new name.
	Worker string `json:"worker,omitempty"`

	Started   *Started   `json:"started,omitempty"`
	Exited    *Exited    `json:"exited,omitempty"`
	Asked     *Asked     `json:"asked,omitempty"`
	Acquire   *Acquire   `json:"acquire,omitempty"`
	Extend    *Extend    `json:"extend,omitempty"`
	Downgrade *Downgrade `json:"downgrade,omitempty"`
	End       *End       `json:"end,omitempty"`
	Observed  *Observed  `json:"observed,omitempty"`
	Opened    *Opened    `json:"opened,omitempty"`
	Line      *Line      `json:"line,omitempty"`
	Stopping  *Stopping  `json:"stopping,omitempty"`
	Once      *Once      `json:"once,omitempty"`
	Write     *Write     `json:"write,omitempty"`
	Fault     *Fault     `json:"fault,omitempty"`
	Heal      *Heal      `json:"heal,omitempty"`
	Entry     *Entry     `json:"entry,omitempty"`
	Census    *Census    `json:"census,omitempty"`
	Leftovers *Leftovers `json:"left,omitempty"`
	Final     *Final     `json:"final,omitempty"`
}

// Outcome is the result of a call.
type Outcome string

// The outcomes. Nothing follows from an unknown outcome: the request may have been carried out, or
// may still be carried out later.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"
	Unknown Outcome = "unknown"
)

// Started says that the process of a worker has started.
type Started struct {
	Pid int `json:"pid"`
}

// Exited says that the process of a worker has ended. A hold that it had does not count from then
// on. The harness records it, for the worker of [Event.Worker].
type Exited struct {
	// How is the status of the process as the system reports it, or [ExitHung].
	How string `json:"how"`
}

// ExitHung is the status of a worker that was asked to end, did not, and was killed.
const ExitHung = "did not end when asked to"

// Asked says that a worker is about to ask for a lock and to wait. An Acquire with the same grant
// follows, unless the worker dies.
type Asked struct {
	Lock  string `json:"lock"`
	Grant string `json:"grant"`
	// Mode, Set and Client are those of the Acquire.
	Mode   Mode   `json:"mode,omitempty"`
	Set    string `json:"set,omitempty"`
	Client string `json:"client,omitempty"`
}

// Mode is how a lock is held: the text of a mode of Stile's package line. The empty Mode is
// exclusive.
type Mode string

// The modes besides those of [Slots].
const (
	Exclusive Mode = ""
	Shared    Mode = "shared"
)

const slotPrefix = "slot/"

// Slot returns the mode of a holder of one of n slots.
func Slot(n int) Mode { return Mode(slotPrefix + strconv.Itoa(n)) }

// Slots returns the n of a slot's mode, and zero for the other modes.
func (m Mode) Slots() int {
	text, isSlot := strings.CutPrefix(string(m), slotPrefix)
	n, err := strconv.Atoi(text)
	if !isSlot || err != nil || n < 1 {
		return 0
	}
	return n
}

// Acquire says that a call for a lock has returned, and with which outcome.
type Acquire struct {
	Lock string `json:"lock"`
	// Grant names the call, and its hold if there is one. It is unique in a run.
	Grant   string  `json:"grant"`
	Call    int64   `json:"call"`
	Return  int64   `json:"return"`
	Outcome Outcome `json:"outcome"`
	// Token is the fencing token; zero if there is none.
	Token uint64 `json:"token,omitempty"`
	// Until is the end of the hold's validity as far as it was known at the return; zero if the
	// interface does not report it.
	Until int64  `json:"until,omitempty"`
	Err   string `json:"err,omitempty"`
	// GaveUp is set on a failed call that had a timeout, which expired, or that only tried.
	GaveUp bool `json:"gave_up,omitempty"`
	// Mode is how the lock is held.
	Mode Mode `json:"mode,omitempty"`
	// Number is one more than the slot number of the hold, and NumberToken the fencing token of that
	// number. Both are zero if the hold has no number.
	Number      int    `json:"number,omitempty"`
	NumberToken uint64 `json:"number_token,omitempty"`
	// Set is the name of the call if it asked for several locks at once. There is one Acquire, and
	// one Asked, with a grant of its own, for each of its locks.
	Set string `json:"set,omitempty"`
	// Client names the client that the call was made with, if its worker has several. Calls of one
	// client queue in its process, and only the first of them has an entry in the store.
	Client string `json:"client,omitempty"`
	// Yielded is the grant of the hold that was yielded for this one: its holder got in line again
	// in the step of the store that ended it. Its End is recorded too.
	Yielded string `json:"yielded,omitempty"`
}

// Downgrade says that the holder of an exclusive hold uses it as a shared one from Call on.
//
// It is recorded before the call, without Return and Outcome, and again after it, as [End] is.
type Downgrade struct {
	Grant   string  `json:"grant"`
	Call    int64   `json:"call"`
	Return  int64   `json:"return,omitempty"`
	Outcome Outcome `json:"outcome,omitempty"`
	Err     string  `json:"err,omitempty"`
}

// Observed says that a worker that observes an election was told who leads. [Event.At] is when it
// was told.
type Observed struct {
	Lock string `json:"lock"`
	// Token and Value are those of the leader. They are empty if nobody leads.
	Token uint64 `json:"token,omitempty"`
	Value string `json:"value,omitempty"`
}

// Opened says that a client has opened a session. Its calls that wait join the line at its end, also
// those that had joined it with an earlier session.
type Opened struct {
	// Client is that of the Acquire.
	Client string `json:"client"`
}

// Line says how long the line of a lock was in the store's own data: holders and waiters.
type Line struct {
	Lock   string `json:"lock"`
	Length int    `json:"length"`
}

// Stopping says that all faults have been healed, and that the harness now asks the workers to end.
type Stopping struct{}

// Once says that a call of `stile once` has ended.
type Once struct {
	Lock string `json:"lock"`
	Key  string `json:"key"`
	// Grant is that of the Acquire.
	Grant string `json:"grant"`
	Call  int64  `json:"call"`
	// Ran says that it ran its command, Recorded that it recorded a success of it, and Skipped that it
	// did not run it because of a recorded success.
	Ran      bool `json:"ran,omitempty"`
	Recorded bool `json:"recorded,omitempty"`
	Skipped  bool `json:"skipped,omitempty"`
}

// Extend says that the validity of a hold was extended.
type Extend struct {
	Grant string `json:"grant"`
	Until int64  `json:"until"`
}

// End says that a hold is over for its holder. The holder did nothing more with it after the
// earliest of Call, LostAt and Until.
//
// It is recorded before a release, without Return and Outcome, and again after it: if the holder is
// killed in between, its hold still ends at Call. If there are several, the earliest times and the
// last outcome count.
type End struct {
	Grant string `json:"grant"`
	// LostAt is when the holder was notified of the loss; zero if it was not.
	LostAt int64 `json:"told,omitempty"`
	// Why is the reason that it was given.
	Why string `json:"why,omitempty"`
	// Call and Return are the times of the release; zero if there was none.
	Call   int64 `json:"call,omitempty"`
	Return int64 `json:"return,omitempty"`
	// Outcome is the outcome of the release. Failed means that the hold had been lost before.
	Outcome Outcome `json:"outcome,omitempty"`
	// Until is the last validity that was seen; zero if the interface does not report it.
	Until int64  `json:"until,omitempty"`
	Err   string `json:"err,omitempty"`
}

// Write says that a worker has written to the resource that the lock protects. The resource records
// it. [Event.At] is when the write arrived there.
type Write struct {
	Lock  string `json:"lock"`
	Grant string `json:"grant"`
	Token uint64 `json:"token,omitempty"`
	// Mode is "unfenced", "fenced" or "audit", or "reread" for a reader's second reading of the
	// unfenced cell.
	Mode string `json:"mode"`
	// For an unfenced write, Version is the version of the cell when the write arrived, and Read
	// the version that the writer had read before. If they differ, an update was lost. For a second
	// reading, the cell has changed under the reader.
	Version uint64 `json:"version,omitempty"`
	Read    uint64 `json:"read,omitempty"`
	// Refused is set if the resource had seen a larger token.
	Refused bool `json:"refused,omitempty"`
}

// Fault says that a fault begins at [Event.At].
type Fault struct {
	// ID is the number of the fault in the run: 1, 2 and so on.
	ID int `json:"id"`
	// Name is the kind of fault: "holder-pause", "leader-kill".
	Name string `json:"name"`
	// On is the worker or server that it strikes, or several with commas between them.
	On string `json:"on"`
	// Role is the role of the victim at that time: "holder", "leader", "follower", or empty. The
	// verdict decides by the holds whether a worker had a lock, not by this.
	Role string `json:"role,omitempty"`
	// What describes the fault in words, with its figures.
	What string `json:"what,omitempty"`
	// Lock is the lock that it strikes, if it is only one.
	Lock string `json:"lock,omitempty"`
	// Took are the tokens of the entries that an eviction deleted in one step of the store, in the
	// order of their line: the first is a holder's, the others held beside it or waited. It is empty
	// if the store's data does not contain the tokens.
	Took []uint64 `json:"took,omitempty"`
}

// Evict is the name of the fault that deletes a holder's entry from the store.
const Evict = "evict"

// Heal says that a fault was healed, at [Event.At]. A fault that needs no healing is healed as soon
// as it has struck.
type Heal struct {
	ID int `json:"id"`
	// Err is the error of the fault or of its healing. Such a fault is not counted.
	Err string `json:"err,omitempty"`
}

// Entry says that the observer has seen an entry appear in a line or disappear from it, in the
// store's own data. [Event.At] is when it saw it, which is later than when it happened.
type Entry struct {
	Lock string `json:"lock"`
	// Key is the entry's key in the store.
	Key string `json:"key"`
	// Token is the token of a hold of this entry; zero if the store's data does not contain it.
	Token uint64 `json:"token,omitempty"`
	Gone  bool   `json:"gone,omitempty"`
}

// Census counts what a worker's process has open.
type Census struct {
	// Phase is "begin" before the worker connects to the servers of the locks, and "end" after it
	// has released and closed everything.
	Phase       string `json:"phase"`
	Goroutines  int    `json:"goroutines"`
	Descriptors int    `json:"descriptors"`
}

// Leftovers are the keys that were still in the store after all faults were healed, every worker
// had ended and a TTL had passed.
type Leftovers struct {
	Lock string   `json:"lock"`
	Keys []string `json:"keys"`
}

// Final is the outcome of the last attempt at a lock, which is made after that.
type Final struct {
	Lock    string  `json:"lock"`
	Outcome Outcome `json:"outcome"`
	Err     string  `json:"err,omitempty"`
}
