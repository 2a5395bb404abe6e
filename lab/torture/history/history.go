// Package history is what happened during a run: a file of JSON lines that anybody can judge again.
//
// The first line is the [Run], every other one an [Event]. Events stand in the order in which the recorder received them,
// which is not quite the order in which they happened: [Event.At] is.
//
// All times are nanoseconds of CLOCK_MONOTONIC, which is one clock for all processes of a machine, network namespaces or
// not. Times are taken so that no check can raise a false alarm: a call's before the request leaves, a return's after the
// answer has arrived. What is certainly held is then never longer in the history than in truth, and the time in which
// something was asked for never shorter.
package history

// Run says what was run.
type Run struct {
	// Target is what takes the locks, on what: "stile@etcd3", "redsync@redlock5", "stile+release-unconditionally@redis".
	Target string `json:"target"`
	// Workload and Faults are as on the command line.
	Workload string `json:"workload"`
	Faults   string `json:"faults"`
	Seed     uint64 `json:"seed"`
	// TTL and For are nanoseconds: the time to live of the locks' sessions, and how long faults were injected.
	TTL int64 `json:"ttl_ns"`
	For int64 `json:"for_ns"`
	// Began is when the run began, by the wall clock, for people.
	Began string `json:"began"`
	// Tested identifies the programs that took the locks: it changes with their source.
	Tested string `json:"tested,omitempty"`
	// Command repeats the run.
	Command string `json:"command"`
	// Versions are those of the servers and libraries, by name.
	Versions map[string]string `json:"versions,omitempty"`
	// Offers says what the target's interface tells its users; what it does not tell is not judged.
	Offers Offers `json:"offers"`
}

// Offers says what a lock's interface tells its users.
type Offers struct {
	// Tokens: every hold has a fencing token.
	Tokens bool `json:"tokens"`
	// Deadlines: every hold says until when it is valid.
	Deadlines bool `json:"deadlines"`
	// Loss: who loses a hold is told.
	Loss bool `json:"loss"`
	// Proof: a release that succeeds proves that the hold had lasted until then. Where it does not, the lock may have been
	// lost before, and nobody knows.
	Proof bool `json:"proof"`
	// Fair: locks are given in the order of arrival at the store.
	Fair bool `json:"fair"`
}

// Event is one line of a history after the first. Exactly one of the pointers is set.
type Event struct {
	// At is when it happened; what takes time happened when it was over.
	At int64 `json:"at"`
	// Worker is who tells it: "w1", "w2" and so on; empty for the harness itself. A worker that is killed and started
	// again has a new name.
	Worker string `json:"worker,omitempty"`

	Started   *Started   `json:"started,omitempty"`
	Exited    *Exited    `json:"exited,omitempty"`
	Asked     *Asked     `json:"asked,omitempty"`
	Acquire   *Acquire   `json:"acquire,omitempty"`
	Extend    *Extend    `json:"extend,omitempty"`
	End       *End       `json:"end,omitempty"`
	Write     *Write     `json:"write,omitempty"`
	Fault     *Fault     `json:"fault,omitempty"`
	Heal      *Heal      `json:"heal,omitempty"`
	Entry     *Entry     `json:"entry,omitempty"`
	Census    *Census    `json:"census,omitempty"`
	Leftovers *Leftovers `json:"left,omitempty"`
	Final     *Final     `json:"final,omitempty"`
}

// Outcome is what became of a call.
type Outcome string

// The outcomes. Of an unknown one nothing may be concluded: the request may have been carried out, or be later.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"
	Unknown Outcome = "unknown"
)

// Started says that a worker's process has begun.
type Started struct {
	Pid int `json:"pid"`
}

// Exited says that a worker's process has ended, and with it everything it may have believed. It is recorded by the harness, for
// the worker of [Event.Worker].
type Exited struct {
	// How is what became of the process, as the system says it, or [ExitHung].
	How string `json:"how"`
}

// ExitHung is how a worker ended that was asked to end, did not, and was killed for it.
const ExitHung = "did not end when asked to"

// Asked says that a worker is about to ask for a lock and to wait. An Acquire with the same grant follows, unless the worker dies.
type Asked struct {
	Lock  string `json:"lock"`
	Grant string `json:"grant"`
}

// Acquire says that a call for a lock has returned, and how.
type Acquire struct {
	Lock string `json:"lock"`
	// Grant names the call, and the hold if there is one; no two calls of a run have the same.
	Grant   string  `json:"grant"`
	Call    int64   `json:"call"`
	Return  int64   `json:"return"`
	Outcome Outcome `json:"outcome"`
	// Token is the fencing token; zero if there is none.
	Token uint64 `json:"token,omitempty"`
	// Until is how long the hold is valid as far as was known then; zero if the interface does not tell.
	Until int64  `json:"until,omitempty"`
	Err   string `json:"err,omitempty"`
	// GaveUp is set on a failed call whose caller had set a limit, which passed, or had only tried.
	GaveUp bool `json:"gave_up,omitempty"`
}

// Extend says that the validity of a hold has been seen to go further.
type Extend struct {
	Grant string `json:"grant"`
	Until int64  `json:"until"`
}

// End says that a hold is over for its holder. The holder did nothing more after the earliest of Call, LostAt and Until.
//
// It is recorded before a release, without Return and Outcome, and again after it: whoever is killed in between is not to
// be thought to have gone on. Of the times the earlier ones count, of the outcomes the later one.
type End struct {
	Grant string `json:"grant"`
	// LostAt is when the holder was told that the hold is lost; zero if it was not.
	LostAt int64 `json:"told,omitempty"`
	// Why is what it was told.
	Why string `json:"why,omitempty"`
	// Call and Return are those of the release; zero if there was none.
	Call   int64 `json:"call,omitempty"`
	Return int64 `json:"return,omitempty"`
	// Outcome is that of the release. Failed means: it had been lost before.
	Outcome Outcome `json:"outcome,omitempty"`
	// Until is the last validity that was seen; zero if the interface does not tell.
	Until int64  `json:"until,omitempty"`
	Err   string `json:"err,omitempty"`
}

// Write says that a worker has written to the resource that the lock protects, and this is what the resource says of it.
// [Event.At] is when the write arrived there.
type Write struct {
	Lock  string `json:"lock"`
	Grant string `json:"grant"`
	Token uint64 `json:"token,omitempty"`
	// Mode is one of "unfenced", "fenced" and "audit".
	Mode string `json:"mode"`
	// Version is, for an unfenced write, the version that the resource had, and Read the one that the writer had read
	// before. If they differ, an update has been overwritten unseen.
	Version uint64 `json:"version,omitempty"`
	Read    uint64 `json:"read,omitempty"`
	// Refused is set if the resource had seen a larger token.
	Refused bool `json:"refused,omitempty"`
}

// Fault says that something is being done to the system, from At on.
type Fault struct {
	// ID is this fault's in the run: 1, 2 and so on.
	ID int `json:"id"`
	// Name is the fault's: "holder-pause", "leader-kill".
	Name string `json:"name"`
	// On is the worker or server it is done to, or several with commas between them.
	On string `json:"on"`
	// Role is what that was at the time: "holder", "leader", "follower", or empty. Whether a worker held anything is
	// judged by its holds, not by this.
	Role string `json:"role,omitempty"`
	// What says it in words, with its figures.
	What string `json:"what,omitempty"`
	// Lock is the lock that it is done to, if it is done to one only.
	Lock string `json:"lock,omitempty"`
	// Took are the tokens of the entries that an eviction deleted in one step of the store, in the order of their line: the first
	// is the holder's, the others waited behind it. It is empty if the store's data do not tell the tokens.
	Took []uint64 `json:"took,omitempty"`
}

// Evict is the name of the fault that takes a holder's entry out of the store.
const Evict = "evict"

// Heal says that what the fault did is undone, at At. A fault that needs no healing is healed as soon as it is done.
type Heal struct {
	ID int `json:"id"`
	// Err is what went wrong with the fault or the healing; such a fault is not counted.
	Err string `json:"err,omitempty"`
}

// Entry says that the observer has seen an entry come to a line or go from it, in the store's own data. [Event.At] is when it saw
// it, which is later than when it happened.
type Entry struct {
	Lock string `json:"lock"`
	// Key is the entry's name in the store.
	Key string `json:"key"`
	// Token is that of a hold of this entry, as far as the store's data tell it.
	Token uint64 `json:"token,omitempty"`
	Gone  bool   `json:"gone,omitempty"`
}

// Census is what a worker's process has open.
type Census struct {
	// Phase is "begin" before the worker connects to the locks' servers, "end" when it has released and closed everything.
	Phase       string `json:"phase"`
	Goroutines  int    `json:"goroutines"`
	Descriptors int    `json:"descriptors"`
}

// Leftovers has the entries that were in the store still when everything was healed, every worker had ended and a TTL had passed.
type Leftovers struct {
	Lock string   `json:"lock"`
	Keys []string `json:"keys"`
}

// Final says what came of a last attempt that was made for a lock after that.
type Final struct {
	Lock    string  `json:"lock"`
	Outcome Outcome `json:"outcome"`
	Err     string  `json:"err,omitempty"`
}
