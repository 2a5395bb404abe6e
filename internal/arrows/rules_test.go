package arrows

// rules are the import rules, each with its reason. They apply to non-test code only.
var rules = []rule{
	{
		packages: []string{stile + "/line"},
		allowed:  []string{},
		reason:   "admission is decided by pure functions, which need no clock, no I/O and no store",
	},
	{
		packages: []string{stile + "/store"},
		allowed:  []string{stile + "/line"},
		reason:   "authors of stores need only the contract, and none of its implementations or users",
	},
	{
		packages: []string{stile + "/internal/keeper"},
		allowed:  []string{stile + "/store", stile + "/line", stile + "/internal/bootclock", "golang.org/x/sys/..."},
		reason:   "deadlines are computed only in the keeper, in the same way for every store",
	},
	{
		packages: []string{stile + "/store/memstore"},
		allowed:  []string{stile + "/store", stile + "/line", stile + "/store/internal/..."},
		reason:   "users test their own code with the memory store, and must not get other dependencies with it",
	},
	{
		packages: []string{stile + "/store/redisstore"},
		allowed: []string{
			stile + "/store", stile + "/line", stile + "/store/internal/...", stile + "/internal/bootclock",
			"github.com/redis/rueidis/...", "golang.org/x/sys/...",
		},
		reason: "a program that uses Redis must not compile the client of another store",
	},
	{
		packages: []string{stile + "/store/redlockstore"},
		allowed: []string{
			stile + "/store", stile + "/line", stile + "/store/internal/...", stile + "/internal/bootclock",
			"github.com/redis/rueidis/...", "golang.org/x/sys/...",
		},
		reason: "it shares with redisstore only the client and the internal packages of all stores, because their algorithms differ",
	},
	{
		packages: []string{stile + "/store/zkstore"},
		allowed:  []string{stile + "/store", stile + "/line", stile + "/store/internal/...", "github.com/go-zookeeper/zk"},
		reason:   "a program that uses ZooKeeper must not compile the client of another store",
	},
	{
		packages: []string{stile + "/store/internal/..."},
		allowed:  []string{stile + "/store", stile + "/line", stile + "/store/internal/..."},
		reason:   "the shared packages of the stores must not depend on a client",
	},
	{
		packages: []string{stile},
		allowed: []string{
			stile + "/internal/keeper", stile + "/store", stile + "/line", stile + "/internal/bootclock", "golang.org/x/sys/...",
		},
		reason: "the library works with any store, and must not depend on the client of one",
	},
	{
		packages: []string{stile + "/guard/..."},
		except:   []string{stile + "/guard/s3guard"},
		allowed:  []string{stile + "/guard/...", stile + "/line"},
		reason:   "a resource compares numbers, and needs neither a lock nor a client of a store",
	},
	{
		packages: []string{stile + "/guard/s3guard"},
		allowed: []string{
			stile + "/guard", stile + "/line", "github.com/aws/aws-sdk-go-v2/...", "github.com/aws/smithy-go/...",
		},
		reason: "as for the other guards; it is a module of its own because it needs the client of S3",
	},
	{
		packages:  guardsInStores,
		forbidden: append([]string{stile, stile + "/internal/...", stile + "/storeurl"}, stores...),
		reason:    "a guard talks to the server with the user's own client, and needs no store",
	},
	{
		packages:  []string{stile + "/store/..."},
		except:    guardsInStores,
		forbidden: []string{stile, stile + "/internal/keeper", stile + "/storeurl", stile + "/guard/..."},
		reason:    "a store only adds, removes and reports entries; holds and deadlines belong to the layers above",
	},
	{
		packages:  []string{stile + "/store/storetest/..."},
		forbidden: []string{stile + "/internal/testservers"},
		reason:    "third parties run the conformance suite with their own servers",
	},
	{
		packages:  []string{stile + "/adapters/..."},
		forbidden: append([]string{stile + "/storeurl"}, stores...),
		reason:    "an adapter works with any store, and must not depend on the client of one",
	},
	{
		packages:  []string{stile + "/adapters/stileotel"},
		forbidden: []string{"go.opentelemetry.io/otel/sdk/...", "go.opentelemetry.io/otel/exporters/..."},
		reason:    "a library records with the API of OpenTelemetry; the program chooses the SDK",
	},
	{
		packages: []string{stile + "/internal/testservers"},
		allowed:  []string{stile + "/internal/tcpproxy", stile + "/internal/clockshim", "golang.org/x/sys/..."},
		reason:   "the tests of every store use it, and must not need the client of another store",
	},
	{
		packages:  []string{stile + "/..."},
		except:    []string{stile + "/storeurl", stile + "/examples/...", stile + "/cmd/...", stile + "/lab/..."},
		forbidden: stores,
		tolerated: 1,
		reason:    "only packages that choose a store by URL need more than one store",
	},
	{
		packages:  []string{stile + "/..."},
		except:    []string{stile + "/internal/testservers", stile + "/internal/transcript", stile + "/store/storetest/...", stile + "/guard/guardtest", stile + "/lab/torture/workload/workloadtest"},
		forbidden: []string{stile + "/internal/testservers", "testing"},
		reason:    "only tests start servers, and programs must not contain package testing",
	},
	{
		packages: []string{stile + "/..."},
		except:   []string{stile + "/cmd/...", stile + "/lab/...", stile + "/examples/leader"}, // asynq uses github.com/spf13/cast
		forbidden: []string{
			stile + "/cmd/...", stile + "/lab/...", "go.etcd.io/etcd/server/...", "go.etcd.io/bbolt/...",
			"github.com/prometheus/...", "github.com/spf13/...",
		},
		reason: "a program that imports the library must not compile, or be bound to versions of, a server, a metrics vendor or " +
			"a command-line library",
	},
}

const stile = "github.com/stilelock/stile"

// guardsInStores are the guards for resources in the servers of stores.
var guardsInStores = []string{
	stile + "/store/etcdstore/etcdguard", stile + "/store/redisstore/redisguard", stile + "/store/zkstore/zkguard",
}

// stores are the implementations of the store contract.
var stores = []string{
	stile + "/store/memstore", stile + "/store/etcdstore", stile + "/store/redisstore", stile + "/store/redlockstore",
	stile + "/store/zkstore",
}
