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

// EtcdCluster is an etcd cluster of several members.
type EtcdCluster struct {
	members []*Etcd
}

// StartEtcdCluster starts an etcd cluster of n members, waits until all are ready, and stops them
// when the test ends.
//
// The heartbeat interval is 200 ms and the election timeout 2 s, so the smallest TTL granted is 3
// s. With shorter timeouts, members on a busy machine elect leaders constantly. flags are as in
// [StartEtcd].
func StartEtcdCluster(t testing.TB, n int, flags ...string) *EtcdCluster {
	t.Helper()
	flags = append([]string{"--heartbeat-interval=200", "--election-timeout=2000"}, flags...)
	members, err := startMembers(n, flags)
	Check(t, err)
	for _, m := range members {
		m.t = t
	}
	closeWithTest(t, members...)
	return &EtcdCluster{members}
}

// Members returns the members, always in the same order.
func (c *EtcdCluster) Members() []*Etcd { return slices.Clone(c.members) }

// Endpoints returns the addresses for clients, as host:port, in the order of Members.
func (c *EtcdCluster) Endpoints() []string {
	var endpoints []string
	for _, m := range c.members {
		endpoints = append(endpoints, m.Endpoint())
	}
	return endpoints
}

// Leader returns the leader. While there is none, for example after a leader was killed or paused,
// it waits. The test fails after three minutes. A former leader that was paused and does not know
// of its successor is not returned.
func (c *EtcdCluster) Leader(t testing.TB) *Etcd {
	t.Helper()
	// etcd does not notify clients of elections, so poll.
	for end := time.Now().Add(processTimeout); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if leader := c.leader(t.Context()); leader != nil {
			return leader
		}
	}
	t.Fatalf("testservers: the etcd cluster %v has had no leader for %v", c.Endpoints(), processTimeout)
	return nil
}

// leader asks every member once and returns the leader, or nil.
func (c *EtcdCluster) leader(ctx context.Context) *Etcd {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	replies := make([]*etcdStatus, len(c.members))
	var doMu sync.WaitGroup
	for i, m := range c.members {
		doMu.Go(func() {
			var reply etcdStatus
			if m.call(ctx, "maintenance/status", struct{}{}, &reply) == nil {
				replies[i] = &reply
			}
		})
	}
	doMu.Wait()
	if i := leaderIndex(replies); i >= 0 {
		return c.members[i]
	}
	return nil
}

// etcdStatus is the part of a member's status that is used here.
type etcdStatus struct {
	Header struct {
		MemberID uint64 `json:"member_id,string"`
	} `json:"header"`
	Leader   uint64 `json:"leader,string"`
	RaftTerm uint64 `json:"raftTerm,string"`
}

// leaderIndex returns the index of the member that reports itself as leader in the latest term of
// all replies, or -1. A reply is nil if the member did not answer.
func leaderIndex(replies []*etcdStatus) int {
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

// call makes a request to etcd's JSON gateway; method is "kv/range", for example. It works only
// without TLS and authentication.
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
