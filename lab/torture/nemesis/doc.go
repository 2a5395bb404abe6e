// Package nemesis injects faults into a torture run: into the workers that hold locks, the servers
// of the store, and the network between them. It records each fault in the history of the run.
//
//	faults, err := nemesis.Parse("holder-pause,leader-kill", "etcd3")
//	cluster, err := site.Start(ctx, network, "etcd3", nemesis.Options(faults))
//	…
//	nemesis.Run(ctx, &nemesis.World{Cluster: cluster, …}, faults, nemesis.Schedule{Seed: 1})
//
// The seed alone determines the schedule: which faults, in which order, for how long. The victims
// depend on which workers hold locks and which server leads at the time.
//
// Like package site, it needs Linux.
package nemesis
