package redisstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/examine"
	"github.com/stilelock/stile/store/internal/redisinfo"
)

var _ store.Examiner = (*Store)(nil)

// clockInterval is the time between the two readings by which the rate of a server's clock is measured.
const clockInterval = time.Second

// Examine implements [store.Examiner]. It examines the server, or every master of a cluster.
func (s *Store) Examine(ctx context.Context, ttl time.Duration) ([]store.Finding, error) {
	var found examine.Findings
	nodes := s.server.cli.Nodes()
	var err error
	answered, masters := 0, 0
	for _, addr := range slices.Sorted(maps.Keys(nodes)) {
		x := examination{store: s, node: nodes[addr], addr: addr, ttl: ttl, found: &found}
		isMaster, e := x.run(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, s.wrapErr("examine", attempts.WithContextErr(ctx, ctx.Err()))
		case e != nil:
			err = e
			found.Add(addr, redisinfo.NoAnswer(e))
			continue
		}
		answered++
		if isMaster {
			masters++
		}
	}
	if answered == 0 {
		return nil, s.wrapErr("examine", err)
	}
	if masters == 0 {
		f := examine.Attention("redis-role", "the server is a replica, so nobody can lock at it")
		f.Advice = "use the address of the master, or redis+sentinel://"
		found.Add("", f)
	} else {
		found.Add("", examine.Fine("redis-role", "there is a master"))
	}
	return found.All(), nil
}

// An examination examines one server.
type examination struct {
	store *Store
	node  rueidis.Client
	addr  string
	ttl   time.Duration
	found *examine.Findings
}

func (x *examination) add(f store.Finding) { x.found.Add(x.addr, f) }

// run examines the server, and reports whether it is a master. Of replicas only that is of interest. An
// error means that the server did not answer a request.
func (x *examination) run(ctx context.Context) (isMaster bool, err error) {
	r, err := x.ask(ctx, func(b rueidis.Builder) rueidis.Completed { return b.Info().Build() })
	if err != nil {
		return false, err
	}
	if r.err != nil && !denied(r.err.Error()) {
		return false, r.err
	}
	if r.err != nil {
		x.add(redisinfo.NoInfo())
		return true, x.examineUser(ctx)
	}
	text, err := r.ToString()
	if err != nil {
		return false, err
	}
	info := redisinfo.Parse(text)
	if info.IsReplica() {
		return false, nil
	}
	config, err := x.config(ctx)
	if err != nil {
		return false, err
	}
	x.add(info.Version(examine.Version{minMajor}))
	x.add(info.Eviction())
	x.add(info.Memory())
	x.add(info.Persistence(config["appendfsync"]))
	x.examineReplicas(info, config)
	return true, x.examineUser(ctx)
}

// examineUser examines what needs no INFO.
func (x *examination) examineUser(ctx context.Context) error {
	if err := x.examineRights(ctx); err != nil {
		return err
	}
	return x.examineClock(ctx)
}

// ask sends a request until it is answered. A refusal is an answer: it is in the reply.
func (x *examination) ask(ctx context.Context, one request) (r reply, err error) {
	err = retryBounded(ctx, func(ctx context.Context) error {
		r = x.store.server.ask(ctx, x.node, one)
		if rueidis.IsRedisNil(r.err) {
			r.err = nil
		}
		if r.err == nil || refused(r.err) || hasPrefix(r.err, "READONLY", "MOVED", "ASK", "NOSCRIPT", "NOREPLICAS") {
			return nil
		}
		return r.err
	})
	return r, err
}

// config returns the settings of interest; none if the user may not read them.
func (x *examination) config(ctx context.Context) (map[string]string, error) {
	r, err := x.ask(ctx, func(b rueidis.Builder) rueidis.Completed {
		return b.ConfigGet().Parameter("min-replicas-to-write", "appendfsync").Build()
	})
	if err != nil || r.err != nil {
		return nil, err
	}
	return r.AsStrMap()
}

// examineReplicas examines what a failover would do to locks.
func (x *examination) examineReplicas(info redisinfo.Info, config map[string]string) {
	replicas, waited := info.Replicas(), x.store.server.replicas
	if replicas == 0 {
		x.add(examine.Fine("redis-replicas", "there are no replicas, so no failover can forget locks"))
		if waited > 0 {
			f := examine.Attention("redis-wait-replicas", "wait_replicas is %d, but the server has no replicas: nobody gets a lock", waited)
			f.Advice = "start the replicas, or leave out wait_replicas"
			x.add(f)
		}
		return
	}
	x.add(info.Lag(x.ttl))
	switch {
	case waited == 0:
		f := examine.Risk("redis-wait-replicas", "P1", "the server has %s, and locks do not wait for it: a failover can forget the latest ones, "+
			"which other clients then get too", count(replicas, "replica"))
		f.Advice = fmt.Sprintf("add wait_replicas=%d to the URL on all clients", replicas)
		x.add(f)
	case waited < replicas:
		f := examine.Attention("redis-wait-replicas", "locks wait for %d of %d replicas: a failover to another one can forget the latest",
			waited, replicas)
		f.Promise, f.Advice = "P1", fmt.Sprintf("use wait_replicas=%d, if the replicas are reliable enough", replicas)
		x.add(f)
	case waited > replicas:
		f := examine.Attention("redis-wait-replicas", "wait_replicas is %d, but the server has %s: nobody gets a lock", waited, count(replicas, "replica"))
		f.Advice = "start the missing replicas, or lower wait_replicas"
		x.add(f)
	default:
		x.add(examine.Fine("redis-wait-replicas", "locks wait for all replicas (%d)", replicas))
	}
	const advice = "set min-replicas-to-write to 1, and min-replicas-max-lag (in seconds) below the TTL"
	switch minimum, known := config["min-replicas-to-write"]; {
	case !known:
		f := examine.Attention("redis-cut-off", "CONFIG GET is not permitted, so it is unknown whether a master that is cut off stops")
		f.Promise, f.Advice = "P1", "allow +config|get, or see to it: "+advice
		x.add(f)
	case minimum == "0":
		f := examine.Risk("redis-cut-off", "P1", "min-replicas-to-write is 0: a master that is cut off continues to grant locks while a replica is promoted")
		f.Advice = advice
		x.add(f)
	default:
		x.add(examine.Fine("redis-cut-off", "a master without replicas stops: min-replicas-to-write is %s", minimum))
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// examineRights looks for missing rights, without writing.
func (x *examination) examineRights(ctx context.Context) error {
	s := x.store.server
	commands := redisinfo.Probes(s.keys.prefix+"//stile", s.wakePrefix(0)+x.store.id)
	if s.cluster {
		// The channels of a cluster belong to its slots; the first waiter finds out.
		delete(commands, "publish")
	}
	if s.replicas > 0 {
		commands["wait"] = []string{"0", "1"}
	}
	var missing []string
	full := false
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		r, err := x.ask(ctx, func(b rueidis.Builder) rueidis.Completed {
			return b.Arbitrary(strings.ToUpper(name)).Args(commands[name]...).Build()
		})
		switch {
		case err != nil:
			return err
		case r.err != nil && denied(r.err.Error()):
			missing = append(missing, name)
		case hasPrefix(r.err, "OOM"):
			full = true
		}
	}
	for _, f := range redisinfo.Rights(missing, full, s.keys.prefix, "Redis") {
		x.add(f)
	}
	return nil
}

// examineClock measures the round trip, the server's clock and its rate.
func (x *examination) examineClock(ctx context.Context) error {
	var took []time.Duration
	read := func() (best examine.Reading, permitted bool, err error) {
		for range 5 {
			one, permitted, err := x.readClock(ctx)
			if err != nil || !permitted {
				return best, permitted, err
			}
			took = append(took, one.Received.Sub(one.Sent))
			best = redisinfo.Shorter(one, best)
		}
		return best, true, nil
	}
	first, permitted, err := read()
	if err != nil || !permitted { // examineRights has reported that TIME is not permitted
		return err
	}
	if err := x.store.examinePause(ctx, clockInterval); err != nil {
		return err
	}
	last, permitted, err := read()
	if err != nil || !permitted {
		return err
	}
	for _, f := range redisinfo.Clock(took, first, last, x.ttl) {
		x.add(f)
	}
	return nil
}

// readClock asks the server for its time once. If the user may not ask, permitted is false.
func (x *examination) readClock(ctx context.Context) (r examine.Reading, permitted bool, err error) {
	answer, err := x.ask(ctx, func(b rueidis.Builder) rueidis.Completed {
		r.Sent = time.Now() // of the attempt that is answered
		return b.Time().Build()
	})
	r.Received = time.Now()
	if err != nil || answer.err != nil {
		return r, false, err
	}
	clock, err := answer.strings()
	if err != nil {
		return r, false, err
	}
	r.Server, err = redisinfo.Time(clock)
	return r, err == nil, err
}
