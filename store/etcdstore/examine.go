package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/examine"
)

var _ store.Examiner = (*Store)(nil)

// examineLimits are the limits by which Examine judges. Tests set others.
type examineLimits struct {
	fsync        time.Duration // of which 99 % of the writes to disk take at most that
	uncompacted  int64         // revisions without a compaction
	quotaPercent int64
}

// The limit of fsync is the one that etcd's documentation recommends.
var defaultExamineLimits = examineLimits{fsync: 10 * time.Millisecond, uncompacted: 100_000, quotaPercent: 80}

// examineTimeout bounds the answer of one member, so that one that is down does not delay the others.
const examineTimeout = attempts.MaxDuration

// oldestSupported is the oldest version that docs/stores.md allows; bugs has more for the lines after it.
var oldestSupported = examine.Version{3, 5, 24}

// bugs are the bugs of etcd that concern locks. Those without a promise matter only with authentication on.
var bugs = []examine.Bug{
	{
		Fixed: []examine.Version{{3, 5, 3}, {3, 6, 0}}, Promise: "P1",
		What: "after a crash its data may differ from that of the other members", Source: "etcd #13766",
	},
	{
		Fixed: []examine.Version{{3, 5, 5}, {3, 6, 0}}, Promise: "P1",
		What: "a single member may forget an acknowledged lock in a crash", Source: "etcd #14370",
	},
	{
		Fixed: []examine.Version{{3, 5, 13}, {3, 6, 0}}, Promise: "P1",
		What: "a former leader with a slow disk revokes leases that were renewed", Source: "etcd #15247",
	},
	{
		Fixed: []examine.Version{{3, 5, 23}, {3, 6, 5}}, Promise: "P1",
		What: "a renewal may succeed although the lease was revoked", Source: "etcd #20615",
	},
	{
		Fixed: []examine.Version{{3, 5, 24}, {3, 6, 6}}, Promise: "P7",
		What: "watches may miss events", Source: "docs/stores.md",
	},
	{
		Fixed: []examine.Version{{3, 5, 28}, {3, 6, 9}},
		What:  "if authentication is on, users may read and write all keys, with nested transactions", Source: "GHSA-rfx7-8w68-q57q",
	},
	{
		Fixed: []examine.Version{{3, 5, 28}, {3, 6, 9}},
		What:  "if authentication is on, leases can be revoked without it", Source: "CVE-2026-33413",
	},
	{
		Fixed: []examine.Version{{3, 5, 30}, {3, 6, 11}},
		What:  "if authentication is on, users may attach keys to leases of others", Source: "GHSA-x35m-3gp4-4fh5",
	},
	{
		Fixed: []examine.Version{{3, 5, 33}, {3, 6, 14}, {3, 7, 1}},
		What:  "if authentication is on, users may watch keys that they may not read", Source: "GHSA-xg4h-6gfc-h4m8",
	},
}

// Examine implements [store.Examiner]. What only the members' metrics tell, and the rate of their clocks,
// is examined if there is [Options.Pages].
func (s *Store) Examine(ctx context.Context, ttl time.Duration) ([]store.Finding, error) {
	x := &examination{store: s, ttl: ttl}
	if err := x.run(ctx); err != nil {
		return nil, s.wrapErr("examine", endedBy(ctx, err))
	}
	return x.found.All(), nil
}

// An examination examines one cluster.
type examination struct {
	store *Store
	ttl   time.Duration
	found examine.Findings
}

// A member is an endpoint of the client, or a member that is none, and what it says.
type member struct {
	endpoint string
	status   *clientv3.StatusResponse // nil if it does not answer
	err      error
}

func (x *examination) run(ctx context.Context) error {
	isEtcd, err := x.examineRequests(ctx)
	if err != nil || !isEtcd {
		return err
	}
	if err := x.examineProxy(ctx); err != nil {
		return err
	}
	members := x.examineMembers(ctx)
	for _, m := range members {
		if m.status != nil {
			x.examineStatus(m)
			x.examinePages(ctx, m)
		}
	}
	if err := x.examineCompaction(ctx); err != nil {
		return err
	}
	if err := x.examineRights(ctx); err != nil {
		return err
	}
	return ctx.Err()
}

// emptyKey is a key that no lock has, because a name contains no control characters.
func (x *examination) emptyKey() string { return x.store.keys.prefix + "\x00" }

// examineRequests measures how long requests take, and reports whether an etcd answers them.
func (x *examination) examineRequests(ctx context.Context) (isEtcd bool, err error) {
	var took []time.Duration
	imitation := false
	for range 5 {
		err := x.store.attemptWithTimeout(ctx, func(ctx context.Context) error {
			start := time.Now()
			answer, err := x.store.cli.Get(ctx, x.emptyKey(), clientv3.WithCountOnly())
			if err == nil || refused(err) {
				took = append(took, time.Since(start))
			}
			imitation = err == nil && answer.Header.GetClusterId() == 0
			return err
		})
		if err != nil && !errors.Is(err, rpctypes.ErrPermissionDenied) {
			return false, err
		}
	}
	if imitation { // kine fills in only the revision: its pkg/server/limited.go
		f := examine.Risk("etcd-imitation", "P1", "this is not etcd but something with its interface, such as kine; it may not expire leases, "+
			"order keys or run transactions as etcd does")
		f.Advice = "use an etcd, or one of the other stores"
		x.found.Add("", f)
		return false, nil
	}
	x.found.Add("", examine.Fine("etcd-imitation", "it is an etcd"))
	x.found.Add("", examine.RoundTrip("etcd-round-trip", took, x.ttl))
	return true, nil
}

// examineProxy looks for a gRPC proxy by a watch from a negative revision, which is refused. A member
// fills in the header of the refusal, and the proxy does not: server/proxy/grpcproxy/watch.go.
func (x *examination) examineProxy(ctx context.Context) error {
	isProxy := false
	err := x.store.attemptWithTimeout(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := pb.NewWatchClient(x.store.cli.ActiveConnection()).Watch(ctx)
		if err != nil {
			return err
		}
		create := &pb.WatchCreateRequest{Key: []byte(x.emptyKey()), StartRevision: -1}
		if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
			return err
		}
		answer, err := stream.Recv()
		isProxy = err == nil && answer.GetHeader().GetClusterId() == 0
		return err
	})
	switch {
	case err != nil && !refused(err):
		return err
	case isProxy:
		f := examine.Risk("etcd-proxy", "P1", "there is an etcd grpc-proxy in between: it may answer a renewal with the reply to an older one, so that "+
			"a holder counts its deadline from too late a time")
		f.Advice = "connect to the members of the cluster themselves"
		x.found.Add("", f)
	default:
		x.found.Add("", examine.Fine("etcd-proxy", "there is no etcd grpc-proxy in between"))
	}
	return nil
}

// ask returns the status of the members at some endpoints.
func (x *examination) ask(ctx context.Context, endpoints []string) []member {
	all := make([]member, len(endpoints))
	var asking sync.WaitGroup
	for i, endpoint := range endpoints {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, examineTimeout)
			defer cancel()
			status, err := x.store.cli.Status(ctx, endpoint)
			all[i] = member{endpoint, status, err}
		})
	}
	asking.Wait()
	return all
}

// examineMembers asks the endpoints of the client, and the members that are not among them, and judges how
// many may fail.
func (x *examination) examineMembers(ctx context.Context) []member {
	all := x.ask(ctx, x.store.cli.Endpoints())
	answered := make(map[uint64]bool)
	clusters := make(map[uint64]bool)
	for _, m := range all {
		if m.status != nil {
			answered[m.status.Header.GetMemberId()] = true
			clusters[m.status.Header.GetClusterId()] = true
		} else {
			f := examine.Attention("etcd-answer", "the member does not answer: %v", m.err)
			f.Advice = "start it, or repair the network"
			x.found.Add(m.endpoint, f)
		}
	}
	if len(clusters) > 1 {
		f := examine.Risk("etcd-clusters", "P1", "the hosts of the URL belong to %d clusters, whose locks do not exclude each other", len(clusters))
		f.Advice = "name the members of one cluster"
		x.found.Add("", f)
	} else {
		x.found.Add("", examine.Fine("etcd-clusters", "the hosts of the URL belong to one cluster"))
	}
	list, err := x.listMembers(ctx)
	if err != nil {
		f := examine.Attention("etcd-quorum", "the members of the cluster could not be listed: %v", err)
		f.Advice = "run etcdctl endpoint status --cluster"
		x.found.Add("", f)
		return all
	}
	voters, silent := 0, 0
	var urls []string // of voters that are none of the endpoints
	for _, m := range list {
		if m.IsLearner {
			continue
		}
		voters++
		if !answered[m.ID] && m.ID != 0 { // a proxy lists itself, with the ID 0
			silent++
			urls = append(urls, m.ClientURLs...)
		}
	}
	for _, m := range x.ask(ctx, urls) {
		if m.status == nil || answered[m.status.Header.GetMemberId()] {
			continue
		}
		answered[m.status.Header.GetMemberId()] = true
		silent--
		all = append(all, m)
	}
	x.judgeQuorum(voters, silent)
	return all
}

func (x *examination) listMembers(ctx context.Context) ([]*pb.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	list, err := x.store.cli.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	return list.Members, nil
}

// judgeQuorum judges how many members may fail.
func (x *examination) judgeQuorum(voters, silent int) {
	const id = "etcd-quorum"
	tolerated := (voters-1)/2 - silent
	switch {
	case silent > 0:
		f := examine.Attention(id, "%d of %d members do not answer here; if %d more fail, nobody gets a lock", silent, voters, max(1, tolerated+1))
		f.Advice = "start them, or remove them from the cluster; if they run, let this machine reach them"
		x.found.Add("", f)
	case voters%2 == 0:
		f := examine.Attention(id, "%d members tolerate no more failures than %d, and more of them can fail", voters, voters-1)
		f.Advice = "add a member, or remove one"
		x.found.Add("", f)
	case voters == 1:
		x.found.Add("", examine.Fine(id, "the cluster has one member: while it is down, nobody gets a lock"))
	default:
		x.found.Add("", examine.Fine(id, "all %d members answer; %d may fail", voters, tolerated))
	}
}

// examineStatus judges what a member says of itself.
func (x *examination) examineStatus(m member) {
	x.found.Add(m.endpoint, examine.KnownBugs("etcd-version", "etcd", m.status.Version, oldestSupported, bugs))
	if m.status.Leader == 0 {
		f := examine.Attention("etcd-leader", "the member has no leader")
		f.Advice = "see whether a majority of the members runs, and is reachable from it"
		x.found.Add(m.endpoint, f)
	}
	alarms := strings.Join(m.status.Errors, "; ")
	switch {
	case strings.Contains(alarms, "CORRUPT"):
		f := examine.Risk("etcd-alarm", "P1", "the data of the members differ (CORRUPT alarm): locks and releases are refused")
		f.Advice = "replace the member whose data are wrong, then etcdctl alarm disarm"
		x.found.Add("", f)
	case strings.Contains(alarms, "NOSPACE"):
		f := examine.Attention("etcd-alarm", "the cluster is out of space (NOSPACE alarm): nobody gets a lock")
		f.Advice = "compact and defragment it, then etcdctl alarm disarm"
		x.found.Add("", f)
	case !strings.Contains(alarms, "alarm"):
		x.found.Add("", examine.Fine("etcd-alarm", "there is no alarm"))
	}
	if quota := m.status.DbSizeQuota; quota > 0 {
		x.judgeQuota(m.endpoint, m.status.DbSize, quota)
	}
}

func (x *examination) judgeQuota(endpoint string, size, quota int64) {
	percent := 100 * size / quota
	if percent < x.store.limits.quotaPercent {
		x.found.Add(endpoint, examine.Fine("etcd-quota", "less than %d %% of the quota is used", x.store.limits.quotaPercent))
		return
	}
	f := examine.Attention("etcd-quota", "%d %% of the quota is used: when it is full, nobody gets a lock", percent)
	f.Advice = "compact and defragment the members (etcdctl compact, defrag), or raise --quota-backend-bytes"
	x.found.Add(endpoint, f)
}

// examineCompaction finds out whether old revisions are ever removed: a busy lock fills the disk if not.
func (x *examination) examineCompaction(ctx context.Context) error {
	var revision int64
	old := errors.New("not asked")
	err := x.store.attemptWithTimeout(ctx, func(ctx context.Context) error {
		answer, err := x.store.cli.Get(ctx, x.emptyKey(), clientv3.WithCountOnly())
		if err != nil {
			return err
		}
		revision = answer.Header.GetRevision()
		_, old = x.store.cli.Get(ctx, x.emptyKey(), clientv3.WithCountOnly(), clientv3.WithRev(1))
		if errors.Is(old, rpctypes.ErrCompacted) {
			return nil
		}
		return old
	})
	const id = "etcd-compaction"
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		f := examine.Attention(id, "the user may not read beside its locks, so whether old revisions are removed is unknown")
		f.Advice = "make sure that the cluster has --auto-compaction-retention"
		x.found.Add("", f)
	case err != nil:
		return err
	case old != nil:
		x.found.Add("", examine.Fine(id, "old revisions are removed"))
	case revision < x.store.limits.uncompacted:
		x.found.Add("", examine.Fine(id, "there are only %d revisions", revision))
	default:
		f := examine.Attention(id, "none of %d revisions was ever removed: locks that are used fill the disk", revision)
		f.Advice = "set --auto-compaction-retention, to 1h for example, on all members"
		x.found.Add("", f)
	}
	return nil
}

// examineRights looks for missing rights by transactions that would write, if a comparison that is always
// false were true. etcd checks the rights to both branches before it compares.
func (x *examination) examineRights(ctx context.Context) error {
	prefix := x.store.keys.prefix
	keys := []string{prefix + reservedName + "/doctor"}
	if prefix != "" { // without one, the names that the user may lock are unknown
		keys = append(keys, prefix+"stile-doctor")
	}
	never := clientv3.Compare(clientv3.Version(keys[0]), "<", 0)
	var missing []string
	for _, key := range keys {
		err := x.store.attemptWithTimeout(ctx, func(ctx context.Context) error {
			_, err := x.store.cli.Txn(ctx).If(never).Then(clientv3.OpPut(key, ""), clientv3.OpGet(key)).Commit()
			return err
		})
		switch {
		case errors.Is(err, rpctypes.ErrPermissionDenied):
			missing = append(missing, fmt.Sprintf("%q", strings.TrimSuffix(strings.TrimSuffix(key, "doctor"), "stile-")))
		case errors.Is(err, rpctypes.ErrNoSpace), errors.Is(err, rpctypes.ErrCorrupt): // an alarm, reported above
		case err != nil:
			return err
		}
	}
	if len(missing) == 0 {
		x.found.Add("", examine.Fine("etcd-rights", "the user may read and write the keys that begin with %q", cmp.Or(prefix, reservedName+"/")))
		return nil
	}
	f := examine.Attention("etcd-rights", "the user may not read and write the keys that begin with %s: locks fail, or some of what they can do does",
		strings.Join(missing, " and "))
	f.Advice = "grant a role of the user readwrite on that prefix: etcdctl role grant-permission --prefix=true ROLE readwrite PREFIX"
	x.found.Add("", f)
	return nil
}
