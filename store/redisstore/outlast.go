package redisstore

import (
	"context"
	"time"
)

// withdrawAfter is [store.Extensions.WithdrawAfter].
func (e *entry) withdrawAfter(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return e.Withdraw(ctx)
	}
	until := time.Now().Add(d)
	return e.withdraw(ctx, func() operation {
		left := time.Until(until)
		if left <= 0 {
			return e.leaveOperation()
		}
		return operation{line: e.line, op: "detach", args: []string{e.id, milliseconds(left)}}
	}, true)
}
