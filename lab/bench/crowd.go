package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// A crowd is a workload of many goroutines in several processes. They acquire one lock in a loop.
type crowd struct {
	Processes, Goroutines int // goroutines of each process
	Hold                  time.Duration
	WriteEvery            int // one of so many acquisitions is for writing; zero: none
	Slots                 int // how many may hold the lock at once; zero: any number of readers, or one writer
}

// The crowds of every store that has shared modes.
var (
	readMostly = crowd{Processes: 2, Goroutines: 100, WriteEvery: 100, Hold: time.Millisecond}
	tenSlots   = crowd{Processes: 2, Goroutines: 100, Slots: 10, Hold: time.Millisecond}
)

// mutexCrowds want one mutex. least is the expected ratio to the stock mutex, which has a session for each
// goroutine.
var mutexCrowds = []struct {
	crowd crowd
	least float64
}{
	{crowd{Processes: 2, Goroutines: 10, WriteEvery: 1}, 150},
	{crowd{Processes: 2, Goroutines: 100, WriteEvery: 1}, 80},
	{crowd{Processes: 1, Goroutines: 10, WriteEvery: 1}, 150},
	{crowd{Processes: 10, Goroutines: 1, WriteEvery: 1}, 5},
	{crowd{Processes: 10, Goroutines: 10, WriteEvery: 1}, 2},
}

// single reports whether all acquisitions are of one kind. They count as reads then.
func (k crowd) single() bool { return k.Slots > 0 || k.WriteEvery == 1 }

func (k crowd) String() string {
	what := fmt.Sprintf("%d slots", k.Slots)
	switch {
	case k.WriteEvery == 1:
		what = "one mutex"
	case k.Slots == 0:
		what = fmt.Sprintf("%g %% readers", 100-100/float64(k.WriteEvery))
	}
	return fmt.Sprintf("%d processes × %d goroutines, %s, hold %v", k.Processes, k.Goroutines, what, k.Hold)
}

// A turn is one acquisition: when it was requested, obtained and released, in nanoseconds of the
// machine's clock since the job's epoch, so that turns of several processes can be compared.
type turn struct {
	Asked, From, To int64
	Write           bool
}

// A job is what a worker process does: one process's part of a crowd. With Lead it leads elections
// instead, until it is killed. Crash is for [measureCrash].
type job struct {
	Store, Addr string
	Contender   string
	Name        string // of the lock; beginning of the names of the elections, or of the locks of Crash
	Epoch       int64
	Crowd       crowd
	First       int           // number of its first goroutine, among those of all processes
	Slice       time.Duration // with Lead or Crash, the time during which the sessions begin
	Lead        int           // number of elections
	Crash       int           // number of locks to hold until the process is killed
	Waits       bool          // with Crash, to wait for the locks instead
	TTL         time.Duration // with Lead or Crash, of the sessions
}

// crowdResult is what one contender did in all rounds of a crowd.
type crowdResult struct {
	rates                    []float64
	reads, writes            series // from the request until the lock was obtained
	requests                 []float64
	maxAcquired, minAcquired []float64 // of one goroutine, by round
	shares                   []float64 // acquisitions of the process with fewest, divided by the average of the processes
	violations               int
}

// crowds measures the contenders of one crowd in turns. The first contender is the one that the
// others are compared with.
type crowds struct {
	crowd       crowd
	contenders  []string
	store, addr string
	count       func(context.Context) (int, error) // the server's count of requests
	least       float64                            // the ratio of rates that is expected; zero means 1
	results     map[string]*crowdResult
}

// crowdRow has the figures of one contender in a crowd. Ratios are the subject's figure divided by this
// contender's.
type crowdRow struct {
	Store       string
	Crowd       crowd
	Contender   string
	PerSecond   float64
	Rate        *ratio  `json:",omitempty"`
	Read, Write summary // from the request until the lock was obtained; see [crowd.single]
	Wait        *ratio  `json:",omitempty"` // of the medians of reads
	Requests    float64 // of the server, per acquisition
	Most, Least int     // acquisitions of the goroutine with most and of the one with fewest, in the median round
	Share       float64 // acquisitions of the process with fewest, divided by the average of the processes
	Violations  int
}

func (m *crowds) rows() (rows []crowdRow) {
	for _, name := range m.contenders {
		r := m.results[name]
		row := crowdRow{
			Store: m.store, Crowd: m.crowd, Contender: name, PerSecond: median(r.rates), Read: r.reads.summary(), Write: r.writes.summary(),
			Requests: median(r.requests), Violations: r.violations,
			Most: int(median(r.maxAcquired)), Least: int(median(r.minAcquired)), Share: median(r.shares),
		}
		if name != m.contenders[0] {
			row.Rate, row.Wait = m.rateRatio(name), compare(m.subject().reads.medians(), r.reads.medians())
		}
		rows = append(rows, row)
	}
	return rows
}

func (m *crowds) subject() *crowdResult { return m.results[m.contenders[0]] }

func (m *crowds) rateRatio(other string) *ratio {
	return compare(m.subject().rates, m.results[other].rates)
}

// expectations are that the subject is not slower than the others.
func (m *crowds) expectations() (all []expectation) {
	for _, other := range m.contenders[1:] {
		what := fmt.Sprintf("%s: %v: acquisitions/s, %s / %s", m.store, m.crowd, m.contenders[0], other)
		all = append(all, expectation{what, m.rateRatio(other), cmp.Or(m.least, 1), false})
	}
	if m.crowd.WriteEvery == 1 {
		what := fmt.Sprintf("%s: %v: share of the process with fewest acquisitions", m.store, m.crowd)
		all = append(all, expectation{what, spread(m.subject().shares), 0.9, false})
	}
	return all
}

func crowdTable(t *strings.Builder, all []crowdRow) {
	for i, r := range all {
		if i > 0 && r.Crowd == all[i-1].Crowd && r.Store == all[i-1].Store {
			continue
		}
		rows := [][]string{{
			fmt.Sprintf("%s: %v", r.Store, r.Crowd), "acq/s", "the first's / this one's", "wait of readers", "the first's / this one's", "wait of writers",
			"most / least of one goroutine", "least share of a process", "commands per acquisition",
		}}
		if r.Crowd.single() {
			rows[0][3] = "wait"
		}
		for _, r := range all[i:] {
			if r.Crowd != all[i].Crowd || r.Store != all[i].Store {
				break
			}
			rows = append(rows, []string{
				r.Contender, fmt.Sprintf("%.0f", r.PerSecond), r.Rate.String(), r.Read.String(), r.Wait.String(), r.Write.String(),
				fmt.Sprintf("%d / %d", r.Most, r.Least), fmt.Sprintf("%.2f", r.Share), fmt.Sprintf("%.2f", r.Requests),
			})
		}
		if r.Crowd.single() {
			const waitOfWriters = 5
			for i := range rows {
				rows[i] = slices.Delete(rows[i], waitOfWriters, waitOfWriters+1)
			}
		}
		t.WriteString("\n")
		table(t, rows)
	}
}

// measureCrowd measures all rounds of a crowd and adds them to the report.
func measureCrowd(ctx context.Context, c config, m *crowds, r *report) error {
	m.results = make(map[string]*crowdResult)
	began := time.Now()
	defer fmt.Fprintln(os.Stderr) // ends the progress line
	for round := range c.rounds {
		for i := range m.contenders {
			contender := m.contenders[(round+i)%len(m.contenders)]
			fmt.Fprintf(os.Stderr, "\r\x1b[K%s %v  round %d of %d: %v, %s", m.store, time.Since(began).Round(time.Second), round+1, c.rounds, m.crowd, contender)
			if err := m.measure(ctx, c, contender); err != nil {
				return fmt.Errorf("%s: %v: %s: %w", m.store, m.crowd, contender, err)
			}
		}
	}
	r.Crowds = append(r.Crowds, m.rows()...)
	r.Expected = append(r.Expected, m.expectations()...)
	return nil
}

// workerTimeout is how long the workers may take: to connect their clients, for the slice, and for the
// calls that are under way at its end.
const workerTimeout = 2 * time.Minute

// measure measures one contender in one round, with processes of its own.
func (m *crowds) measure(ctx context.Context, c config, contender string) error {
	if m.results[contender] == nil {
		m.results[contender] = &crowdResult{}
	}
	ctx, cancel := context.WithTimeout(ctx, workerTimeout)
	defer cancel()
	slice := 2 * c.slice
	var workers []*workerProcess
	defer func() {
		for _, w := range workers {
			w.kill()
		}
	}()
	epoch := time.Now().UnixNano()
	for i := range m.crowd.Processes {
		w, err := startWorker(ctx, job{
			Store: m.store, Addr: m.addr, Contender: contender, Name: fmt.Sprintf("crowd-%d-%d", os.Getpid(), epoch), Epoch: epoch,
			Crowd: m.crowd, First: i * m.crowd.Goroutines, Slice: slice,
		})
		if err != nil {
			return err
		}
		workers = append(workers, w)
	}
	for _, w := range workers {
		if err := w.awaitReady(); err != nil {
			return err
		}
	}
	before, err := m.count(ctx)
	if err != nil {
		return err
	}
	for _, w := range workers {
		if err := w.begin(); err != nil {
			return err
		}
	}
	var all [][]turn // by goroutine
	var ends []int64
	for _, w := range workers {
		var o workerOutcome
		if err := w.outcome(&o); err != nil {
			return err
		}
		for _, turns := range o.Turns {
			all, ends = append(all, turns), append(ends, o.Began+slice.Nanoseconds())
		}
	}
	after, err := m.count(ctx)
	if err != nil {
		return err
	}
	m.results[contender].add(all, ends, slice, after-before, m.crowd)
	return nil
}

// add adds the turns of one round, by goroutine. Turns that were obtained after the slice are not
// counted, except for the requests and for violations.
func (r *crowdResult) add(all [][]turn, ends []int64, slice time.Duration, requests int, k crowd) {
	var reads, writes []time.Duration
	acquired := make([]int, len(all))
	for i, turns := range all {
		for _, t := range turns {
			if t.From >= ends[i] {
				continue
			}
			acquired[i]++
			if t.Write && !k.single() {
				writes = append(writes, time.Duration(t.From-t.Asked))
			} else {
				reads = append(reads, time.Duration(t.From-t.Asked))
			}
		}
	}
	turns := slices.Concat(all...)
	r.rates = append(r.rates, float64(len(reads)+len(writes))/slice.Seconds())
	r.reads, r.writes = append(r.reads, reads), append(r.writes, writes)
	r.requests = append(r.requests, float64(requests)/float64(max(len(turns), 1)))
	r.maxAcquired, r.minAcquired = append(r.maxAcquired, float64(slices.Max(acquired))), append(r.minAcquired, float64(slices.Min(acquired)))
	var processes []float64
	for ofProcess := range slices.Chunk(acquired, k.Goroutines) {
		sum := 0
		for _, n := range ofProcess {
			sum += n
		}
		processes = append(processes, float64(sum))
	}
	average := float64(max(len(reads)+len(writes), 1)) / float64(len(processes)) // none may have been obtained
	r.shares = append(r.shares, slices.Min(processes)/average)
	r.violations += countViolations(turns, k.Slots)
}

// countViolations returns how many turns began while the lock was held by another turn that
// excludes them: by a writer, or for a writer by anybody, or by so many that no slot was free.
func countViolations(turns []turn, slots int) (violations int) {
	type change struct {
		at    int64
		delta int
		write bool
	}
	changes := make([]change, 0, 2*len(turns))
	for _, t := range turns {
		changes = append(changes, change{t.From, 1, t.Write}, change{t.To, -1, t.Write})
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.delta, b.delta)) })
	readers, writers := 0, 0
	for _, c := range changes {
		if c.delta > 0 && (writers > 0 || c.write && readers > 0 || slots > 0 && readers >= slots) {
			violations++
		}
		if c.write {
			writers += c.delta
		} else {
			readers += c.delta
		}
	}
	return violations
}

// A workerProcess is this program, started again to do a job.
type workerProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr bytes.Buffer
}

// startWorker starts a worker. It is killed when ctx ends.
func startWorker(ctx context.Context, j job) (*workerProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	return startProcess(exec.CommandContext(ctx, self, workerFlag+string(text)))
}

// startProcess starts a program that behaves as a worker.
func startProcess(cmd *exec.Cmd) (w *workerProcess, err error) {
	w = &workerProcess{cmd: cmd}
	w.cmd.Stderr = &w.stderr
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.stdout = bufio.NewReaderSize(stdout, 1<<20)
	return w, w.cmd.Start()
}

// errNotReady means that a worker process ended, or printed something else, before it was ready.
var errNotReady = errors.New("it is not ready")

// awaitReady waits until the worker has connected all its clients. It returns [errNotReady] if the worker ends
// before.
func (w *workerProcess) awaitReady() error {
	if line, err := w.stdout.ReadString('\n'); err != nil || line != ready {
		return w.failure(fmt.Errorf("%w: %q: %w", errNotReady, line, err))
	}
	return nil
}

// begin lets the goroutines of the worker begin.
func (w *workerProcess) begin() error {
	_, err := io.WriteString(w.stdin, ready)
	return err
}

// outcome waits until the worker has ended, and stores its result in o.
func (w *workerProcess) outcome(o any) error {
	if err := gob.NewDecoder(w.stdout).Decode(o); err != nil {
		return w.failure(err)
	}
	if err := w.cmd.Wait(); err != nil {
		return w.failure(err)
	}
	return nil
}

// failure ends the worker, and adds to the error what the worker has written.
func (w *workerProcess) failure(err error) error {
	w.kill()
	return fmt.Errorf("a worker process failed: %w: %s", err, bytes.TrimSpace(w.stderr.Bytes()))
}

// kill kills the worker, if it still runs, and waits until it has ended.
func (w *workerProcess) kill() {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait() // ProcessState has the result
}
