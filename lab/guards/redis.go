package guards

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/store/redisstore/redisguard"
)

// redisJournal is a list.
type redisJournal struct {
	client rueidis.Client
	key    string
}

var push = redisguard.NewScript("return redis.call('RPUSH', KEYS[1], ARGV[1])")

func openRedis(_ context.Context, s Servers, name string) (Journal, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Redis}, DisableCache: true})
	if err != nil {
		return nil, err
	}
	return &redisJournal{client, "journal:" + name}, nil
}

func (j *redisJournal) Append(ctx context.Context, hold guard.Hold) error {
	return push.Exec(ctx, j.client, j.key+":fence", hold.Token(), []string{j.key}, []string{fmt.Sprint(hold.Token())}).Error()
}

func (j *redisJournal) AppendPlain(ctx context.Context, token uint64) error {
	return j.client.Do(ctx, j.client.B().Rpush().Key(j.key).Element(fmt.Sprint(token)).Build()).Error()
}

func (j *redisJournal) Tokens(ctx context.Context) ([]uint64, error) {
	all, err := j.client.Do(ctx, j.client.B().Lrange().Key(j.key).Start(0).Stop(-1).Build()).AsStrSlice()
	if err != nil {
		return nil, err
	}
	return parseTokens(strings.Join(all, " "))
}

func (j *redisJournal) Close() error {
	j.client.Close()
	return nil
}
