package guards

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stilelock/stile/guard"
)

// A Journal is data under a guard.
type Journal interface {
	// Append adds the token of a hold, if the guard lets it.
	Append(ctx context.Context, hold guard.Hold) error
	// AppendPlain adds a token without the guard.
	AppendPlain(ctx context.Context, token uint64) error
	// Tokens returns the tokens in the order in which they were added.
	Tokens(ctx context.Context) ([]uint64, error)
	// Close closes the connections.
	Close() error
}

// Servers are the addresses of the servers that keep the locks and the journals.
type Servers struct {
	Dir       string `json:"dir"` // for files
	Redis     string `json:"redis"`
	Etcd      string `json:"etcd"`
	ZooKeeper string `json:"zookeeper"`
	Postgres  string `json:"postgres"` // a DSN
	MariaDB   string `json:"mariadb"`  // a DSN
	HTTP      string `json:"http"`     // of [Serve]
	S3        string `json:"s3"`       // of [ServeS3]
}

// A Kind is a kind of journal.
type Kind struct {
	Name string
	// Presence is set for a presence guard: it refuses a hold as soon as that has ended in the store.
	Presence bool
	// Locks returns the URL of the store that keeps the locks. A presence guard needs its own store.
	Locks func(Servers) string
	open  func(ctx context.Context, s Servers, name string) (Journal, error)
}

func redisLocks(s Servers) string { return "redis://" + s.Redis }

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{
		{"sqlguard-postgres", false, redisLocks, openPostgres},
		{"sqlguard-sqlite", false, redisLocks, openSQLite},
		{"sqlguard-mariadb", false, redisLocks, openMariaDB},
		{"fileguard", false, redisLocks, openFile},
		{"httpguard", false, redisLocks, openHTTP},
		{"s3guard", false, redisLocks, openS3},
		{"redisguard", false, redisLocks, openRedis},
		{"etcdguard", true, func(s Servers) string { return "etcd://" + s.Etcd }, openEtcd},
		{"zkguard", true, func(s Servers) string { return "zk://" + s.ZooKeeper }, openZooKeeper},
	}
}

// KindNamed returns a kind.
func KindNamed(name string) (Kind, error) {
	all := Kinds()
	i := slices.IndexFunc(all, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, fmt.Errorf("there is no guard %q", name)
	}
	return all[i], nil
}

// Open opens a journal, and creates it if it does not exist. The first call for new servers must not be
// concurrent with others: PostgreSQL cannot create a table twice at the same time.
func (k Kind) Open(ctx context.Context, s Servers, name string) (Journal, error) {
	j, err := k.open(ctx, s, name)
	if err != nil {
		return nil, fmt.Errorf("open the journal %q of %s: %w", name, k.Name, err)
	}
	return j, nil
}

// parseTokens parses tokens between spaces.
func parseTokens(text string) ([]uint64, error) {
	var tokens []uint64
	for field := range strings.FieldsSeq(text) {
		token, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, token)
	}
	return tokens, nil
}
