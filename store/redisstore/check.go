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

// Health is what [Store.Check] has found out about one server.
type Health struct {
	// Addr is where it is, as the client knows it.
	Addr string
	// Version is the server's own word.
	Version string
	// RunID is what the server calls itself. It is another after each start: whoever compares it with what was there before
	// learns that the server has been restarted, or another one promoted, and may have forgotten something.
	RunID string
	// ClockOffset is by how much the server's clock is ahead of ours, to half a round trip; negative if it is behind.
	// Exclusion does not depend on it. After a failover or a loss of data the orders do.
	ClockOffset time.Duration
	// Replicas is how many replicas are connected.
	Replicas int
	// Findings are what could break a promise, and what to do, each in a line. Nil if all is well.
	Findings []string
}

// tolerable is how far a server's clock may be off before that is worth mentioning.
const tolerable = time.Second

// Check looks for what would break the store's promises on its servers, every master of a cluster: keys that are thrown away
// when memory runs short, rights that are missing, servers that are too old, clocks that are wrong, and replicas that nobody
// waits for. It changes nothing. What the user may not see is left out, and Findings says so.
//
// On failure the servers could not be asked; nothing is known then.
func (s *Store) Check(ctx context.Context) ([]Health, error) {
	var all []Health
	for addr, node := range s.server.cli.Nodes() {
		var h Health
		isReplica := false
		err := patiently(ctx, func(ctx context.Context) (err error) {
			h, isReplica, err = s.checkNode(ctx, addr, node)
			return err
		})
		if err != nil {
			return nil, s.explain("check "+addr, attempts.EndedBy(ctx, err))
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
	find := func(format string, args ...any) { h.Findings = append(h.Findings, fmt.Sprintf(format, args...)) }

	before := time.Now()
	clock, err := s.server.ask(ctx, node, func(b rueidis.Builder) rueidis.Completed { return b.Time().Build() }).texts()
	took := time.Since(before)
	if err != nil || len(clock) != 2 {
		return h, false, err
	}
	server := time.Unix(integer(clock[0]), integer(clock[1])*int64(time.Microsecond))
	h.ClockOffset = server.Sub(before.Add(took / 2)).Round(time.Millisecond)
	if off := h.ClockOffset.Abs(); off > tolerable+took {
		find("its clock is off by %v: set the clocks of all servers by NTP, or tokens may go back after a failover", h.ClockOffset)
	}

	info, err := s.server.info(ctx, node)
	if said, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(said.Error(), "NOPERM") {
		find("we may not ask for INFO, so nothing else is known: grant +info to check more")
		return h, false, nil
	}
	if err != nil {
		return h, false, err
	}
	h.Version, h.RunID = info["redis_version"], info["run_id"]
	h.Replicas, _ = strconv.Atoi(info["connected_slaves"])
	s.judge(info, find)
	if err := s.checkReplicas(ctx, node, h.Replicas, find); err != nil {
		return h, false, err
	}
	if err := s.checkChannel(ctx, node, find); err != nil {
		return h, false, err
	}
	return h, info["role"] == "slave", nil
}

// judge finds what is wrong by what the server says of itself.
func (s *Store) judge(info map[string]string, find func(string, ...any)) {
	if err := checkAge(info["redis_version"]); err != nil {
		find("%v", err)
	}
	if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" && info["maxmemory"] != "0" {
		find("maxmemory-policy is %s: locks are thrown away when memory runs short; set noeviction", policy)
	}
	if info["aof_enabled"] == "0" && info["connected_slaves"] == "0" {
		find("there is neither a replica nor an append-only file: a restart forgets all locks, and their holders are told " +
			"within a third of their TTL")
	}
}

// checkReplicas looks at what a master does that has lost its replicas. An error means that it was not answered.
func (s *Store) checkReplicas(ctx context.Context, node rueidis.Client, replicas int, find func(string, ...any)) error {
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
		find("we may not see min-replicas-to-write: it should be 1 or more where a replica may be promoted")
	case config["min-replicas-to-write"] == "0":
		find("min-replicas-to-write is 0: a master that was cut off goes on giving locks while a replica is promoted; set it to 1, " +
			"and min-replicas-max-lag to less than the TTL")
	}
	if s.server.replicas == 0 {
		find("nobody waits for the replicas: a lock given in the last moment before a failover may be given again; see WaitReplicas")
	}
	return nil
}

// checkChannel looks whether wake-ups may be sent. Whether they may be heard is seen when a session is opened. An error means
// that it was not answered.
func (s *Store) checkChannel(ctx context.Context, node rueidis.Client, find func(string, ...any)) error {
	if s.server.cluster {
		return nil // where a channel belongs to one node; those who wait find out
	}
	channel := s.server.wake(0) + s.client
	err := s.server.ask(ctx, node, func(b rueidis.Builder) rueidis.Completed {
		return b.Publish().Channel(channel).Message("").Build()
	}).err
	if err != nil && !refused(err) {
		return err
	}
	if err != nil {
		find("we may not publish on %q, so those who wait are woken late: %v", channel, err)
	}
	return nil
}

// oldestMajor is the oldest version of Redis that will do. Older ones wrap what a script is refused in words of their own, so
// that nothing that passes by itself can be told from what does not.
const oldestMajor = 7

var errTooOld = errors.New("the server is too old")

// checkAge returns an error if a server of the given version is too old. One whose version cannot be read is not.
func checkAge(version string) error {
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < oldestMajor {
		return fmt.Errorf("%w: it is Redis %s, and Stile needs %d.0 or newer", errTooOld, version, oldestMajor)
	}
	return nil
}

// checkVersion returns an error if the server is too old. One that does not tell, because something stands in front of it, is
// taken as it is.
func (s *server) checkVersion(ctx context.Context) error {
	r := s.do(ctx, 0, []request{func(b rueidis.Builder) rueidis.Completed { return b.Arbitrary("HELLO").Build() }})[0]
	if r.err != nil {
		if refused(r.err) {
			return nil
		}
		return r.err
	}
	said, err := r.AsMap()
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	version := said["version"]
	text, _ := version.ToString()
	return checkAge(text)
}

// info returns what a server says of itself, by name.
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
