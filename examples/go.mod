module github.com/stilelock/stile/examples

go 1.26.0

require (
	github.com/jackc/pgx/v5 v5.12.0
	github.com/stilelock/stile v0.0.0-00010101000000-000000000000
	github.com/stilelock/stile/storeurl v0.0.0-00010101000000-000000000000
)

require (
	github.com/coreos/go-semver v0.3.1 // indirect
	github.com/coreos/go-systemd/v22 v22.7.0 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-zookeeper/zk v1.0.4 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.29.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	github.com/stilelock/stile/store/etcdstore v0.0.0-00010101000000-000000000000 // indirect
	github.com/stilelock/stile/store/redisstore v0.0.0-00010101000000-000000000000 // indirect
	github.com/stilelock/stile/store/redlockstore v0.0.0-00010101000000-000000000000 // indirect
	github.com/stilelock/stile/store/zkstore v0.0.0-00010101000000-000000000000 // indirect
	go.etcd.io/etcd/api/v3 v3.7.3 // indirect
	go.etcd.io/etcd/client/pkg/v3 v3.7.3 // indirect
	go.etcd.io/etcd/client/v3 v3.7.3 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.uber.org/zap v1.27.1 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260803160001-6ac0973c030d // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260803160001-6ac0973c030d // indirect
	google.golang.org/grpc v1.83.2 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	github.com/stilelock/stile => ../
	github.com/stilelock/stile/store/etcdstore => ../store/etcdstore
	github.com/stilelock/stile/store/redisstore => ../store/redisstore
	github.com/stilelock/stile/store/redlockstore => ../store/redlockstore
	github.com/stilelock/stile/store/zkstore => ../store/zkstore
	github.com/stilelock/stile/storeurl => ../storeurl
)
