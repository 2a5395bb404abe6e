package arrows

// rules are the import rules, each with its reason. They apply to non-test code only.
var rules = []rule{
	{
		who:  []string{stile + "/line"},
		only: []string{},
		why:  "admission is decided by pure functions, which need no clock, no I/O and no store",
	},
	{
		who:  []string{stile + "/store"},
		only: []string{stile + "/line"},
		why:  "authors of stores need only the contract, and none of its implementations or users",
	},
	{
		who:  []string{stile + "/internal/keeper"},
		only: []string{stile + "/store", stile + "/line", stile + "/internal/bootclock", "golang.org/x/sys/..."},
		why:  "deadlines are computed only in the keeper, in the same way for every store",
	},
	{
		who:  []string{stile + "/store/memstore"},
		only: []string{stile + "/store", stile + "/line", stile + "/store/internal/..."},
		why:  "users test their own code with the memory store, and must not get other dependencies with it",
	},
	{
		who: []string{stile + "/store/redisstore"},
		only: []string{
			stile + "/store", stile + "/line", stile + "/store/internal/...", stile + "/internal/bootclock",
			"github.com/redis/rueidis/...", "golang.org/x/sys/...",
		},
		why: "a program that uses Redis must not compile the client of another store",
	},
	{
		who: []string{stile + "/store/redlockstore"},
		only: []string{
			stile + "/store", stile + "/line", stile + "/store/internal/...", stile + "/internal/bootclock",
			"github.com/redis/rueidis/...", "golang.org/x/sys/...",
		},
		why: "it shares with redisstore only the client and the internal packages of all stores, because their algorithms differ",
	},
	{
		who:  []string{stile + "/store/zkstore"},
		only: []string{stile + "/store", stile + "/line", stile + "/store/internal/...", "github.com/go-zookeeper/zk"},
		why:  "a program that uses ZooKeeper must not compile the client of another store",
	},
	{
		who:  []string{stile + "/store/internal/..."},
		only: []string{stile + "/store", stile + "/line", stile + "/store/internal/..."},
		why:  "the shared packages of the stores must not depend on a client",
	},
	{
		who: []string{stile},
		only: []string{
			stile + "/internal/keeper", stile + "/store", stile + "/line", stile + "/internal/bootclock", "golang.org/x/sys/...",
		},
		why: "the library works with any store, and must not depend on the client of one",
	},
	{
		who:   []string{stile + "/store/..."},
		never: []string{stile, stile + "/internal/keeper", stile + "/storeurl", stile + "/guard/..."},
		why:   "a store only adds, removes and reports entries; holds and deadlines belong to the layers above",
	},
	{
		who:   []string{stile + "/store/storetest/..."},
		never: []string{stile + "/internal/testservers"},
		why:   "third parties run the conformance suite with their own servers",
	},
	{
		who:  []string{stile + "/internal/testservers"},
		only: []string{stile + "/internal/tcpproxy", stile + "/internal/clockshim", "golang.org/x/sys/..."},
		why:  "the tests of every store use it, and must not need the client of another store",
	},
	{
		who:    []string{stile + "/..."},
		except: []string{stile + "/storeurl", stile + "/examples/...", stile + "/cmd/...", stile + "/lab/..."},
		never:  stores,
		most:   1,
		why:    "only packages that choose a store by URL need more than one store",
	},
	{
		who:    []string{stile + "/..."},
		except: []string{stile + "/internal/testservers", stile + "/internal/transcript", stile + "/store/storetest/...", stile + "/lab/torture/workload/workloadtest"},
		never:  []string{stile + "/internal/testservers", "testing"},
		why:    "only tests start servers, and programs must not contain package testing",
	},
	{
		who:    []string{stile + "/..."},
		except: []string{stile + "/cmd/...", stile + "/lab/..."},
		never: []string{
			stile + "/cmd/...", stile + "/lab/...", "go.etcd.io/etcd/server/...", "go.etcd.io/bbolt/...",
			"github.com/prometheus/...", "github.com/spf13/...",
		},
		why: "a program that imports the library must not compile, or be bound to versions of, a server, a metrics vendor or " +
			"a command-line library",
	},
}

const stile = "github.com/stilelock/stile"

// stores are the implementations of the store contract.
var stores = []string{
	stile + "/store/memstore", stile + "/store/etcdstore", stile + "/store/redisstore", stile + "/store/redlockstore",
	stile + "/store/zkstore",
}
