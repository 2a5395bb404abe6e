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

// others asks the other members of a cluster what they know.
type others struct {
	peers map[string]string // URLs by name, without this member's own
	web   *http.Client
}

// How long a member may take to answer. What is said at the start, of data that is lost, must not be missed because a member
// is busy. A machine that is down costs no more than connecting may take.
const (
	connecting       = time.Second
	answering        = 5 * time.Second
	answeringAtStart = 30 * time.Second
)

// newOthers returns one that connects as this member does.
func newOthers(c Cluster, e *embed.Config) (*others, error) {
	transport, err := rafthttp.NewRoundTripper(e.PeerTLSInfo, connecting)
	if err != nil {
		return nil, err
	}
	o := &others{maps.Clone(c.Peers), &http.Client{Transport: transport}}
	delete(o.peers, c.Name)
	return o, nil
}

// view is how a member sees its cluster.
type view struct {
	clusterID string
	members   []struct {
		ID         uint64   `json:"id"`
		PeerURLs   []string `json:"peerURLs"`
		ClientURLs []string `json:"clientURLs"` // none before it has served
	}
	err error // why it has not told
}

// ask asks all of them at once. It takes no longer than patience, and the time it takes to connect.
func (o *others) ask(ctx context.Context, patience time.Duration) map[string]view {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var (
		asking sync.WaitGroup
		mu     sync.Mutex
	)
	views := map[string]view{}
	for name, peer := range o.peers {
		asking.Go(func() {
			v := o.askOne(ctx, peer)
			mu.Lock()
			defer mu.Unlock()
			views[name] = v
		})
	}
	asking.Wait()
	return views
}

func (o *others) askOne(ctx context.Context, peer string) (v view) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, peer+"/members", nil)
	if err != nil {
		return view{err: err}
	}
	resp, err := o.web.Do(req)
	if err != nil {
		return view{err: errors.Unwrap(err)} // without the address
	}
	defer resp.Body.Close()
	v.clusterID = resp.Header.Get("X-Etcd-Cluster-ID")
	v.err = json.NewDecoder(resp.Body).Decode(&v.members)
	return v
}

// waiting says what a member waits for before it can serve, and why for each of the others.
func (o *others) waiting(ctx context.Context, clusterID string) (text string, reasons []any) {
	var absent, strangers []string
	views := o.ask(ctx, answering)
	for _, name := range slices.Sorted(maps.Keys(views)) {
		switch v := views[name]; {
		case v.err != nil:
			absent, reasons = append(absent, name), append(reasons, name, v.err)
		case v.clusterID != clusterID:
			strangers = append(strangers, name)
		}
	}
	switch {
	case len(strangers) > 0:
		return "these members are of another cluster, or have other --peers: " + strings.Join(strangers, ", "), reasons
	case len(absent) > 0:
		return "waiting for the other members: " + strings.Join(absent, ", "), reasons
	default:
		return "waiting for the members to elect a leader", nil
	}
}

// A member whose data are lost must not come back as itself: it has promised things that it does not know of any more.
// Under etcd's rules it has to be removed and added again, and so gets another ID.

// rejoin makes a member without data join its cluster, if that runs and has added it anew.
func (c Config) rejoin(ctx context.Context, o *others, e *embed.Config) error {
	if c.hasData() {
		return nil
	}
	urls, err := types.NewURLsMap(e.InitialCluster)
	if err != nil {
		return err
	}
	began, err := membership.NewClusterFromURLsMap(zap.NewNop(), e.InitialClusterToken, urls)
	if err != nil {
		return err
	}
	first := uint64(began.MemberByName(e.Name).ID)
	lost := false
	for _, v := range o.ask(ctx, answeringAtStart) {
		if v.clusterID != began.ID().String() {
			continue // silent, or a stranger
		}
		for _, m := range v.members {
			switch {
			case m.ID == first:
				lost = lost || len(m.ClientURLs) > 0
			case slices.Contains(m.PeerURLs, c.Cluster.Peers[e.Name]):
				e.ClusterState = embed.ClusterStateFlagExisting
				return nil // who does not know that yet will
			}
		}
	}
	if lost { // etcd would find out by itself, unless it takes the others a second to answer
		return c.lostData()
	}
	return nil
}

// isKnownToOthers reports whether a start has failed because the cluster knows this member with data that is not here.
func (c Config) isKnownToOthers(err error) bool {
	return c.Cluster.Name != "" && strings.Contains(err.Error(), "has already been bootstrapped")
}

func (c Config) lostData() error {
	return fmt.Errorf("member %s has lost its data: the data directory %s is empty, and the other members know it with data; "+
		"name the directory that has the data with --data, or, to rejoin with an empty one, run etcdctl member remove and "+
		"etcdctl member add first", c.Cluster.Name, c.Dir)
}
