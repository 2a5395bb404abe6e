package redlockstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/examine"
	"github.com/stilelock/stile/store/internal/redisinfo"
)

var _ store.Examiner = (*Store)(nil)

// oldestSupported is the oldest version that docs/stores.md allows.
var oldestSupported = examine.Version{6}

const (
	// clockInterval is the time between the two readings by which the rate of a master's clock is measured.
	clockInterval = time.Second
	// examineTimeout is how long a master may take for one answer: it is examined as long as it answers.
	examineTimeout = attempts.MaxDuration
)

var errSilent = errors.New("no reply within " + examineTimeout.String())

// needed are the commands that this store uses: docs/stores.md lists them. SUBSCRIBE and PSUBSCRIBE are not
// among them: without these, the store polls.
var needed = []string{
	"ping", "eval", "evalsha", "get", "set", "exists", "del", "pttl", "pexpire", "time", "zadd", "zrem", "zremrangebyscore", "zrange",
}

// Examine implements [store.Examiner].
func (s *Store) Examine(ctx context.Context, ttl time.Duration) ([]store.Finding, error) {
	results := make([]diagnosis, len(s.masters))
	var asking sync.WaitGroup
	for i, m := range s.masters {
		asking.Go(func() { results[i] = s.examineMaster(ctx, m, ttl) })
	}
	asking.Wait()
	if ctx.Err() != nil {
		return nil, s.wrapErr("examine", attempts.WithContextErr(ctx, ctx.Err()))
	}
	var found examine.Findings
	answered := 0
	addresses := make(map[string][]string) // by the id of a server's run
	for i, r := range results {
		addr := s.masters[i].addr
		if r.err != nil {
			found.Add(addr, redisinfo.NoAnswer(r.err))
			continue
		}
		answered++
		for _, f := range r.findings {
			found.Add(addr, f)
		}
		if r.runID != "" {
			addresses[r.runID] = append(addresses[r.runID], addr)
		}
	}
	if answered == 0 {
		return nil, s.wrapErr("examine", results[0].err)
	}
	found.Add("", s.judgeQuorum(answered))
	for _, same := range addresses {
		if len(same) > 1 {
			f := examine.Risk("redlock-same", "P1", "%s are the same server, so that fewer than a majority of servers decides", strings.Join(same, " and "))
			f.Advice = "name each server once"
			found.Add("", f)
		}
	}
	return found.All(), nil
}

// judgeQuorum judges how many masters may fail.
func (s *Store) judgeQuorum(answered int) store.Finding {
	const id = "redlock-quorum"
	all := len(s.masters)
	if answered == all {
		return examine.Fine(id, "all %d masters answer; %d may fail", all, all-s.quorum)
	}
	f := examine.Attention(id, "%d of %d masters answer, and %d have to; if a master loses its data meanwhile, a lock may have two holders",
		answered, all, s.quorum)
	f.Promise, f.Advice = "P1", "start the others, or repair the network"
	return f
}

// A diagnosis is what was found at one master.
type diagnosis struct {
	findings []store.Finding
	runID    string // which changes with each start; empty if the user may not ask for it
	err      error  // why the master was not examined
}

func (r *diagnosis) add(all ...store.Finding) { r.findings = append(r.findings, all...) }

// examineMaster examines one master.
func (s *Store) examineMaster(ctx context.Context, m *master, ttl time.Duration) (r diagnosis) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(examineTimeout, func() { cancel(errSilent) })
	defer patience.Stop()
	defer func() {
		if r.err != nil && ctx.Err() != nil {
			r.err = context.Cause(ctx)
		}
	}()
	select {
	case <-m.first:
	case <-ctx.Done():
		return diagnosis{err: errConnecting}
	}
	m.mu.Lock()
	client, why := m.client, m.err
	m.mu.Unlock()
	if client == nil {
		return diagnosis{err: why}
	}
	do := func(name string, args ...string) rueidis.RedisResult {
		reply := client.Do(ctx, client.B().Arbitrary(strings.ToUpper(name)).Args(args...).Build())
		if err := reply.NonRedisError(); err == nil {
			patience.Reset(examineTimeout)
		} else if ctx.Err() == nil {
			m.markBroken(client, err)
		}
		return reply
	}
	if r.err = r.examineInfo(do); r.err != nil {
		return r
	}
	if r.err = r.examineRights(do, s.keys.prefix); r.err != nil {
		return r
	}
	r.err = r.examineClock(ctx, do, ttl)
	return r
}

type doFunc func(name string, args ...string) rueidis.RedisResult

// denied reports whether an error means that the user lacks a right.
func denied(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && strings.HasPrefix(reply.Error(), "NOPERM")
}

// examineInfo judges what the master says of itself.
func (r *diagnosis) examineInfo(do doFunc) error {
	text, err := do("info").ToString()
	if denied(err) {
		r.add(redisinfo.NoInfo())
		return nil
	}
	if err != nil {
		return err
	}
	info := redisinfo.Parse(text)
	r.runID = info["run_id"]
	appendfsync := ""
	if config, err := do("config", "get", "appendfsync").AsStrMap(); err == nil {
		appendfsync = config["appendfsync"]
	}
	r.add(info.Version(oldestSupported), info.Eviction(), info.Memory(), info.Persistence(appendfsync))
	if !info.IsReplica() && info.Replicas() == 0 {
		r.add(examine.Fine("redlock-replicas", "the master has no replicas"))
		return nil
	}
	what := fmt.Sprintf("the master has replicas (%d)", info.Replicas())
	if info.IsReplica() {
		what = "the server is a replica of another"
	}
	f := examine.Risk("redlock-replicas", "P1", "%s: a replica that is promoted has lost the latest locks", what)
	f.Advice = "use independent servers without replicas, or redis+sentinel:// with wait_replicas"
	r.add(f)
	return nil
}

// examineRights looks for missing rights, without writing.
func (r *diagnosis) examineRights(do doFunc, prefix string) error {
	var missing []string
	full := false
	probes := redisinfo.Probes(prefix+"//stile", "")
	for _, name := range slices.Sorted(slices.Values(needed)) {
		result := do(name, probes[name]...)
		if err := result.NonRedisError(); err != nil {
			return err
		}
		if err := result.Error(); denied(err) {
			missing = append(missing, name)
		} else if reply, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(reply.Error(), "OOM") {
			full = true
		}
	}
	r.add(redisinfo.Rights(missing, full, prefix, "Redlock")...)
	return nil
}

// examineClock measures the round trip, the master's clock and its rate.
func (r *diagnosis) examineClock(ctx context.Context, do doFunc, ttl time.Duration) error {
	var took []time.Duration
	read := func() (best examine.Reading, err error) {
		for range 5 {
			one := examine.Reading{Sent: time.Now()}
			clock, err := do("time").AsStrSlice()
			one.Received = time.Now()
			if err != nil {
				return best, err
			}
			if one.Server, err = redisinfo.Time(clock); err != nil {
				return best, err
			}
			took = append(took, one.Received.Sub(one.Sent))
			best = redisinfo.Shorter(one, best)
		}
		return best, nil
	}
	first, err := read()
	if err == nil {
		err = examine.Wait(ctx, clockInterval)
	}
	var last examine.Reading
	if err == nil {
		last, err = read()
	}
	switch {
	case denied(err): // examineRights has reported it
		return nil
	case err != nil:
		return err
	}
	r.add(redisinfo.Clock(took, first, last, ttl)...)
	return nil
}
