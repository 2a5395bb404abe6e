package arrows

// rules are the arrows of the house, each with its reason. Tests may use what they like: the rules are about what
// is built.
var rules = []rule{
	{
		who:  []string{stile + "/line"},
		only: []string{},
		why:  "whose turn it is must be decided by pure rules, which need no clock, no I/O and no store",
	},
	{
		who:  []string{stile + "/store"},
		only: []string{stile + "/line"},
		why:  "who writes a store reads and imports the contract, and nothing of those who fulfill or use it",
	},
	{
		who:  []string{stile + "/internal/keeper"},
		only: []string{stile + "/store", stile + "/line", stile + "/internal/bootclock", "golang.org/x/sys/..."},
		why:  "time is judged in the keeper alone, the same for every store",
	},
	{
		who:  []string{stile + "/store/memstore"},
		only: []string{stile + "/store", stile + "/line", stile + "/store/internal/..."},
		why:  "users test their own code with the memory store, and must get nothing else with it",
	},
	{
		who: []string{stile + "/store/redisstore"},
		only: []string{
			stile + "/store", stile + "/line", stile + "/store/internal/...", stile + "/internal/bootclock",
			"github.com/redis/rueidis/...", "golang.org/x/sys/...",
		},
		why: "who keeps locks in Redis must not compile the client of another store",
	},
	{
		who: []string{stile + "/store/redlockstore"},
		only: []string{
			stile + "/store", stile + "/line", stile + "/store/internal/...", stile + "/internal/bootclock",
			"github.com/redis/rueidis/...", "golang.org/x/sys/...",
		},
		why: "it shares with the store on one Redis the client and what all stores share: they keep locks in different ways",
	},
	{
		who:  []string{stile + "/store/zkstore"},
		only: []string{stile + "/store", stile + "/line", stile + "/store/internal/...", "github.com/go-zookeeper/zk"},
		why:  "who keeps locks in ZooKeeper must not compile the client of another store",
	},
	{
		who:  []string{stile + "/store/internal/..."},
		only: []string{stile + "/store", stile + "/line", stile + "/store/internal/..."},
		why:  "what the stores share must bring along the client of none of them",
	},
	{
		who: []string{stile},
		only: []string{
			stile + "/internal/keeper", stile + "/store", stile + "/line", stile + "/internal/bootclock", "golang.org/x/sys/...",
		},
		why: "the library works with any store: who uses one must not compile the client of another",
	},
	{
		who:   []string{stile + "/store/..."},
		never: []string{stile, stile + "/internal/keeper", stile + "/storeurl", stile + "/guard/..."},
		why:   "a store only puts entries in, takes them out and tells of them: holds and time are made above it",
	},
	{
		who:   []string{stile + "/store/storetest/..."},
		never: []string{stile + "/internal/testservers"},
		why:   "third parties run the conformance suite on their stores, and start their own servers",
	},
	{
		who:  []string{stile + "/internal/testservers"},
		only: []string{stile + "/internal/tcpproxy", stile + "/internal/clockshim", "golang.org/x/sys/..."},
		why:  "the tests of every store start their servers with it, and must not need the client of another store",
	},
	{
		who:    []string{stile + "/..."},
		except: []string{stile + "/storeurl", stile + "/examples/...", stile + "/cmd/...", stile + "/lab/..."},
		never:  stores,
		most:   1,
		why:    "only who is told by a URL which store to use needs more than one of them",
	},
	{
		who:    []string{stile + "/..."},
		except: []string{stile + "/internal/testservers", stile + "/internal/transcript", stile + "/store/storetest/...", stile + "/lab/torture/workload/workloadtest"},
		never:  []string{stile + "/internal/testservers", "testing"},
		why:    "servers are started by tests, and package testing has no place in a program",
	},
	{
		who:    []string{stile + "/..."},
		except: []string{stile + "/cmd/...", stile + "/lab/..."},
		never: []string{
			stile + "/cmd/...", stile + "/lab/...", "go.etcd.io/etcd/server/...", "go.etcd.io/bbolt/...",
			"github.com/prometheus/...", "github.com/spf13/...",
		},
		why: "who imports the library must not build, nor be bound to versions of, a server, a metrics vendor or a " +
			"command line",
	},
}

const stile = "github.com/stilelock/stile"

// stores are the implementations of the store contract.
var stores = []string{
	stile + "/store/memstore", stile + "/store/etcdstore", stile + "/store/redisstore", stile + "/store/redlockstore",
	stile + "/store/zkstore",
}
