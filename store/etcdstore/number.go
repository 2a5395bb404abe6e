package etcdstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// claimNumber is [store.Extensions.ClaimNumber]. A claim is a key of its own under the entry's lease:
// its name ends in the number, and its value is the entry's order.
func (e *entry) claimNumber(ctx context.Context) (number int, order uint64, err error) {
	se := e.session
	op := "claim a slot number"
	if err := se.life.Err(); err != nil {
		return 0, 0, err
	}
	if !e.stands() {
		return 0, 0, fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	number, order, err = e.putClaim(bounded)
	if err != nil {
		return 0, 0, se.wrapErr(ctx, op, err)
	}
	return number, order, nil
}

// stands reports whether the entry is in its line, as far as is known, and was not withdrawn.
func (e *entry) stands() bool {
	e.line.mu.Lock()
	defer e.line.mu.Unlock()
	return e.state == inLine
}

// putClaim puts the claim of a number that is free. The transaction puts it only if no claim in the
// line was put since the line was read. So
//
//   - a number that was free then is still free: claims may have been deleted meanwhile, but none was
//     added;
//   - an attempt that is carried out late does nothing if the entry has a claim by then, because that
//     claim is newer than the attempt's read.
//
// It does nothing either if the entry has left, or outlasts its session.
func (e *entry) putClaim(ctx context.Context) (number int, order uint64, err error) {
	s, name := e.session.store, e.req.Name
	from, end := s.keys.entries(name)
	reads := []clientv3.Op{
		clientv3.OpGet(from, clientv3.WithRange(end)),
		clientv3.OpGet(s.keys.claims(name), clientv3.WithPrefix()),
	}
	resp, err := s.commit(ctx, nil, reads, nil)
	for {
		if err != nil {
			return 0, 0, err
		}
		inLine, _ := s.keys.contenders(name, resp.Responses[0].GetResponseRange().Kvs)
		claims := s.keys.parseClaims(name, resp.Responses[1].GetResponseRange().Kvs)
		if i := slices.IndexFunc(claims, func(c claim) bool { return c.entry == e.order }); i >= 0 {
			return claims[i].number, claims[i].order, nil
		}
		if !slices.ContainsFunc(inLine, func(c listedEntry) bool {
			return c.ID == e.key && c.Order == e.order && c.Lease == e.session.lease
		}) {
			return 0, 0, fmt.Errorf("%w: another client removed the entry", store.ErrGone)
		}
		number, ok := line.FreeNumber(taken(claims, inLine), e.req.Mode.Within(limitIn(s.keys, name, resp)).Slots())
		if !ok {
			return 0, 0, store.ErrNoNumber
		}
		key := s.keys.claim(name, number)
		e.claimKey.Store(&key) // before there can be a claim
		none := clientv3.Compare(clientv3.ModRevision(s.keys.claims(name)), "<", resp.Header.Revision+1).WithPrefix()
		put := clientv3.OpPut(key, e.claimValue(), clientv3.WithLease(e.session.lease))
		resp, err = s.commit(ctx, append(e.attachedCmps(), none), []clientv3.Op{put}, reads)
		if err == nil && resp.Succeeded {
			return number, uint64(resp.Header.Revision), nil
		}
	}
}

// limitIn returns the limit in a read of a line's claims.
func limitIn(k keys, name string, resp *clientv3.TxnResponse) int {
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		if string(kv.Key) == k.limit(name) {
			return parseLimit([]*mvccpb.KeyValue{kv})
		}
	}
	return 0
}

// claimValue is the value of the entry's claim.
func (e *entry) claimValue() string { return strconv.FormatUint(e.order, 10) }

// onClaim returns the operation that applies op to the key of the entry's claim, if there may be one
// and it is the entry's.
func (e *entry) onClaim(op func(key string) clientv3.Op) []clientv3.Op {
	key := e.claimKey.Load()
	if key == nil {
		return nil
	}
	return []clientv3.Op{onClaim(*key, e.order, op)}
}

func onClaim(key string, entry uint64, op func(key string) clientv3.Op) clientv3.Op {
	mine := clientv3.Compare(clientv3.Value(key), "=", strconv.FormatUint(entry, 10))
	return clientv3.OpTxn([]clientv3.Cmp{mine}, []clientv3.Op{op(key)}, nil)
}

func deleteOp(key string) clientv3.Op { return clientv3.OpDelete(key) }

// deleteClaimOps returns the operation that deletes the claim of any client's entry, if it has one.
func (s *Store) deleteClaimOps(ctx context.Context, name string, entry uint64) ([]clientv3.Op, error) {
	resp, err := s.commit(ctx, nil, []clientv3.Op{clientv3.OpGet(s.keys.claims(name), clientv3.WithPrefix())}, nil)
	if err != nil {
		return nil, err
	}
	for _, c := range s.keys.parseClaims(name, resp.Responses[0].GetResponseRange().Kvs) {
		if c.entry == entry {
			return []clientv3.Op{onClaim(s.keys.claim(name, c.number), entry, deleteOp)}, nil
		}
	}
	return nil, nil
}

// A claim is the slot number of an entry.
type claim struct {
	number int
	entry  uint64 // the order of the entry
	order  uint64 // of the claim
}

// taken returns the numbers that are claimed by entries in the line. Another client that deletes an
// entry may leave its claim, which then counts for nothing.
func taken(claims []claim, line []listedEntry) []int {
	var numbers []int
	for _, c := range claims {
		if slices.ContainsFunc(line, func(e listedEntry) bool { return e.Order == c.entry }) {
			numbers = append(numbers, c.number)
		}
	}
	return numbers
}

// claims returns the prefix of the keys of a line's claims. It does not match those of a line whose
// name continues after a slash, because no name contains two slashes in a row.
func (k keys) claims(name string) string { return k.prefix + slotKeys + name + "//" }

const slotKeys = reservedName + "/slots/"

// claim returns the key of the claim of a number.
func (k keys) claim(name string, number int) string { return k.claims(name) + strconv.Itoa(number) }

// parseClaims parses the keys that begin with [keys.claims]. Those that are no claims are left out.
func (k keys) parseClaims(name string, kvs []*mvccpb.KeyValue) []claim {
	var found []claim
	for _, kv := range kvs {
		number, err := strconv.Atoi(strings.TrimPrefix(string(kv.Key), k.claims(name)))
		entry, err2 := strconv.ParseUint(string(kv.Value), 10, 64)
		if err == nil && err2 == nil {
			found = append(found, claim{number, entry, uint64(kv.ModRevision)})
		}
	}
	return found
}
