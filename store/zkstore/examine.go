package zkstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/examine"
)

var _ store.Examiner = (*Store)(nil)

// examineLimits are the limits by which Examine judges. Tests set others.
type examineLimits struct {
	fsync     time.Duration // average time of a write to disk
	elections float64       // since the server has started
	word      time.Duration // how long the reply to a four-letter word may take, which servers give at once
}

var defaultExamineLimits = examineLimits{fsync: 10 * time.Millisecond, elections: 4, word: 3 * time.Second}

// defaultSessionTicks is the default of minSessionTimeout, in ticks, and ticksPerTTL the smallest TTL that
// docs/stores.md allows.
const (
	defaultSessionTicks = 2
	ticksPerTTL         = 4
)

// oldestSupported is the oldest version that has containers.
var oldestSupported = examine.Version{3, 5, 3}

// bugs are the bugs of ZooKeeper that concern locks. ZOOKEEPER-5010, which no version fixes, is not among
// them: the store notices it.
var bugs = []examine.Bug{
	{
		Fixed: []examine.Version{{3, 5, 4}}, Promise: "P5",
		What: "the lock of a client that has died may stay held for ever", Source: "ZOOKEEPER-2355",
	},
	{
		Fixed: []examine.Version{{3, 6, 0}}, Promise: "P5",
		What: "a server that recovers may keep locks that were released", Source: "ZOOKEEPER-3145",
	},
	{
		Fixed: []examine.Version{{3, 8, 4}, {3, 9, 2}}, Promise: "P1",
		What: "a server that was synchronized shortly before a crash may forget locks", Source: "ZOOKEEPER-4785",
	},
}

// Examine implements [store.Examiner]. It asks each server that New was given for its four-letter words srvr,
// which servers answer by default, conf and mntr, which they do not. ZooKeeper does not tell the time, so the
// rate of its clocks is not examined.
func (s *Store) Examine(ctx context.Context, ttl time.Duration) ([]store.Finding, error) {
	x := &examination{store: s, ttl: ttl}
	if err := x.run(ctx); err != nil {
		return nil, s.wrapErr("examine", attempts.WithContextErr(ctx, err))
	}
	return x.found.All(), nil
}

// An examination examines one ensemble.
type examination struct {
	store *Store
	ttl   time.Duration
	found examine.Findings
}

// server is what a server says of itself. A word without an answer is nil, and so is one that is not permitted.
type server struct {
	address          string
	srvr, conf, mntr map[string]string
	err              error // of srvr
	confErr, mntrErr error // why there was no answer; nil if there was one, also a refusal
}

func (x *examination) run(ctx context.Context) error {
	servers := make([]server, len(x.store.servers))
	var asking sync.WaitGroup
	for i, address := range x.store.servers {
		asking.Go(func() { servers[i] = x.ask(ctx, address) })
	}
	asking.Wait()
	tick := time.Duration(0)
	for _, s := range servers {
		x.examineServer(s)
		if ms, err := strconv.Atoi(s.conf["tickTime"]); err == nil {
			tick = max(tick, time.Duration(ms)*time.Millisecond)
		}
	}
	x.examineEnsemble(servers)
	if err := x.examineSession(ctx, tick); err != nil {
		return err
	}
	if err := x.examineBuffer(ctx); err != nil {
		return err
	}
	return ctx.Err()
}

// ask asks a server for its words.
func (x *examination) ask(ctx context.Context, address string) server {
	s := server{address: address}
	answer, err := x.say(ctx, address, "srvr")
	switch {
	case err != nil:
		s.err = err
	case strings.Contains(answer, "not currently serving"):
		s.err = errors.New("it runs, but does not serve clients: it has no majority, or is starting")
	default:
		s.srvr = fields(answer, ": ")
	}
	if s.srvr == nil {
		return s
	}
	if answer, s.confErr = x.say(ctx, address, "conf"); s.confErr == nil && strings.Contains(answer, "tickTime=") {
		s.conf = fields(answer, "=")
	}
	if answer, s.mntrErr = x.say(ctx, address, "mntr"); s.mntrErr == nil && strings.Contains(answer, "zk_version\t") {
		s.mntr = fields(answer, "\t")
	}
	return s
}

// fields parses lines that have a name and a value.
func fields(text, separator string) map[string]string {
	all := make(map[string]string)
	for l := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(l), separator); ok {
			all[name] = value
		}
	}
	return all
}

// say sends a four-letter word to a server and returns its reply.
func (x *examination) say(ctx context.Context, address, word string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, x.store.limits.word)
	defer cancel()
	conn, err := x.store.dial(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	if x.store.tls != nil {
		config := x.store.tls.Clone()
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(address) // New has made the address
		}
		conn = tls.Client(conn, config)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, 4<<20))
	return string(answer), err
}

// examineServer judges what one server says of itself.
func (x *examination) examineServer(s server) {
	switch {
	case s.err != nil:
		f := examine.Attention("zk-answer", "the server does not answer: %v", s.err)
		f.Advice = "start it, or repair the network"
		x.found.Add(s.address, f)
		return
	case s.srvr["Mode"] == "":
		f := examine.Attention("zk-words", "the server does not permit the four-letter word srvr, so its version and its role are unknown")
		f.Advice = "set 4lw.commands.whitelist=srvr,conf,mntr"
		x.found.Add(s.address, f)
		return
	case s.confErr != nil || s.mntrErr != nil:
		for _, word := range []struct {
			err             error
			name, dependent string
		}{{s.confErr, "conf", "its tick was guessed"}, {s.mntrErr, "mntr", "its disk and its elections were not examined"}} {
			if word.err != nil {
				f := examine.Attention("zk-words", "the server has answered srvr, but not %s (%v), so %s", word.name, word.err, word.dependent)
				f.Advice = "repeat the examination; if the server is overloaded, give it more memory or processors"
				x.found.Add(s.address, f)
			}
		}
	case s.conf == nil || s.mntr == nil:
		f := examine.Attention("zk-words", "the server does not permit the four-letter words conf and mntr, so its disk, its elections and its "+
			"tick were not examined, or the tick was guessed")
		f.Advice = "set 4lw.commands.whitelist=srvr,conf,mntr"
		x.found.Add(s.address, f)
	default:
		x.found.Add(s.address, examine.Fine("zk-words", "the server permits the four-letter words srvr, conf and mntr"))
	}
	x.found.Add(s.address, examine.KnownBugs("zk-version", "ZooKeeper", s.srvr["Zookeeper version"], oldestSupported, bugs))
	if s.mntr == nil {
		return
	}
	number := func(name string) float64 {
		v, _ := strconv.ParseFloat(s.mntr[name], 64)
		return v
	}
	limit := x.store.limits.fsync
	if average := time.Duration(number("zk_avg_fsynctime") * float64(time.Millisecond)); number("zk_cnt_fsynctime") > 0 && average > limit {
		f := examine.Attention("zk-fsync", "a write to disk takes %v on average, more than %v (longest: %v ms): locks are late or lost",
			average, limit, number("zk_max_fsynctime"))
		f.Advice = "give the transaction log (dataLogDir) a disk of its own, an SSD"
		x.found.Add(s.address, f)
	} else {
		x.found.Add(s.address, examine.Fine("zk-fsync", "a write to disk takes less than %v on average", limit))
	}
	up := max(time.Duration(number("zk_uptime"))*time.Millisecond, time.Second)
	if elections := number("zk_cnt_election_time"); elections >= x.store.limits.elections && elections > up.Hours() {
		f := examine.Attention("zk-leader", "there were %.0f elections in the %v since the server has started: at each, renewals may fail", elections, up.Round(time.Second))
		f.Advice = "look for slow disks, long garbage collections, a slow network or overload"
		x.found.Add(s.address, f)
	} else {
		x.found.Add(s.address, examine.Fine("zk-leader", "elections are rare"))
	}
}

// examineEnsemble judges whether the servers are one ensemble, and how many of them may fail.
func (x *examination) examineEnsemble(servers []server) {
	modes := make(map[string]int)
	silent := 0
	for _, s := range servers {
		if s.err != nil {
			silent++
		}
		modes[s.srvr["Mode"]]++
	}
	n, alone := len(servers), modes["standalone"]
	if alone > 1 || alone == 1 && modes["leader"]+modes["follower"] > 0 || modes["leader"] > 1 {
		f := examine.Risk("zk-ensemble", "P1", "the servers of the URL are not one ensemble (standalone: %d, leaders: %d): locks at one do not exclude those "+
			"at another", alone, modes["leader"])
		f.Advice = "name the servers of one ensemble"
		x.found.Add("", f)
		return
	}
	x.found.Add("", examine.Fine("zk-ensemble", "the servers of the URL belong to one ensemble"))
	const id = "zk-quorum"
	switch {
	case silent > 0:
		f := examine.Attention(id, "%d of the %d servers of the URL do not answer; if %d more fail, nobody gets a lock", silent, n, max(1, (n-1)/2-silent+1))
		f.Advice = "start them, or let this machine reach them"
		x.found.Add("", f)
	case alone == 1:
		x.found.Add("", examine.Fine(id, "there is one server: while it is down, nobody gets a lock"))
	case n == 1:
		f := examine.Attention(id, "the URL names only one server of an ensemble: while it is down, or has other data than its leader, clients cannot "+
			"go on at another one")
		f.Advice = "name all servers of the ensemble in the URL"
		x.found.Add("", f)
	case n%2 == 0:
		f := examine.Attention(id, "%d servers tolerate no more failures than %d, and more of them can fail", n, n-1)
		f.Advice = "use an odd number of servers, and name all of them in the URL"
		x.found.Add("", f)
	default:
		x.found.Add("", examine.Fine(id, "all %d servers answer; %d may fail", n, (n-1)/2))
	}
}

// examineSession opens a session as clients do, and judges its TTL, the round trip and the user's rights.
func (x *examination) examineSession(ctx context.Context, tick time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, x.store.callTimeout, noAnswerError(x.store.callTimeout))
	defer cancel()
	c, granted, err := x.open(ctx, x.ttl)
	if err != nil {
		return err
	}
	defer c.shut()
	x.judgeTTL(granted)
	if tick == 0 {
		// Servers grant at least minSessionTimeout, which is two ticks unless it is set. Where they grant
		// MinTTL, the tick may be shorter than this.
		least, minimum, err := x.open(ctx, MinTTL)
		if err != nil {
			return err
		}
		least.shut()
		tick = minimum / defaultSessionTicks
	}
	if x.ttl < ticksPerTTL*tick {
		f := examine.Risk("zk-tick", "P1", "the TTL of %v is less than four ticks of %v: ZooKeeper may end sessions before their holders stop", x.ttl, tick)
		f.Advice = fmt.Sprintf("use a TTL of %v or more, or a smaller tickTime", ticksPerTTL*tick)
		x.found.Add("", f)
	} else {
		x.found.Add("", examine.Fine("zk-tick", "the TTL of %v is at least four ticks of %v", x.ttl, tick))
	}
	var took []time.Duration
	for range 5 {
		start := time.Now()
		// As holders do, ask the leader, in a transaction that changes nothing.
		if _, err := attempt(ctx, c, func(int) (struct{}, error) { return struct{}{}, c.commitEmpty() }); err != nil {
			return err
		}
		took = append(took, time.Since(start))
	}
	x.found.Add("", examine.RoundTrip("zk-round-trip", took, x.ttl))
	return x.examineRights(ctx, c)
}

// open opens a session with a TTL, and returns what the servers grant.
func (x *examination) open(ctx context.Context, ttl time.Duration) (*client, time.Duration, error) {
	c, err := x.store.connect(ttl, false, func(zk.Event) {})
	if err != nil {
		return nil, 0, err
	}
	if err := c.await(ctx); err != nil {
		go c.shut() // it may take a second
		return nil, 0, err
	}
	_, granted := c.transport.terms()
	return c, granted, nil
}

func (x *examination) judgeTTL(granted time.Duration) {
	switch {
	case granted < x.ttl:
		f := examine.Attention("zk-ttl", "the servers grant a TTL of %v at most: clients that ask for %v get no lock", granted, x.ttl)
		f.Advice = fmt.Sprintf("raise maxSessionTimeout (20 ticks by default), or use a TTL of at most %v", granted)
		x.found.Add("", f)
	case granted > x.ttl:
		f := examine.Attention("zk-ttl", "the servers grant a TTL of %v at least: the lock of a client that asks for %v is free that much later after a crash",
			granted, x.ttl)
		f.Advice = fmt.Sprintf("lower minSessionTimeout (2 ticks by default), or use a TTL of at least %v", granted)
		x.found.Add("", f)
	default:
		x.found.Add("", examine.Fine("zk-ttl", "the servers grant a TTL of %v", x.ttl))
	}
}

// examineRights finds out whether the user may read, create and delete below the root, by a transaction that
// fails at its end, so that none of it is carried out.
func (x *examination) examineRights(ctx context.Context, c *client) error {
	top := x.store.paths.top()
	dir := top
	for dir != "/" { // the root need not exist
		exists, err := attempt(ctx, c, func(int) (bool, error) {
			exists, _, err := c.Exists(dir)
			return exists, err
		})
		if err != nil && !errors.Is(err, zk.ErrNoAuth) { // since ZOOKEEPER-2590, to see that it exists is a right
			return err
		}
		if exists || err != nil {
			break
		}
		dir = "/" + strings.TrimPrefix(dir[:strings.LastIndex(dir, "/")], "/")
	}
	var missing []string
	if _, err := c.list(ctx, dir); errors.Is(err, zk.ErrNoAuth) {
		missing = append(missing, "read")
	} else if err != nil {
		return err
	}
	node := strings.TrimSuffix(dir, "/") + "/" + "stile-doctor-" + newGUID()
	create, remove := &zk.CreateRequest{Path: node, Acl: x.store.acl}, &zk.DeleteRequest{Path: node, Version: -1}
	switch noCreate, err := x.wouldRefuse(ctx, c, node, create); {
	case err != nil:
		return err
	case noCreate:
		missing = append(missing, "create")
	default:
		noDelete, err := x.wouldRefuse(ctx, c, node, create, remove)
		if err != nil {
			return err
		}
		if noDelete {
			missing = append(missing, "delete")
		}
	}
	if len(missing) == 0 {
		x.found.Add("", examine.Fine("zk-rights", "the user may read, create and delete nodes in %s", dir))
		return nil
	}
	f := examine.Attention("zk-rights", "the user may not %s nodes in %s: locks fail", strings.Join(missing, " or "), dir)
	f.Advice = "give the right credentials in the URL, or the rights crdw to the user with setAcl"
	x.found.Add("", f)
	return nil
}

// wouldRefuse reports whether the servers refuse one of the operations for lack of rights. The transaction
// ends with a check of a node that does not exist.
func (x *examination) wouldRefuse(ctx context.Context, c *client, node string, ops ...any) (bool, error) {
	type outcome struct {
		replies []zk.MultiResponse
		err     error
	}
	all := append(append([]any{}, ops...), &zk.CheckVersionRequest{Path: node + "-none", Version: 0})
	o, err := attempt(ctx, c, func(int) (outcome, error) {
		replies, err := c.Multi(all...)
		if err != nil && !refused(err) && len(replies) == 0 {
			return outcome{}, err
		}
		return outcome{replies, err}, nil
	})
	if err != nil {
		return false, err
	}
	if errors.Is(o.err, zk.ErrNoAuth) || errors.Is(o.err, zk.ErrInvalidACL) {
		return true, nil
	}
	for _, r := range o.replies {
		if errors.Is(r.Error, zk.ErrNoAuth) || errors.Is(r.Error, zk.ErrInvalidACL) {
			return true, nil
		}
	}
	return false, nil
}

// examineBuffer finds out whether jute.maxbuffer is large enough for the largest request that Stile sends: it
// asks whether a node exists whose name is as long as that. A server whose limit is smaller closes the
// connection.
func (x *examination) examineBuffer(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, x.store.callTimeout, noAnswerError(x.store.callTimeout))
	defer cancel()
	c, _, err := x.open(ctx, x.ttl)
	if err != nil {
		return err
	}
	defer c.shut()
	dir := strings.TrimSuffix(x.store.paths.top(), "/")
	exists := func(path string) error {
		_, err := ask(ctx, func() (bool, error) {
			exists, _, err := c.Exists(path)
			return exists, err
		})
		return err
	}
	large := dir + "/" + strings.Repeat("x", maxSetBytes)
	const tries = 3 // one connection may break for another reason
	for range tries {
		switch err := exists(large); {
		case err == nil, refused(err):
			x.found.Add("", examine.Fine("zk-maxbuffer", "jute.maxbuffer is large enough"))
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if _, err := attempt(ctx, c, func(int) (struct{}, error) { return struct{}{}, exists(dir + "/x") }); err != nil && !refused(err) {
			return err
		}
	}
	f := examine.Attention("zk-maxbuffer", "the servers close the connection at a request of 512 kB, so jute.maxbuffer is smaller: sessions with many locks cannot "+
		"end, and in the worst case no server can start again")
	f.Advice = "leave jute.maxbuffer at its default of 1 MB, or raise it, on all servers"
	x.found.Add("", f)
	return nil
}
