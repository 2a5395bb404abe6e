package redisstore

import (
	"time"

	"github.com/redis/rueidis"
)

// renewedTogether is the largest number of entries in one renewal: the server does nothing else meanwhile, for
// about a millisecond.
const renewedTogether = 100

// A renewal is one operation that extends the leases of entries in different lines. Each of them held its lock and
// was alone in its line when it was last visited. It costs the server half of what visits cost. In a cluster, lines
// are on different servers, so there are only visits.
type renewal struct {
	store   *Store
	entries []*entry
}

func (r renewal) operation(keep time.Duration) operation {
	lines, ids := make([]lineKeys, 0, len(r.entries)), make([]string, 0, len(r.entries))
	for _, e := range r.entries {
		lines, ids = append(lines, e.line), append(ids, e.id)
	}
	return operation{line: lines[0], others: lines[1:], op: "renew", args: append([]string{milliseconds(keep)}, ids...)}
}

// notRenewed returns visits to the entries that were not renewed, because they are not alone any more, or the server
// has refused the operation. If the server has not answered, or could not carry it out now, notRenewed returns the
// error: the entries may be alone as before, and visits would cost a server that is too slow twice as much.
func (r renewal) notRenewed(answer reply) (visits []visit, err error) {
	if _, answered := rueidis.IsRedisErr(answer.err); answer.err != nil && (!answered || !refused(answer.err)) {
		return nil, answer.err
	}
	done, err := answer.numbers()
	for i, e := range r.entries {
		if err != nil || i >= len(done) || done[i] != 1 {
			e.alone.Store(false)
			visits = append(visits, r.store.visits(e.line, []*entry{e})...)
		}
	}
	return visits, nil
}
