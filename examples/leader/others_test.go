package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"

	"github.com/stilelock/stile"
)

// A River client that works only in the leader: for jobs of which one process at a time may do any. River
// has an election of its own, but only for its periodic jobs and its maintenance.
//
// The end of the context stops the client and cancels its jobs. Stopped waits for them. The client can be
// started again.
func Example_river() {
	var (
		ctx      context.Context
		election *stile.Election
		jobs     *river.Client[pgx.Tx]
	)
	_ = election.Run(ctx, "", func(ctx context.Context, _ *stile.Leadership) error {
		if err := jobs.Start(ctx); err != nil {
			return err
		}
		<-jobs.Stopped()
		return nil
	})
}

// A Temporal worker that works only in the leader: for activities that may not overlap, as on a device or a
// system with one login. A worker that was stopped cannot be started again, so each leadership has a new one.
//
// If the worker fails, Run returns its error, and the next candidate leads. A worker that stops lets its activities
// end for as long as its option WorkerStopTimeout says. The default is zero: then they may still be under way when it
// has stopped.
func Example_temporal() {
	var (
		ctx      context.Context
		election *stile.Election
		temporal client.Client
	)
	_ = election.Run(ctx, "", func(ctx context.Context, _ *stile.Leadership) error {
		w := worker.New(temporal, "printer", worker.Options{})
		// Register workflows and activities here.
		stop := make(chan any)
		defer context.AfterFunc(ctx, func() { close(stop) })()
		return w.Run(stop)
	})
}
