//go:build unix

package redisstore_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
)

// BenchmarkSession_manyHolds makes one client take 100 000 locks, renew them and release them: the
// other half of D14. It reports the time of each step and the cost of a renewal in commands and in
// CPU time of the server and the client.
func BenchmarkSession_manyHolds(b *testing.B) {
	const locks, ttl = 100_000, time.Minute
	for b.Loop() {
		server := testservers.StartRedis(b)
		renewals := make(chan stile.RenewalEvent, 1000)
		client, err := stile.New(storeAt(b, server.Addr()), &stile.Options{
			TTL:   ttl,
			Hooks: stile.Hooks{SessionRenewed: func(r stile.RenewalEvent) { renewals <- r }},
		})
		if err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		holds := lockMany(b, client, locks)
		b.ReportMetric(time.Since(start).Seconds(), "s-to-lock-all")

		for len(renewals) > 0 {
			wantRenewed(b, <-renewals) // renewals before all locks were taken
		}
		wantRenewed(b, <-renewals) // may have begun before that
		server.Do("CONFIG", "RESETSTAT")
		there, here := serverTime(b, server), processTime(b)
		r := <-renewals
		wantRenewed(b, r)
		b.ReportMetric(r.RoundTrip.Seconds(), "s-to-renew-all")
		b.ReportMetric((serverTime(b, server) - there).Seconds(), "s-of-server-to-renew")
		b.ReportMetric((processTime(b) - here).Seconds(), "s-of-client-to-renew")
		b.ReportMetric(float64(commandStats(b, server).all())/locks, "commands-to-renew-one")
		for _, h := range holds {
			if !h.Valid() {
				b.Fatalf("lock %q was lost: %v", h.Name(), h.Err())
			}
		}
		start = time.Now()
		if err := client.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(start).Seconds(), "s-to-close")
	}
}

// lockMany takes locks, one at a time per goroutine.
func lockMany(b *testing.B, client *stile.Client, locks int) []*stile.Hold {
	b.Helper()
	const goroutines = 16
	holds := make([]*stile.Hold, locks)
	var work sync.WaitGroup
	for first := range goroutines {
		work.Go(func() {
			for i := first; i < locks; i += goroutines {
				var err error
				if holds[i], err = client.Mutex(fmt.Sprintf("lock/%d", i)).Lock(b.Context()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	if b.Failed() {
		b.FailNow()
	}
	return holds
}

func wantRenewed(b *testing.B, r stile.RenewalEvent) {
	b.Helper()
	if r.Err != nil {
		b.Errorf("a renewal has failed: %v", r.Err)
	}
}

// serverTime returns the CPU time used by a server.
func serverTime(b *testing.B, server *testservers.Redis) (sum time.Duration) {
	b.Helper()
	info, err := server.Do("INFO", "cpu").ToString()
	if err != nil {
		b.Fatal(err)
	}
	for l := range strings.Lines(info) {
		name, seconds, _ := strings.Cut(strings.TrimSpace(l), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			s, err := strconv.ParseFloat(seconds, 64)
			if err != nil {
				b.Fatal(err)
			}
			sum += time.Duration(s * float64(time.Second))
		}
	}
	return sum
}

// processTime returns the CPU time used by this process.
func processTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
