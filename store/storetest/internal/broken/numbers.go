package broken

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func numberBugs() []Bug {
	return []Bug{
		{
			Name:   "gives all holders the number 0",
			Caught: "numbers/the holders of all slots have all numbers",
			Plant: withClaim(func(ctx context.Context, inner store.Ticket) (int, uint64, error) {
				_, order, err := inner.Extensions().ClaimNumber(ctx)
				return 0, order, err
			}),
		},
		{
			Name:   "makes another claim when asked again",
			Caught: "numbers/an entry keeps its number",
			Plant: func(m *memstore.Store) store.Store {
				var claims atomic.Uint64
				return withClaim(func(ctx context.Context, inner store.Ticket) (int, uint64, error) {
					number, order, err := inner.Extensions().ClaimNumber(ctx)
					return number, order + claims.Add(1), err
				})(m)
			},
		},
		{
			Name:   "keeps the numbers of withdrawn entries",
			Caught: "numbers/a number is free after the withdrawal",
			Plant:  leaksNumbers("withdrawal"),
		},
		{
			Name:   "keeps the numbers of broken entries",
			Caught: "numbers/a number is free after a break",
			Plant:  leaksNumbers("break"),
		},
		{
			Name:   "keeps the numbers of closed sessions",
			Caught: "numbers/a number is free after the session is closed",
			Plant:  leaksNumbers("close"),
		},
		{
			Name:   "keeps the numbers of expired sessions",
			Caught: "numbers/a number is free after the session has expired",
			Plant:  leaksNumbers("expiry"),
		},
		{
			Name:   "frees the number of an entry that outlasts its session",
			Caught: "numbers/an entry that outlasts its session keeps its number",
			Plant: func(m *memstore.Store) store.Store {
				var detached atomic.Bool
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					return ticket{
						Ticket: inner,
						withdrawAfter: func(ctx context.Context, d time.Duration) error {
							detached.Store(true)
							return inner.Extensions().WithdrawAfter(ctx, d)
						},
						claimNumber: func(ctx context.Context) (int, uint64, error) {
							number, order, err := inner.Extensions().ClaimNumber(ctx)
							if detached.Load() {
								number = 0
							}
							return number, order, err
						},
					}
				})
			},
		},
		{
			Name:   "gives numbers to entries that are gone",
			Caught: "numbers/an entry that is gone cannot claim a number",
			Plant:  withClaim(claimWhenGone),
		},
		{
			Name:   "counts the numbers of all lines together",
			Caught: "numbers/lines have numbers of their own",
			Plant:  countsClaims(func(claims uint64) int { return int(claims) - 1 }),
		},
		{
			Name:   "returns the order of the entry as that of the claim",
			Caught: "numbers/later claims of a number have larger orders",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					var entered atomic.Uint64
					notify := req.Notify
					req.Notify = func(st store.Standing) {
						entered.Store(st.Order)
						notify(st)
					}
					t, err := inner.Enqueue(ctx, req)
					if err != nil {
						return nil, err
					}
					return ticket{Ticket: t, claimNumber: func(ctx context.Context) (int, uint64, error) {
						number, _, err := t.Extensions().ClaimNumber(ctx)
						return number, entered.Load(), err
					}}, nil
				})
			},
		},
		{
			Name:   "keeps the numbers of canceled claims",
			Caught: "numbers/canceled claims leave nothing",
			Plant: func(m *memstore.Store) store.Store {
				var canceled atomic.Bool
				return withClaim(func(ctx context.Context, inner store.Ticket) (int, uint64, error) {
					if ctx.Err() != nil {
						canceled.Store(true)
					}
					if canceled.Load() {
						return 0, 0, store.ErrNoNumber
					}
					return inner.Extensions().ClaimNumber(ctx)
				})(m)
			},
		},
		{
			Name:   "gives entries that were admitted together the same number",
			Caught: "numbers/entries admitted together get different numbers",
			Plant:  countsClaims(func(claims uint64) int { return int(claims/2) % 3 }),
		},
		{
			Name:   "gives the numbers in turn, whether or not they are free",
			Caught: "numbers/holds of many sessions have different numbers with increasing orders",
			Plant:  countsClaims(func(claims uint64) int { return int(claims) % 3 }),
		},
	}
}

// withClaim returns a store with claim in place of ClaimNumber.
func withClaim(claim func(ctx context.Context, inner store.Ticket) (int, uint64, error)) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
			return ticket{Ticket: inner, claimNumber: func(ctx context.Context) (int, uint64, error) { return claim(ctx, inner) }}
		})
	}
}

// countsClaims returns a store whose numbers depend only on how many claims there were.
func countsClaims(number func(claims uint64) int) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		var claims atomic.Uint64
		return withClaim(func(ctx context.Context, inner store.Ticket) (int, uint64, error) {
			_, order, err := inner.Extensions().ClaimNumber(ctx)
			return number(claims.Add(1)), order, err
		})(m)
	}
}

// leaksNumbers returns a store in which a number stays taken when its entry leaves in the given way:
// "withdrawal", "break", "close" or "expiry".
func leaksNumbers(after string) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		var mu sync.Mutex
		numberOf := make(map[string]int) // by session
		leaked := make(map[int]bool)
		left := func(how, session string) {
			mu.Lock()
			defer mu.Unlock()
			if n, ok := numberOf[session]; ok && how == after {
				leaked[n] = true
			}
			delete(numberOf, session)
		}
		claim := func(ctx context.Context, session string, inner store.Ticket) (int, uint64, error) {
			number, order, err := inner.Extensions().ClaimNumber(ctx)
			if err != nil {
				return 0, 0, err
			}
			mu.Lock()
			defer mu.Unlock()
			for other, n := range numberOf {
				if other != session && n == number && after == "expiry" {
					leaked[n] = true
				}
			}
			if leaked[number] {
				return 0, 0, store.ErrNoNumber
			}
			numberOf[session] = number
			return number, order, nil
		}
		return wholeStore{
			Store: m,
			breakEntry: func(ctx context.Context, name string, order uint64) (store.Entry, error) {
				e, err := m.Break(ctx, name, order)
				left("break", e.Session)
				return e, err
			},
			open: func(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
				inner, err := m.Open(ctx, opts)
				if err != nil {
					return nil, err
				}
				return session{
					Session: inner,
					close: func(ctx context.Context) error {
						left("close", inner.ID())
						return inner.Close(ctx)
					},
					enqueue: func(ctx context.Context, req store.Request) (store.Ticket, error) {
						t, err := inner.Enqueue(ctx, req)
						if err != nil {
							return nil, err
						}
						return ticket{
							Ticket: t,
							withdraw: func(ctx context.Context) error {
								left("withdrawal", inner.ID())
								return t.Withdraw(ctx)
							},
							claimNumber: func(ctx context.Context) (int, uint64, error) { return claim(ctx, inner.ID(), t) },
						}, nil
					},
				}, nil
			},
		}
	}
}

// claimWhenGone gives a number to an entry that is gone.
func claimWhenGone(ctx context.Context, inner store.Ticket) (int, uint64, error) {
	number, order, err := inner.Extensions().ClaimNumber(ctx)
	if errors.Is(err, store.ErrGone) {
		return 0, 1, nil
	}
	return number, order, err
}
