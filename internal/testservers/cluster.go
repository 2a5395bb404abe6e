package testservers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// EtcdCluster is several etcd servers that agree with each other.
type EtcdCluster struct {
	members []*Etcd
}

// StartEtcdCluster starts an etcd of n members, waits until each of them answers and stops them when the test ends.
//
// They beat every 200 ms with elections after two seconds, so the smallest TTL they grant is three seconds: on a busy
// machine members that wait for less elect leaders all the time. flags are as in [StartEtcd].
func StartEtcdCluster(t testing.TB, n int, flags ...string) *EtcdCluster {
	t.Helper()
	flags = append([]string{"--heartbeat-interval=200", "--election-timeout=2000"}, flags...)
	members, err := startMembers(n, flags)
	Check(t, err)
	for _, m := range members {
		m.t = t
	}
	bind(t, members...)
	return &EtcdCluster{members}
}

// Members returns the members, always in the same order.
func (c *EtcdCluster) Members() []*Etcd { return slices.Clone(c.members) }

// Endpoints returns the addresses that clients connect to, as host:port, in the order of Members.
func (c *EtcdCluster) Endpoints() []string {
	var endpoints []string
	for _, m := range c.members {
		endpoints = append(endpoints, m.Endpoint())
	}
	return endpoints
}

// Leader returns the member that leads. While there is none, after the last one was killed or paused say, it waits;
// after minutes the test fails. A leader that was paused and has not heard of its successor yet is not
// mistaken for one.
func (c *EtcdCluster) Leader(t testing.TB) *Etcd {
	t.Helper()
	// Polling, because etcd tells nobody outside of an election.
	for end := time.Now().Add(longEnough); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if leader := c.leader(t.Context()); leader != nil {
			return leader
		}
	}
	t.Fatalf("testservers: the etcd cluster %v has had no leader for %v", c.Endpoints(), longEnough)
	return nil
}

// leader asks every member once and returns the one that leads, nil if none does.
func (c *EtcdCluster) leader(ctx context.Context) *Etcd {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	replies := make([]*etcdStatus, len(c.members))
	var asking sync.WaitGroup
	for i, m := range c.members {
		asking.Go(func() {
			var reply etcdStatus
			if m.call(ctx, "maintenance/status", struct{}{}, &reply) == nil {
				replies[i] = &reply
			}
		})
	}
	asking.Wait()
	if i := leads(replies); i >= 0 {
		return c.members[i]
	}
	return nil
}

// etcdStatus is what a member says of the cluster, as far as we want to know.
type etcdStatus struct {
	Header struct {
		MemberID uint64 `json:"member_id,string"`
	} `json:"header"`
	Leader   uint64 `json:"leader,string"`
	RaftTerm uint64 `json:"raftTerm,string"`
}

// leads returns which of the members, by their replies or nil, says that it leads in the latest term that any of them
// knows of; -1 if none does.
func leads(replies []*etcdStatus) int {
	leader, term := -1, uint64(0)
	for i, r := range replies {
		if r == nil || r.RaftTerm < term {
			continue
		}
		if r.RaftTerm > term {
			leader, term = -1, r.RaftTerm
		}
		if r.Leader == r.Header.MemberID {
			leader = i
		}
	}
	return leader
}

// call makes a request of etcd's JSON gateway, "kv/range" for example. The server must speak neither TLS nor know users.
func (e *Etcd) call(ctx context.Context, method string, request, reply any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.client+"/v3/"+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd %s: %s: %s", e.name, res.Status, text)
	}
	return json.Unmarshal(text, reply)
}
