//go:build linux

package main

import "testing"

// Every store measures the locks that a client holds, and they come through a reset and the death of the
// leader.
func TestHeld(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			for _, r := range measureOne(t, "-store", store, "-measure", "held", "-ttl", "20s", "-n", "1000") {
				h := r.Held
				if h.Heap <= 0 || h.Rest.Took <= 0 || h.ClientCPU <= 0 || h.Rest.CPU <= 0 {
					t.Errorf("%v: got %+v", r, h)
				}
				if r.Contender == stileName && h.Renewals == 0 {
					t.Errorf("%v: no renewal was measured", r)
				}
				if stile := r.Contender == stileName && store != memoryStore; stile != (h.Reset != nil) || stile && h.Reset.Renewals == 0 {
					t.Errorf("%v: got %+v after a reset", r, h.Reset)
				}
			}
		})
	}
}

func TestLeader(t *testing.T) {
	for _, store := range []string{etcdStore, redisStore, zkStore} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			for _, r := range measureOne(t, "-store", store, "-measure", "leader", "-ttl", "40s", "-n", "200") {
				if c := r.Leader.Change; c.Renewals == 0 {
					t.Errorf("%v: got %+v", r, c)
				}
			}
		})
	}
}
