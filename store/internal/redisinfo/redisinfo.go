// Package redisinfo judges what a Redis server reports of itself, for the stores on Redis. It needs no
// client.
package redisinfo

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/examine"
)

// Info is a server's INFO, by the names of its fields.
type Info map[string]string

// Parse parses the reply to INFO.
func Parse(text string) Info {
	info := make(Info)
	for l := range strings.SplitSeq(text, "\r\n") {
		if name, value, ok := strings.Cut(l, ":"); ok {
			info[name] = value
		}
	}
	return info
}

// number returns a field that is a number, and 0 for any other.
func (i Info) number(name string) int64 {
	n, _ := strconv.ParseInt(i[name], 10, 64)
	return n
}

// Replicas returns the number of replicas that are connected.
func (i Info) Replicas() int { return int(i.number("connected_slaves")) }

// IsReplica reports whether the server is a replica.
func (i Info) IsReplica() bool { return i["role"] == "slave" }

// bugs are the bugs of Redis that concern locks, or the safety of the server: every user of Stile may run
// scripts. Bugs that only crash the server are not listed.
var bugs = []examine.Bug{{
	Fixed:  []examine.Version{{6, 2, 20}, {7, 2, 11}, {7, 4, 6}, {8, 0, 4}, {8, 2, 2}},
	What:   "users who may run scripts, as Stile's users may, can run any program on the server",
	Source: "CVE-2025-49844",
}}

// Version judges the server's version.
func (i Info) Version(oldest examine.Version) store.Finding {
	return examine.KnownBugs("redis-version", "Redis", i["redis_version"], oldest, bugs)
}

// Eviction judges whether Redis may delete locks to save memory.
func (i Info) Eviction() store.Finding {
	const id = "redis-eviction"
	policy, limited := i["maxmemory_policy"], i.number("maxmemory") > 0
	switch {
	case policy == "":
		f := examine.Attention(id, "the server does not say what it evicts when its memory is full")
		f.Advice = "make sure that maxmemory-policy is noeviction"
		return f
	case policy == "noeviction":
		return examine.Fine(id, "maxmemory-policy is noeviction")
	case !limited:
		return examine.Fine(id, "maxmemory is 0, so that maxmemory-policy %s evicts nothing", policy)
	}
	f := examine.Risk(id, "P1", "maxmemory-policy is %s: Redis deletes locks when its memory is full", policy)
	f.Advice = "CONFIG SET maxmemory-policy noeviction, also in the configuration file"
	return f
}

// Memory judges how much memory is left. Without eviction, a server whose memory is full takes no lock.
func (i Info) Memory() store.Finding {
	const id = "redis-memory"
	limit, used := i.number("maxmemory"), i.number("used_memory")
	if limit == 0 {
		return examine.Fine(id, "maxmemory is 0: no limit")
	}
	percent := 100 * used / limit
	if percent < 80 {
		return examine.Fine(id, "%d %% of maxmemory is used", percent)
	}
	f := examine.Attention(id, "%d %% of maxmemory is used: when it is full, nobody gets a lock", percent)
	f.Advice = "raise maxmemory, or delete other data"
	return f
}

// Persistence judges whether locks survive a restart. appendfsync is the setting, or "" if the user may
// not read it.
func (i Info) Persistence(appendfsync string) store.Finding {
	const id = "redis-persistence"
	switch {
	case i["aof_enabled"] == "0":
		f := examine.Risk(id, "P1", "there is no append-only file: a restart of Redis deletes all locks, and other clients get them while "+
			"their holders are still at work, for up to a third of the TTL")
		f.Advice = "set appendonly yes and appendfsync always"
		return f
	case appendfsync == "":
		f := examine.Attention(id, "there is an append-only file, but CONFIG GET is not permitted, so when it is synced is unknown")
		f.Promise, f.Advice = "P1", "make sure that appendfsync is always, or allow +config|get"
		return f
	case appendfsync != "always":
		f := examine.Attention(id, "appendfsync is %s: locks of the last moments are forgotten if the machine crashes, "+
			"though not if only Redis does", appendfsync)
		f.Promise, f.Advice = "P1", "set appendfsync always"
		return f
	}
	return examine.Fine(id, "there is an append-only file, and every write is synced")
}

// Lag judges how far the replicas are behind.
func (i Info) Lag(ttl time.Duration) store.Finding {
	const id = "redis-lag"
	worst := time.Duration(0)
	for n := range i.Replicas() {
		line := i[fmt.Sprintf("slave%d", n)]
		fields := make(map[string]string)
		for field := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(field, "=")
			fields[name] = value
		}
		if fields["state"] != "online" {
			f := examine.Attention(id, "a replica is not synchronized (state %s)", fields["state"])
			f.Advice = "wait for it, or look at its log"
			return f
		}
		seconds, _ := strconv.Atoi(fields["lag"])
		worst = max(worst, time.Duration(seconds)*time.Second)
	}
	// A replica reports once a second, so a lag of a second is normal.
	if limit := max(2*time.Second, ttl/10); worst > limit {
		f := examine.Attention(id, "a replica has not reported for %v: a failover to it forgets what it has missed", worst)
		f.Promise, f.Advice = "P1", "find out what keeps the replica or the network busy"
		return f
	}
	return examine.Fine(id, "the replicas keep up with the master")
}

// Probes returns a request, without its name, for every command that the stores on Redis use which changes
// nothing: it reads, it removes what does not exist, or its arguments are wrong. Redis checks the user's rights
// before it looks at the arguments, so a refusal shows which right is missing. key must belong to no lock and
// no other data, and nobody may listen to channel.
func Probes(key, channel string) map[string][]string {
	return map[string][]string{
		"ping": {}, "time": {}, "role": {},
		"exists": {key}, "get": {key}, "pttl": {key}, "hgetall": {key}, "zcard": {key},
		"hget": {key, "x"}, "hmget": {key, "x"}, "zrank": {key, "x"}, "zscore": {key, "x"},
		"zrange": {key, "0", "0"}, "zrangebyscore": {key, "0", "0"}, "scan": {"0", "COUNT", "1"},
		"del": {key}, "hdel": {key, "x"}, "zrem": {key, "x"}, "zremrangebyscore": {key, "0", "0"},
		"pexpire": {key, "1"}, "pexpireat": {key, "1"},
		"set": {key, "", "XX"}, "zadd": {key, "XX", "0", "x"},
		"hset": {key, "x", "x", "value missing"},
		"eval": {"return 1", "1", key}, "evalsha": {strings.Repeat("0", 40), "1", key},
		"publish": {channel, ""},
	}
}

// Rights judges which commands the user may not use. full says that a command was refused for lack of memory.
// section is the part of docs/stores.md that lists the rights.
func Rights(missing []string, full bool, prefix, section string) []store.Finding {
	var all []store.Finding
	if full {
		f := examine.Attention("redis-full", "the server's memory is full: nobody gets a lock until some is free")
		f.Advice = "raise maxmemory, or delete other data"
		all = append(all, f)
	}
	if len(missing) == 0 {
		return append(all, examine.Fine("redis-rights", "the user may do all that Stile needs under the prefix %q", prefix))
	}
	f := examine.Attention("redis-rights", "the user may not use %s, on keys and channels with the prefix %q: locks fail or are late",
		strings.ToUpper(strings.Join(missing, ", ")), prefix)
	f.Advice = "grant the user what docs/stores.md lists under " + section + ", Permissions"
	return append(all, f)
}

// NoInfo is the finding if the user may not send INFO.
func NoInfo() store.Finding {
	f := examine.Attention("redis-info", "INFO is not permitted, so version, eviction, memory, persistence and replicas were not examined")
	f.Advice = "grant +info"
	return f
}

// NoAnswer is the finding if a server does not answer.
func NoAnswer(err error) store.Finding {
	f := examine.Attention("redis-answer", "the server does not answer: %v", err)
	f.Advice = "start it, or repair the network; nothing else was examined there"
	return f
}

// Time is a server's time, from the reply to TIME.
func Time(reply []string) (time.Time, error) {
	if len(reply) != 2 {
		return time.Time{}, fmt.Errorf("unexpected reply to TIME: %q", reply)
	}
	seconds, err := strconv.ParseInt(reply[0], 10, 64)
	micros, e := strconv.ParseInt(reply[1], 10, 64)
	if err = errors.Join(err, e); err != nil {
		return time.Time{}, fmt.Errorf("unexpected reply to TIME: %w", err)
	}
	return time.Unix(seconds, micros*int64(time.Microsecond)), nil
}

// Shorter returns the reading that is more exact: that with the shorter round trip.
func Shorter(a, b examine.Reading) examine.Reading {
	if b.Sent.IsZero() || !a.Sent.IsZero() && a.Received.Sub(a.Sent) <= b.Received.Sub(b.Sent) {
		return a
	}
	return b
}

// maxClockOffset is the difference between the clocks of a server and this machine that needs attention.
const maxClockOffset = time.Second

// Clock judges a server's clock by two readings of it, and its round trips.
func Clock(took []time.Duration, first, last examine.Reading, ttl time.Duration) []store.Finding {
	all := []store.Finding{
		examine.RoundTrip("redis-round-trip", took, ttl),
		examine.ClockRate("redis-clock-rate", first, last),
	}
	doubt := first.Received.Sub(first.Sent)
	ahead := first.Server.Sub(first.Sent.Add(doubt / 2))
	if ahead.Abs() <= maxClockOffset+doubt {
		return append(all, examine.Fine("redis-clock", "the server's clock and this machine's agree to within a second"))
	}
	f := examine.Attention("redis-clock", "the server's clock and this machine's differ by %v: if it is the server's that is wrong, "+
		"tokens may go back, or locks end early, after a failover or a loss of data", ahead.Abs().Round(time.Second))
	f.Promise, f.Advice = "P2", "let NTP correct the clocks of all servers and clients, in no steps"
	return append(all, f)
}
