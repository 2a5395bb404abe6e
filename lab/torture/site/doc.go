// Package site provides the place of a torture run: a private network with a node for each server
// and worker, which can be isolated from each other, and clusters of real servers, which can be
// killed, paused and isolated.
//
//	here, err := site.Enter()                 // first of all: executes the process again, in its own namespaces
//	network, err := here.Network()
//	cluster, err := site.Start(ctx, network, "etcd3", site.Options{})
//	node, err := network.Node("w1")
//	cmd := node.Command("/path/of/worker", "--store", cluster.URL())
//	err = network.Start(cmd)
//	err = node.Cut()                          // from all servers and workers
//
// A site is invisible outside and leaves nothing behind, however the process ends: its networks,
// mounts and files are in namespaces that end with the process, and the kernel kills the processes
// that it has started.
//
// It needs Linux, root or user namespaces, and the programs ip, nft, nsenter and unshare.
package site
