package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.uber.org/zap"
)

// peerClient queries the other members of a cluster.
type peerClient struct {
	peers  map[string]string // URLs by name, without this member's own
	client *http.Client
}

// Time limits for queries. The one at the start is long, because lost data must be detected even if
// a member is busy. A machine that is down costs only the connect timeout.
const (
	connectTimeout      = time.Second
	queryTimeout        = 5 * time.Second
	startupQueryTimeout = 30 * time.Second
)

// newPeerClient returns a peerClient with the TLS configuration of this member.
func newPeerClient(c Cluster, e *embed.Config) (*peerClient, error) {
	transport, err := rafthttp.NewRoundTripper(e.PeerTLSInfo, connectTimeout)
	if err != nil {
		return nil, err
	}
	o := &peerClient{maps.Clone(c.Peers), &http.Client{Transport: transport}}
	delete(o.peers, c.Name)
	return o, nil
}

// view is the cluster as a member sees it.
type view struct {
	clusterID string
	members   []struct {
		ID         uint64   `json:"id"`
		PeerURLs   []string `json:"peerURLs"`
		ClientURLs []string `json:"clientURLs"` // empty until the member has served clients
	}
	err error // why there was no answer
}

// ask queries all members concurrently. It takes no longer than timeout plus connectTimeout.
func (o *peerClient) ask(ctx context.Context, timeout time.Duration) map[string]view {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var (
		queries sync.WaitGroup
		mu      sync.Mutex
	)
	views := map[string]view{}
	for name, peer := range o.peers {
		queries.Go(func() {
			v := o.askOne(ctx, peer)
			mu.Lock()
			defer mu.Unlock()
			views[name] = v
		})
	}
	queries.Wait()
	return views
}

func (o *peerClient) askOne(ctx context.Context, peer string) (v view) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, peer+"/members", nil)
	if err != nil {
		return view{err: err}
	}
	resp, err := o.client.Do(req)
	if err != nil {
		return view{err: errors.Unwrap(err)} // drop the URL
	}
	defer resp.Body.Close()
	v.clusterID = resp.Header.Get("X-Etcd-Cluster-ID")
	v.err = json.NewDecoder(resp.Body).Decode(&v.members)
	return v
}

// waiting returns what a member that cannot serve yet is waiting for, and the error of each member
// that does not answer.
func (o *peerClient) waiting(ctx context.Context, clusterID string) (text string, reasons []any) {
	var absent, foreign []string
	views := o.ask(ctx, queryTimeout)
	for _, name := range slices.Sorted(maps.Keys(views)) {
		switch v := views[name]; {
		case v.err != nil:
			absent, reasons = append(absent, name), append(reasons, name, v.err)
		case v.clusterID != clusterID:
			foreign = append(foreign, name)
		}
	}
	switch {
	case len(foreign) > 0:
		return "these members belong to another cluster or have different --peers: " + strings.Join(foreign, ", "), reasons
	case len(absent) > 0:
		return "waiting for the other members: " + strings.Join(absent, ", "), reasons
	default:
		return "waiting for the members to elect a leader", nil
	}
}

// A member that has lost its data must not return under its old ID: it has made promises to the
// others that it no longer knows. By etcd's rules it has to be removed and added again, which gives
// it a new ID.

// rejoin makes a member without data join its cluster as a new member, if the cluster runs and the
// member was added to it again.
func (c Config) rejoin(ctx context.Context, o *peerClient, e *embed.Config) error {
	if c.hasData() {
		return nil
	}
	urls, err := types.NewURLsMap(e.InitialCluster)
	if err != nil {
		return err
	}
	initial, err := membership.NewClusterFromURLsMap(zap.NewNop(), e.InitialClusterToken, urls)
	if err != nil {
		return err
	}
	initialID := uint64(initial.MemberByName(e.Name).ID)
	lost := false
	for _, v := range o.ask(ctx, startupQueryTimeout) {
		if v.clusterID != initial.ID().String() {
			continue // no answer, or another cluster
		}
		for _, m := range v.members {
			switch {
			case m.ID == initialID:
				lost = lost || len(m.ClientURLs) > 0
			case slices.Contains(m.PeerURLs, c.Cluster.Peers[e.Name]):
				e.ClusterState = embed.ClusterStateFlagExisting
				return nil // members that do not know it yet will learn it
			}
		}
	}
	if lost { // etcd detects this too, but only if the others answer within a second
		return c.lostData()
	}
	return nil
}

// isKnownToOthers reports whether a start failed because the cluster knows this member, whose data
// is not here.
func (c Config) isKnownToOthers(err error) bool {
	return c.Cluster.Name != "" && strings.Contains(err.Error(), "has already been bootstrapped")
}

func (c Config) lostData() error {
	return fmt.Errorf("member %s has lost its data: the data directory %s is empty, but the other members know it with data; "+
		"name the directory with its data with --data, or, to rejoin with an empty one, run etcdctl member remove and "+
		"etcdctl member add first", c.Cluster.Name, c.Dir)
}
