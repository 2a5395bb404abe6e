// Package site is where a torture run takes place: a network of its own with a node for every server and worker, which can
// be cut off from each other, and clusters of real servers, which can be killed, paused and isolated.
//
//	here, err := site.Enter()                 // first of all: the process starts anew in namespaces of its own
//	network, err := here.Network()
//	cluster, err := site.Start(ctx, network, "etcd3", site.Options{})
//	node, err := network.Node("w1")
//	cmd := node.Command("/path/of/worker", "--store", cluster.URL())
//	err = network.Start(cmd)
//	err = node.Cut()                          // from servers and workers alike
//
// Nothing of it is seen outside, and nothing is left there, however the process ends: networks, mounts and files are in
// namespaces that go with it, and the kernel kills what it has started.
//
// It needs Linux, and root or user namespaces, and the programs ip, nft, nsenter and unshare.
package site
