//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
)

// TestMain makes the test binary a worker if it is started as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "-job=") {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// All rows are measured once: a second run finds them in the file of results, though its last line
// is incomplete.
func TestRun_resumes(t *testing.T) {
	t.Parallel()
	results := filepath.Join(t.TempDir(), "results")
	args := []string{"-etcd", testservers.Binary(t, "etcd"), "-results", results, "-store", "etcd", "-measure", "waiters", "-idle", "0s", "-n", "1,12"}
	var first bytes.Buffer
	if err := run(t.Context(), args, &first); err != nil {
		t.Fatal(err)
	}
	for _, contender := range []string{stileName, peers[etcdStore]} {
		if n := strings.Count(first.String(), "| "+contender+" |"); n != 2 {
			t.Errorf("got %d rows of %s, want 2:\n%s", n, contender, first.String())
		}
	}
	f, err := os.OpenFile(results, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"contender":"sti`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var second bytes.Buffer
	args[1] = "no such program"
	if err := run(t.Context(), args, &second); err != nil {
		t.Fatal(err)
	}
	if second.String() != first.String() {
		t.Errorf("the second run printed\n%s\nwant\n%s", second.String(), first.String())
	}
}

// If a server ends instead of serving, the error contains what it has printed. The test is not parallel: a process
// that another test starts at this moment could inherit the open script, which then cannot be run.
func TestStartServers_showsOutput(t *testing.T) {
	dir := t.TempDir()
	program, ended := filepath.Join(dir, "server"), filepath.Join(dir, "ended")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho no space\ntouch "+ended+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(ended); err == nil {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	s, err := startServers(ctx, config{etcd: program}, etcdStore, 1)
	if err == nil || !strings.Contains(err.Error(), "etcd does not answer") || !strings.Contains(err.Error(), "no space") {
		t.Errorf("got error %v, want one with the output of the server", err)
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the servers is still there: %v", err)
	}
}

func TestRun_invalidArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-n", "0"},
		{"-n", "1,,2"},
		{"-n", "x"},
		{"-idle", "-1s"},
		{"-within", "0s"},
		{"-memory", "x"},
		{"-memory", "-1"},
		{"-store", "postgres"},
		{"-measure", "everything"},
		{"more"},
	} {
		if err := run(t.Context(), append(args, "-results", filepath.Join(t.TempDir(), "results")), &bytes.Buffer{}); err == nil {
			t.Errorf("run with %q succeeded", args)
		}
	}
}

// A row whose processes need more memory than allowed is not measured, and its processes end.
func TestRun_limitsMemory(t *testing.T) {
	t.Parallel()
	results := filepath.Join(t.TempDir(), "results")
	err := run(t.Context(), []string{"-store", "memory", "-measure", "waiters", "-n", "1", "-idle", "1m", "-memory", "1", "-results", results}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "-memory") {
		t.Errorf("with a limit of 1 MB: got %v", err)
	}
	if rows, err := readRows(results); err != nil || len(rows) > 0 {
		t.Errorf("got the rows %v, %v; want none", rows, err)
	}
}

// measureOne measures the only row of a store and a number, or a row of each contender.
func measureOne(t *testing.T, args ...string) rows {
	t.Helper()
	results := filepath.Join(t.TempDir(), "results")
	args = append(args, "-etcd", testservers.Binary(t, "etcd"), "-results", results)
	var out bytes.Buffer
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	found, err := readRows(results)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// The program fails if Stile loses a lock or forgets a waiter, and not if another contender does.
func TestRows_lost(t *testing.T) {
	t.Parallel()
	lost := &outageResult{Event: "reset", Lost: 1, Renewals: 2}
	for _, r := range []row{
		{Contender: stileName, Held: &heldResult{Reset: lost}},
		{Contender: stileName, Leader: &leaderResult{Change: lost}},
		{Contender: stileName, Sessions: &sessionsResult{Lost: 1}},
		{Contender: stileName, Sessions: &sessionsResult{Forgotten: 1}},
	} {
		if rows := (rows{r}); rows.lost() == nil {
			t.Errorf("%+v: no error", r)
		}
		r.Contender = peers[etcdStore]
		if err := (rows{r}).lost(); err != nil {
			t.Errorf("of another contender: %v", err)
		}
	}
	fine := &outageResult{Event: "reset", Renewals: 2}
	all := rows{
		{Contender: stileName, Held: &heldResult{Reset: fine}},
		{Contender: stileName, Held: &heldResult{}},
		{Contender: stileName, Leader: &leaderResult{Change: fine}},
		{Contender: stileName, Sessions: &sessionsResult{}},
		{Contender: stileName, Waiters: &waitersResult{}},
		{Contender: stileName, Names: &namesResult{}},
	}
	if err := all.lost(); err != nil {
		t.Error(err)
	}
}

// A run that takes too long stops, and says how to continue.
func TestRun_limitsTime(t *testing.T) {
	t.Parallel()
	results := filepath.Join(t.TempDir(), "results")
	err := run(t.Context(), []string{"-store", "memory", "-measure", "waiters", "-n", "1", "-idle", "1h", "-within", "10ms", "-results", results}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "run it again") {
		t.Errorf("within 10 ms: got %v", err)
	}
}

// A row that fails does not keep the others from being measured, and is measured in the next run.
func TestRun_continuesAfterFailure(t *testing.T) {
	t.Parallel()
	results := filepath.Join(t.TempDir(), "results")
	args := []string{"-store", "all", "-measure", "waiters", "-n", "1", "-idle", "0s", "-etcd", "no such program", "-redis", "neither", "-results", results}
	var out bytes.Buffer
	if err := run(t.Context(), args, &out); err == nil || !strings.Contains(err.Error(), "no such program") {
		t.Errorf("got %v", err)
	}
	rows, err := readRows(results)
	if err != nil || len(rows) == 0 || rows[len(rows)-1].Store != memoryStore {
		t.Errorf("got %v, %v; want the rows of the other stores", rows, err)
	}
	if !strings.Contains(out.String(), "| memory |") {
		t.Errorf("printed\n%s", out.String())
	}
}
