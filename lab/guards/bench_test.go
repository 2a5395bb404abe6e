//go:build linux

package guards_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/lab/guards"
	"github.com/stilelock/stile/storeurl"
)

// BenchmarkGuards measures guarded and plain writes in turns, and reports the medians and their ratio. Run
// it with -benchtime=1x: it decides itself how many writes it makes.
func BenchmarkGuards(b *testing.B) {
	const writes, warmUp = 300, 20
	for _, kind := range guards.Kinds() {
		b.Run(kind.Name, func(b *testing.B) {
			ctx := context.Background()
			s := serversFor(b, kind, writerProgram(b))
			guarded, plain := openJournal(b, kind, newName(), s), openJournal(b, kind, newName(), s)
			locks, err := testservers.Retry(func() (*storeurl.Conn, error) { return storeurl.Open(ctx, kind.Locks(s), nil) })
			if err != nil {
				b.Fatal(err)
			}
			client, err := stile.New(locks.Store, nil)
			if err != nil {
				b.Fatal(err)
			}
			hold, err := client.Mutex(newName()).Lock(ctx)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				var took [2][]time.Duration
				for i := range 2 * (warmUp + writes) {
					began := time.Now()
					if i%2 == 0 {
						err = guarded.Append(ctx, hold)
					} else {
						err = plain.AppendPlain(ctx, hold.Token())
					}
					if err != nil {
						b.Fatal(err)
					}
					if i >= 2*warmUp {
						took[i%2] = append(took[i%2], time.Since(began))
					}
				}
				var median [2]float64
				for i, all := range took {
					slices.Sort(all)
					median[i] = float64(all[len(all)/2].Microseconds())
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(median[0], "µs/guarded")
				b.ReportMetric(median[1], "µs/plain")
				b.ReportMetric(median[0]/median[1], "ratio")
			}
			if err := client.Close(ctx); err != nil {
				b.Error(err)
			}
			_ = locks.Close()
		})
	}
}
