// Package nemesis hurts what a torture run is about: workers that hold locks, the servers that keep them, and the network
// between them. It says what it does in the run's history.
//
//	faults, err := nemesis.Parse("holder-pause,leader-kill", "etcd3")
//	cluster, err := site.Start(ctx, network, "etcd3", nemesis.Options(faults))
//	…
//	nemesis.Run(ctx, &nemesis.World{Cluster: cluster, …}, faults, nemesis.Schedule{Seed: 1})
//
// A schedule is decided by its seed alone: which faults, in which order, for how long. Whom they hit depends on who holds and
// who leads at the time.
//
// Like package site it is for Linux.
package nemesis
