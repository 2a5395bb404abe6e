//go:build linux

package main

import "testing"

// No waiter is forgotten when the server is killed and started again.
// Promise: P7
func TestSessions(t *testing.T) {
	t.Parallel()
	for _, r := range measureOne(t, "-store", "etcd", "-measure", "sessions", "-idle", "0s", "-n", "30") {
		s := r.Sessions
		if s.Forgotten > 0 || s.Lost > 0 || s.Down <= 0 || s.Join.Requests+s.Idle.Requests < 30 {
			t.Errorf("%v: got %+v", r, s)
		}
	}
}
