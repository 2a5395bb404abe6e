package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/storeurl"
)

// The load that both servers have: locks that are held all the time, and locks that are handed over between two
// clients. A hand-over is three changes that a reader of events is told of.
const (
	pageLocks     = 10_000
	pageHolders   = 10 // clients that hold them
	pageHandOvers = 4  // locks that are handed over
	pageInterval  = 50 * time.Millisecond
	pageTTL       = time.Minute
)

// measurePage measures what the page of stile serve costs. Two servers have the same load at the same time, one
// with the page and one without; each round compares them while nobody looks at the page, and while a reader does.
func measurePage(ctx context.Context, c config) (_ *report, err error) {
	with, without := &pageServer{what: "with the page"}, &pageServer{what: "without"}
	both := []*pageServer{with, without}
	defer func() {
		for _, s := range both {
			err = errors.Join(err, s.stop())
		}
	}()
	addrs, err := freeAddresses(1)
	if err != nil {
		return nil, err
	}
	with.page = addrs[0]
	fill, fillCtx := errgroup.WithContext(ctx)
	for _, s := range both {
		fill.Go(func() error { return s.start(fillCtx, c) })
	}
	if err := fill.Wait(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &report{About: []string{fmt.Sprintf("%s: two servers with %d held locks each, and %d hand-overs a second; %d windows of %v",
		runtime.Version(), pageLocks, pageHandOvers*int(time.Second/pageInterval), c.rounds, 10*c.slice)}}
	for _, looking := range []bool{false, true} {
		viewer := "nobody looks"
		var reading sync.WaitGroup
		reader := &pageReader{url: "http://" + with.page}
		readCtx, stopReading := context.WithCancel(ctx)
		if looking {
			viewer = "with a reader of events, leases and metrics"
			reading.Go(func() { reader.run(readCtx) })
		}
		cpu := newTimed("processor time of a second, " + viewer)
		handOvers := newTimed("hand-over, " + viewer)
		err := measurePageWindows(ctx, c, both, func(s *pageServer, used time.Duration, took []time.Duration) {
			cpu.add(s.what, []time.Duration{used})
			handOvers.add(s.what, took)
		})
		stopReading()
		reading.Wait()
		if err := errors.Join(err, reader.check(looking)); err != nil {
			return nil, err
		}
		r.Timed = append(r.Timed, cpu.rows(with.what)...)
		r.Timed = append(r.Timed, handOvers.rows(with.what)...)
		r.Expected = append(r.Expected,
			expectation{cpu.what + ", with / without the page", cpu.ratio(with.what, without.what), 1.1, true},
			expectation{handOvers.what + ", with / without the page", handOvers.ratio(with.what, without.what), 1.05, true})
		if looking {
			r.About = append(r.About, fmt.Sprintf("the reader got %d lines in events", reader.lines))
		}
	}
	return r, nil
}

// measurePageWindows calls record with what each server used in each window. The first window warms up.
func measurePageWindows(ctx context.Context, c config, servers []*pageServer, record func(*pageServer, time.Duration, []time.Duration)) error {
	for round := range c.rounds + 1 {
		fmt.Fprintf(os.Stderr, "\r\x1b[Kwindow %d of %d", round, c.rounds)
		window, windowCtx := errgroup.WithContext(ctx)
		for _, s := range servers {
			window.Go(func() error {
				before, err := s.cpu()
				if err != nil {
					return err
				}
				began := time.Now()
				took, err := s.handOver(windowCtx, 10*c.slice)
				if err != nil {
					return err
				}
				after, err := s.cpu()
				s.used, s.took = time.Duration(float64(after-before)/time.Since(began).Seconds()), took
				return err
			})
		}
		if err := window.Wait(); err != nil {
			return err
		}
		for _, s := range servers {
			if round > 0 {
				record(s, s.used, s.took)
			}
		}
	}
	fmt.Fprintln(os.Stderr)
	return nil
}

// pageServer is a stile serve with its load.
type pageServer struct {
	what string
	page string // address of the page; empty for none
	*server
	conns   []*storeurl.Conn
	holders []*stile.Client
	pairs   [][2]*stile.Client

	// Of the last window.
	used time.Duration // processor time of a second
	took []time.Duration
}

func (s *pageServer) start(ctx context.Context, c config) (err error) {
	if s.server, err = newServer(); err != nil {
		return err
	}
	socket := filepath.Join(s.dir, "socket")
	// At a socket only, the page would need tokens.
	args := []string{"serve", "--socket", socket, "--listen", "127.0.0.1:0", "--data", filepath.Join(s.dir, "data")}
	if s.page != "" {
		args = append(args, "--page", s.page)
	}
	if err := s.server.start(c.stile, args...); err != nil {
		return err
	}
	ctx, cancel := s.untilExit(ctx)
	defer cancel()
	if err := await(ctx, func(context.Context) error { _, err := os.Stat(socket); return err }); err != nil {
		return err
	}
	connect := func() (*stile.Client, error) {
		conn, err := storeurl.Open(ctx, "etcd+unix://"+socket, nil)
		if err != nil {
			return nil, err
		}
		s.conns = append(s.conns, conn)
		return stile.New(conn.Store, &stile.Options{TTL: pageTTL})
	}
	for range pageHolders {
		client, err := connect()
		if err != nil {
			return err
		}
		s.holders = append(s.holders, client)
	}
	for range pageHandOvers {
		var pair [2]*stile.Client
		for i := range pair {
			if pair[i], err = connect(); err != nil {
				return err
			}
		}
		s.pairs = append(s.pairs, pair)
	}
	filling, fillCtx := errgroup.WithContext(ctx)
	for i, client := range s.holders {
		filling.Go(func() error {
			for n := range pageLocks / pageHolders {
				if _, err := client.Mutex(fmt.Sprintf("held/%d/%05d", i, n)).Lock(fillCtx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return filling.Wait()
}

func (s *pageServer) stop() error {
	if s.server == nil {
		return nil
	}
	err := s.server.stop()
	for _, conn := range s.conns {
		_ = conn.Close() // its server has ended
	}
	return err
}

// cpu returns the processor time that the server has used.
func (s *pageServer) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmds[0].Process.Pid))
	if err != nil {
		return 0, err
	}
	// The name of the program, in parentheses, may contain spaces. Times are in hundredths of a second.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err, err2)
}

// handOver hands the locks of all pairs over, one each interval, for the given time. It returns how long it took
// from just before the release until the other client had the lock.
func (s *pageServer) handOver(ctx context.Context, d time.Duration) ([]time.Duration, error) {
	var mu sync.Mutex
	var all []time.Duration
	handing, ctx := errgroup.WithContext(ctx)
	for i, pair := range s.pairs {
		handing.Go(func() error {
			took, err := handOverPair(ctx, pair, fmt.Sprintf("handed/%d", i), d)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
			return err
		})
	}
	err := handing.Wait()
	return all, err
}

func handOverPair(ctx context.Context, pair [2]*stile.Client, name string, d time.Duration) (took []time.Duration, err error) {
	hold, err := pair[0].Mutex(name).Lock(ctx)
	if err != nil {
		return nil, err
	}
	ticker := time.NewTicker(pageInterval)
	defer ticker.Stop()
	for end, turn := time.Now().Add(d), 1; time.Now().Before(end); turn++ {
		place, err := pair[turn%2].Mutex(name).Join(ctx)
		if err != nil {
			return nil, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		began := time.Now()
		if err := hold.Release(ctx); err != nil {
			return nil, err
		}
		if hold, err = place.Wait(ctx); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, hold.Release(ctx)
}

// pageReader does what an open page does, and what Prometheus does.
type pageReader struct {
	url   string
	lines int // in events
	err   error
}

// run reads until ctx ends.
func (r *pageReader) run(ctx context.Context) {
	keys, update, err := r.readLines(ctx)
	if err != nil {
		r.err = err
		return
	}
	reading, ctx := errgroup.WithContext(ctx)
	reading.Go(func() error { return r.readEvents(ctx, update) })
	for query, interval := range map[string]time.Duration{
		"/api/v1/leases?key=" + strings.Join(keys[:40], "&key="): time.Second,
		"/api/v1/blame": 5 * time.Second,
		"/metrics":      5 * time.Second,
	} {
		reading.Go(func() error {
			for ; ctx.Err() == nil; pause(ctx, interval) {
				if err := r.get(ctx, query, io.Discard); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := reading.Wait(); ctx.Err() == nil {
		r.err = err
	}
}

// check returns an error if the reader has failed, or has read nothing although it was to.
func (r *pageReader) check(reads bool) error {
	if reads && r.err == nil && r.lines == 0 {
		return errors.New("the reader of the page got no events")
	}
	return r.err
}

// readLines reads all lines, in pages. It returns their keys, and the update from which events continue.
func (r *pageReader) readLines(ctx context.Context) (keys []string, update string, err error) {
	for after := ""; ; {
		var page struct {
			Lines        []struct{ Key string }
			Next, Update string
		}
		var text strings.Builder
		if err := r.get(ctx, "/api/v1/lines?limit=1000&after="+url.QueryEscape(after), &text); err != nil {
			return nil, "", err
		}
		if err := json.Unmarshal([]byte(text.String()), &page); err != nil {
			return nil, "", err
		}
		if update == "" {
			update = page.Update
		}
		for _, l := range page.Lines {
			keys = append(keys, l.Key)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if len(keys) < pageLocks {
		return nil, "", fmt.Errorf("the page has %d lines, want at least %d", len(keys), pageLocks)
	}
	return keys, update, nil
}

func (r *pageReader) readEvents(ctx context.Context, update string) error {
	return r.request(ctx, "/api/v1/events?after="+url.QueryEscape(update), func(body io.Reader) error {
		for in := bufio.NewReader(body); ; {
			text, err := in.ReadString('\n')
			if err != nil {
				return err
			}
			r.lines += strings.Count(text, `"line":`)
		}
	})
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (r *pageReader) get(ctx context.Context, query string, to io.Writer) error {
	return r.request(ctx, query, func(body io.Reader) error { _, err := io.Copy(to, body); return err })
}

func (r *pageReader) request(ctx context.Context, query string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+query, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("GET %.100s: %s: %.300s", query, resp.Status, text)
	}
	return read(resp.Body)
}
