package guards

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/store/zkstore/zkguard"
)

// zkJournal is a directory with a node for each token. The nodes' names end with numbers that ZooKeeper
// counts up.
type zkJournal struct {
	conn *zk.Conn
	dir  string
}

var openACL = zk.WorldACL(zk.PermAll)

type noLog struct{}

func (noLog) Printf(string, ...any) {}

func openZooKeeper(_ context.Context, s Servers, name string) (Journal, error) {
	conn, _, err := zk.Connect([]string{s.ZooKeeper}, 10*time.Minute, zk.WithLogger(noLog{}))
	if err != nil {
		return nil, err
	}
	j := &zkJournal{conn, "/journal-" + name}
	if _, err := conn.Create(j.dir, nil, 0, openACL); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		conn.Close()
		return nil, err
	}
	return j, nil
}

// node returns the operation that adds a token. The token is in the node's name.
func (j *zkJournal) node(token uint64) *zk.CreateRequest {
	return &zk.CreateRequest{Path: fmt.Sprintf("%s/%d-", j.dir, token), Acl: openACL, Flags: zk.FlagSequence}
}

func (j *zkJournal) Append(ctx context.Context, hold guard.Hold) error {
	_, err := zkguard.Do(ctx, j.conn, hold, j.dir+"-fence", openACL, j.node(hold.Token()))
	return err
}

func (j *zkJournal) AppendPlain(_ context.Context, token uint64) error {
	_, err := j.conn.Multi(j.node(token))
	return err
}

func (j *zkJournal) Tokens(context.Context) ([]uint64, error) {
	if _, err := j.conn.Sync(j.dir); err != nil {
		return nil, err
	}
	nodes, _, err := j.conn.Children(j.dir)
	if err != nil {
		return nil, err
	}
	number := func(node string) string { return node[strings.LastIndexByte(node, '-'):] } // ten digits
	slices.SortFunc(nodes, func(a, b string) int { return strings.Compare(number(a), number(b)) })
	var all strings.Builder
	for _, node := range nodes {
		token, _, _ := strings.Cut(node, "-")
		all.WriteString(token + " ")
	}
	return parseTokens(all.String())
}

func (j *zkJournal) Close() error {
	j.conn.Close()
	return nil
}
