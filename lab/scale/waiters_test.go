//go:build linux

package main

import (
	"encoding/binary"
	"reflect"
	"testing"
)

// Every store counts what its waiters do.
func TestWaiters(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			const n = 12
			for _, r := range measureOne(t, "-store", store, "-measure", "waiters", "-idle", "0s", "-n", "12") {
				w := r.Waiters
				if w.Drain.Took <= 0 || w.Join.CPU <= 0 {
					t.Errorf("%v: got %+v", r, w)
				}
				if store == memoryStore {
					continue
				}
				// Each waiter sends at least one request to join and one to release. The last ones to join may
				// count as idle, because a few requests a second do.
				requests, listings := w.Join.Requests+w.Idle.Requests, w.Join.Listings+w.Idle.Listings
				if requests < n || w.Drain.Requests < n || w.Join.Bytes <= 0 {
					t.Errorf("%v: got %+v, want at least %d requests to join and to pass", r, w, n)
				}
				if store == zkStore && listings < n {
					t.Errorf("%v: got %v listings while joining, want at least %d", r, listings, n)
				}
			}
		})
	}
}

// The counts of ZooKeeper's requests do not depend on how the stream is divided into reads.
func TestZkFrames(t *testing.T) {
	frame := func(words ...uint32) (b []byte) {
		for _, w := range append([]uint32{uint32(4 * len(words))}, words...) {
			b = binary.BigEndian.AppendUint32(b, w)
		}
		return b
	}
	rootCheck := append([]byte{0, 0, 0, zkRootCheck}, make([]byte, zkRootCheck)...)
	binary.BigEndian.PutUint32(rootCheck[8:], zkOpMulti)
	binary.BigEndian.PutUint32(rootCheck[12:], zkOpCheck)
	up := append(frame(0, 0, 0, 0), frame(1, zkOpChildren, 0)...) // after a handshake
	up = append(up, frame(2, zkOpChildren2)...)
	up = append(up, frame(3, zkOpPing)...)
	up = append(up, frame(4, 1, 5, 6, 7, 8)...)
	up = append(up, rootCheck...)
	up = append(up, frame(5, zkOpMulti, zkOpCheck, 9)...) // another transaction
	noXid := ^uint32(0)
	down := append(frame(noXid), frame(1)...)
	down = append(down, frame(noXid, 2)...)
	for size := 1; size <= len(up); size++ {
		counts := &zkCounts{}
		z := &zkFrames{counts: counts}
		for _, s := range []struct {
			b    []byte
			read func([]byte)
		}{{up, z.up}, {down, z.down}} {
			for b := s.b; len(b) > 0; b = b[min(size, len(b)):] {
				s.read(b[:min(size, len(b))])
			}
		}
		got := []int64{counts.requests.Load(), counts.listings.Load(), counts.events.Load(), counts.bytes.Load()}
		if want := []int64{4, 2, 1, int64(len(down))}; !reflect.DeepEqual(got, want) {
			t.Fatalf("in reads of %d bytes: got %d requests, listings, events and bytes, want %d", size, got, want)
		}
	}
}
