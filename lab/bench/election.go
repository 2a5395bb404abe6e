package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/stilelock/stile/store/etcdstore"
)

// stockElection is the election of the etcd client.
const stockElection = "concurrency.Election"

// measureElections measures on etcd how long a candidate that has waited for a while takes to become
// the leader, after the leader has resigned and after it was killed.
func (e *etcd) measureElections(ctx context.Context, c config, admin *clientv3.Client, r *report) error {
	b, err := measureSetting(ctx, c, setting{
		name: "etcd, Campaign and Resign",
		contenders: []contender{
			{name: stockElection, connect: func(context.Context, int) (client, error) { return e.candidate(stockElection, sessionTTL) }},
			{name: stileName, connect: func(context.Context, int) (client, error) { return e.candidate(stileName, sessionTTL) }},
		},
		handOverDelay: func(int) time.Duration { return settled },
		beforeRound:   func(ctx context.Context) error { return compact(ctx, admin) },
		commandCount:  e.requests,
	})
	if err != nil {
		return err
	}
	r.Settings = append(r.Settings, b.report())
	fail := newTimed(fmt.Sprintf("etcd, TTL %v: from the kill of the leader until Campaign returns", failOverTTL(c)))
	began := time.Now()
	defer fmt.Fprintln(os.Stderr) // ends the progress line
	for round := range c.rounds {
		for i := range electionContenders {
			name := electionContenders[(round+i)%len(electionContenders)]
			fmt.Fprintf(os.Stderr, "\r\x1b[Kelections %v  round %d of %d: %s", time.Since(began).Round(time.Second), round+1, c.rounds, name)
			took, err := e.measureFailOver(ctx, c, name, admin)
			if err != nil {
				return fmt.Errorf("fail-over: %s: %w", name, err)
			}
			fail.add(name, took)
		}
	}
	r.Timed = append(r.Timed, fail.rows(stileName)...)
	r.Expected = append(r.Expected,
		expectation{"hand-over after Resign, Stile / " + stockElection, b.handOverRatio(stockElection), 1, true},
		expectation{"fail-over after a kill, Stile / " + stockElection, fail.ratio(stileName, stockElection), 1, true})
	return nil
}

// settled is longer than the 100 ms that the watch of a new candidate of the peer may be behind, so
// that its hand-over is measured, and not that.
const settled = 150 * time.Millisecond

// elections is with how many elections at once a fail-over is measured.
const elections = 24

// failOverTTL returns the TTL of all sessions when fail-overs are measured: whole seconds, as the peer
// wants it, and at least two, as etcd wants it.
func failOverTTL(c config) time.Duration { return max(5*c.slice, 2*time.Second).Truncate(time.Second) }

var electionContenders = []string{stockElection, stileName}

// candidate returns a client whose Lock campaigns and whose unlock resigns.
func (e *etcd) candidate(contender string, ttl time.Duration) (client, error) {
	cli, err := e.dial()
	if err != nil {
		return nil, err
	}
	if contender == stockElection {
		session, err := concurrency.NewSession(cli, concurrency.WithTTL(int(ttl.Seconds())))
		campaign := func(ctx context.Context, name string) (func(context.Context) error, error) {
			election := concurrency.NewElection(session, name)
			return election.Resign, election.Campaign(ctx, "value")
		}
		return funcClient{campaign, func() { _ = session.Close() }}, err
	}
	st, err := etcdstore.New(cli, nil)
	if err != nil {
		return nil, err
	}
	c, err := newStile(st, ttl, func() {})
	if err != nil {
		return nil, err
	}
	campaign := func(ctx context.Context, name string) (func(context.Context) error, error) {
		leadership, err := c.(stileClient).client.Election(name).Campaign(ctx, "value")
		if err != nil {
			return nil, err
		}
		return leadership.Resign, nil
	}
	return funcClient{campaign, c.Close}, nil
}

// numberedName returns the name of election or lock number i.
func (j job) numberedName(i int) string { return fmt.Sprintf("%s-%d", j.Name, i) }

// lead becomes the leader of all elections, of each with a session of its own, and leads until the
// process is killed or its standard input ends. The sessions begin at different times, so that at any
// moment their last renewals are of different age.
func (j job) lead(ctx context.Context, in io.Reader, out io.Writer) error {
	e := &etcd{endpoint: j.Addr}
	for i := range j.Lead {
		c, err := e.candidate(j.Contender, j.TTL)
		if err != nil {
			return err
		}
		if _, err := c.Lock(ctx, j.numberedName(i)); err != nil {
			return err
		}
		time.Sleep(j.Slice / time.Duration(j.Lead))
	}
	return j.awaitSignal(in, out)
}

// measureFailOver kills the leaders of all elections and returns after which times the candidates
// lead.
func (e *etcd) measureFailOver(ctx context.Context, c config, contender string, admin *clientv3.Client) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, workerTimeout)
	defer cancel()
	j := job{
		Store: "etcd", Addr: e.endpoint, Contender: contender, Name: fmt.Sprintf("election-%d-%d", os.Getpid(), time.Now().UnixNano()),
		Lead: elections, TTL: failOverTTL(c), Slice: 6 * c.slice,
	}
	leader, err := startWorker(ctx, j)
	if err != nil {
		return nil, err
	}
	defer leader.kill()
	if err := leader.awaitReady(); err != nil {
		return nil, err
	}
	follower, err := e.candidate(contender, j.TTL)
	if err != nil {
		return nil, err
	}
	defer follower.Close()
	type result struct {
		at     time.Time
		resign func(context.Context) error
		err    error
	}
	results := make(chan result, j.Lead)
	for i := range j.Lead {
		go func() {
			resign, err := follower.Lock(ctx, j.numberedName(i))
			results <- result{time.Now(), resign, err}
		}()
	}
	// Every election has a leader and a candidate.
	for {
		resp, err := admin.Get(ctx, j.Name, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return nil, err
		}
		if resp.Count >= int64(2*j.Lead) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(settled)
	killed := time.Now()
	leader.kill()
	var took []time.Duration
	var errs []error
	for range j.Lead {
		r := <-results
		if r.err != nil {
			errs = append(errs, r.err)
			continue
		}
		took = append(took, r.at.Sub(killed))
		errs = append(errs, r.resign(ctx))
	}
	return took, errors.Join(errs...)
}
