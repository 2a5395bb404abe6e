package etcdstore

import (
	"testing"
	"time"
)

func TestLeaseReadings_recent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ttl, left, age time.Duration
		want           time.Duration // zero if the lease must be queried
	}{
		{time.Minute, 41 * time.Second, 0, 41 * time.Second},
		{time.Minute, 41 * time.Second, 999 * time.Millisecond, 40*time.Second + time.Millisecond},
		{time.Minute, time.Second, 999 * time.Millisecond, time.Millisecond},
		{time.Minute, 41 * time.Second, time.Second, 0},
		{time.Hour, 41 * time.Second, time.Second, 0},
		{10 * time.Second, 7 * time.Second, 499 * time.Millisecond, 6*time.Second + 501*time.Millisecond},
		{10 * time.Second, 7 * time.Second, 500 * time.Millisecond, 0},
		{9 * time.Second, 7 * time.Second, 0, 0},
	} {
		var l leaseReadings
		at := time.Now()
		l.add(1, leaseReading{at, tt.left, tt.ttl})
		if got, known := l.remaining(1, at.Add(tt.age)); got != tt.want || known != (tt.want > 0) {
			t.Errorf("%v after a reading of %v with a TTL of %v: got %v, %t; want %v", tt.age, tt.left, tt.ttl, got, known, tt.want)
		}
		if got, known := l.remaining(2, at); known {
			t.Errorf("another lease: got %v", got)
		}
	}
}

// With a recent reading, a live session does not look as if it had not renewed its lease for half of its TTL.
func TestLeaseReadings_showRenewals(t *testing.T) {
	t.Parallel()
	for ttl := time.Second; ttl <= 5*time.Minute; ttl += time.Second {
		var l leaseReadings
		at := time.Now()
		l.add(1, leaseReading{at, (ttl * 2 / 3).Truncate(time.Second), ttl}) // just before the renewal
		for age := time.Duration(0); age < 2*time.Second; age += 50 * time.Millisecond {
			if left, known := l.remaining(1, at.Add(age)); known && left < ttl/2 {
				t.Errorf("%v after a reading, a TTL of %v: got %v", age, ttl, left)
			}
		}
	}
}

func TestLeaseReadings_forgetOldOnes(t *testing.T) {
	t.Parallel()
	var l leaseReadings
	at := time.Now()
	l.add(1, leaseReading{at, time.Minute, time.Minute})
	l.add(2, leaseReading{at.Add(time.Second), time.Minute, time.Minute})
	if _, known := l.last[1]; known || len(l.last) != 1 {
		t.Errorf("got %v, want only the second reading", l.last)
	}
}
