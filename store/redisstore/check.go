package redisstore

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

// Health is the result of [Store.Check] for one server.
type Health struct {
	// Addr is the server's address, as the client knows it.
	Addr string
	// Version is the version that the server reports.
	Version string
	// RunID is the server's run id, which changes with each start. A different run id at the same
	// address means that the server was restarted or another one was promoted, and data may have
	// been lost.
	RunID string
	// ClockOffset is how far the server's clock is ahead of the local one, accurate to half a round
	// trip; negative if it is behind. A constant offset does no harm while the same server is the
	// master. After a failover, leases end early if the new master's clock is ahead of the old
	// one's, and tokens may go back if it is behind. Tokens may also go back after a loss of data.
	ClockOffset time.Duration
	// Replicas is the number of connected replicas.
	Replicas int
	// Findings are the problems that could break a promise, each with its remedy. Nil means that
	// none was found.
	Findings []string
}

// maxClockOffset is the clock offset from which Check reports a finding.
const maxClockOffset = time.Second

// Check inspects the servers, every master of a cluster, for settings that would break the store's
// promises: eviction of keys, missing permissions, versions that are too old, wrong clocks, and
// replicas that are not waited for. It changes nothing. A check that the user is not permitted to
// make is skipped, and Findings says so.
//
// If Check fails a server could not be reached, and it returns no results.
func (s *Store) Check(ctx context.Context) ([]Health, error) {
	var all []Health
	for addr, node := range s.server.cli.Nodes() {
		var h Health
		isReplica := false
		err := retryBounded(ctx, func(ctx context.Context) (err error) {
			h, isReplica, err = s.checkNode(ctx, addr, node)
			return err
		})
		if err != nil {
			return nil, s.wrapErr("check "+addr, attempts.WithContextErr(ctx, err))
		}
		if !isReplica {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b Health) int { return strings.Compare(a.Addr, b.Addr) })
	return all, nil
}

func (s *Store) checkNode(ctx context.Context, addr string, node rueidis.Client) (h Health, isReplica bool, err error) {
	h.Addr = addr
	add := func(format string, args ...any) { h.Findings = append(h.Findings, fmt.Sprintf(format, args...)) }

	before := time.Now()
	clock, err := s.server.ask(ctx, node, func(b rueidis.Builder) rueidis.Completed { return b.Time().Build() }).strings()
	took := time.Since(before)
	if err != nil || len(clock) != 2 {
		return h, false, err
	}
	server := time.Unix(parseInt(clock[0]), parseInt(clock[1])*int64(time.Microsecond))
	h.ClockOffset = server.Sub(before.Add(took / 2)).Round(time.Millisecond)
	if off := h.ClockOffset.Abs(); off > maxClockOffset+took {
		add("its clock is off by %v: synchronize the clocks of all servers with NTP, or tokens may go back after a failover", h.ClockOffset)
	}

	info, err := s.server.info(ctx, node)
	if reply, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(reply.Error(), "NOPERM") {
		add("INFO is not permitted, so nothing else was checked: grant +info")
		return h, false, nil
	}
	if err != nil {
		return h, false, err
	}
	h.Version, h.RunID = info["redis_version"], info["run_id"]
	h.Replicas, _ = strconv.Atoi(info["connected_slaves"])
	s.checkInfo(info, add)
	if err := s.checkReplicas(ctx, node, h.Replicas, add); err != nil {
		return h, false, err
	}
	if err := s.checkChannel(ctx, node, add); err != nil {
		return h, false, err
	}
	return h, info["role"] == "slave", nil
}

// checkInfo adds findings from the server's INFO.
func (s *Store) checkInfo(info map[string]string, add func(string, ...any)) {
	if err := checkSupported(info["redis_version"]); err != nil {
		add("%v", err)
	}
	if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" && info["maxmemory"] != "0" {
		add("maxmemory-policy is %s: locks are evicted when memory runs short; set noeviction", policy)
	}
	if info["aof_enabled"] == "0" && info["connected_slaves"] == "0" {
		add("there is neither a replica nor an append-only file: a restart loses all locks, and their holders learn of it " +
			"within a third of their TTL")
	}
}

// checkReplicas adds findings about replication. An error means that the server did not reply.
func (s *Store) checkReplicas(ctx context.Context, node rueidis.Client, replicas int, add func(string, ...any)) error {
	if replicas == 0 {
		return nil
	}
	r := s.server.ask(ctx, node, func(b rueidis.Builder) rueidis.Completed {
		return b.ConfigGet().Parameter("min-replicas-to-write").Build()
	})
	config, err := map[string]string(nil), r.err
	if err == nil {
		config, err = r.AsStrMap()
	}
	switch {
	case err != nil && !refused(err):
		return err
	case err != nil:
		add("CONFIG GET is not permitted: min-replicas-to-write should be 1 or more if a replica may be promoted")
	case config["min-replicas-to-write"] == "0":
		add("min-replicas-to-write is 0: a master that is cut off continues to grant locks while a replica is promoted; set it to 1, " +
			"and min-replicas-max-lag to less than the TTL")
	}
	if s.server.replicas == 0 {
		add("WaitReplicas is 0: a lock granted just before a failover may be granted again")
	}
	return nil
}

// checkChannel adds a finding if wake-ups may not be published. Whether the user may subscribe is
// seen when a session is opened. An error means that the server did not reply.
func (s *Store) checkChannel(ctx context.Context, node rueidis.Client, add func(string, ...any)) error {
	if s.server.cluster {
		return nil // there a channel belongs to one node; the first waiter finds out
	}
	channel := s.server.wakePrefix(0) + s.id
	err := s.server.ask(ctx, node, func(b rueidis.Builder) rueidis.Completed {
		return b.Publish().Channel(channel).Message("").Build()
	}).err
	if err != nil && !refused(err) {
		return err
	}
	if err != nil {
		add("PUBLISH on %q is not permitted, so waiters learn of admissions late: %v", channel, err)
	}
	return nil
}

// minMajor is the oldest supported major version of Redis. Older versions wrap the errors of
// commands in a script, so that temporary errors look like permanent ones.
const minMajor = 7

var errTooOld = errors.New("the server is too old")

// checkSupported returns an error if a server version is too old. It accepts a version that cannot
// be parsed.
func checkSupported(version string) error {
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < minMajor {
		return fmt.Errorf("%w: Redis %s; Stile needs %d.0 or newer", errTooOld, version, minMajor)
	}
	return nil
}

// checkVersion returns an error if the server is too old. It accepts a server, or a proxy, that
// does not report a version.
func (s *server) checkVersion(ctx context.Context) error {
	r := s.do(ctx, 0, []request{func(b rueidis.Builder) rueidis.Completed { return b.Arbitrary("HELLO").Build() }})[0]
	if r.err != nil {
		if refused(r.err) {
			return nil
		}
		return r.err
	}
	hello, err := r.AsMap()
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	version := hello["version"]
	text, _ := version.ToString()
	return checkSupported(text)
}

// info returns a server's INFO as a map.
func (s *server) info(ctx context.Context, node rueidis.Client) (map[string]string, error) {
	r := s.ask(ctx, node, func(b rueidis.Builder) rueidis.Completed { return b.Info().Build() })
	if r.err != nil {
		return nil, r.err
	}
	text, err := r.ToString()
	if err != nil {
		return nil, err
	}
	info := make(map[string]string)
	for l := range strings.SplitSeq(text, "\r\n") {
		if name, value, ok := strings.Cut(l, ":"); ok {
			info[name] = value
		}
	}
	return info, nil
}
