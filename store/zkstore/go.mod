module github.com/stilelock/stile/store/zkstore

go 1.26.0

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/stilelock/stile v0.0.0-00010101000000-000000000000
)

require golang.org/x/sys v0.49.0 // indirect

replace github.com/stilelock/stile => ../../
