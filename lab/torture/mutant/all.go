package mutant

import "github.com/stilelock/stile/lab/torture/verdict"

// All returns all mutants.
func All() []Mutant {
	return []Mutant{
		{
			Name:   "two-at-once",
			Breaks: "turns: here an entry ahead does not block",
			Edits: []Edit{{
				"line/tracker.go",
				"return len(p.ahead)\n",
				"return max(0, len(p.ahead)-1)\n",
			}},
			Cluster: "etcd", Workload: "hot", Faults: "none",
			CaughtBy: []string{verdict.RuleOverlap},
		},
		{
			Name:   "local-tokens",
			Breaks: "tokens come from the store: here each process counts its own",
			Edits: []Edit{{
				"hold.go",
				"func tokenOf(order uint64) uint64 { return order << store.TurnBits }",
				"func tokenOf(uint64) uint64 { counted++; return counted << store.TurnBits }\n\nvar counted uint64",
			}},
			Cluster: "etcd", Workload: "hot", Faults: "none",
			CaughtBy: []string{verdict.RuleTokenTwice, verdict.RuleGrantedTwice, verdict.RuleValidity},
		},
		{
			Name:   "no-deadline",
			Breaks: "a hold that is not confirmed in time is lost: here it lasts ten times as long",
			Edits: []Edit{{
				"internal/keeper/lease.go",
				"return l.confirmed.Add(l.schedule.Validity) }",
				"return l.confirmed.Add(10 * l.schedule.Validity) }",
			}},
			Cluster: "redis", Workload: "hot", Faults: "holder-pause",
			CaughtBy: []string{verdict.RuleOverlap},
		},
		{
			Name:   "deadline-from-reply",
			Breaks: "the deadline counts from when the confirmed request was sent: here from when the reply arrived, and for the whole TTL",
			Edits: []Edit{
				{
					"internal/keeper/lease.go",
					"l.confirmed = max(l.confirmed, sent)",
					"l.confirmed = max(l.confirmed, now)",
				},
				{
					"internal/keeper/lease.go",
					"valid := granted.TTL - granted.TTL/10 - granted.Slack",
					"valid := granted.TTL",
				},
			},
			Cluster: "redis", Workload: "long", Faults: "holder-late",
			CaughtBy: []string{verdict.RuleOverlap},
		},
		{
			Name:   "renew-after-loss",
			Breaks: "a lost hold is not silently acquired again: here a hold continues after its session has ended",
			Edits: []Edit{
				{
					"tenure.go",
					"cancelOnLoss := t.session.OnLoss(func(lost *keeper.LostError) { t.lose(lost.Reason, lost.Err) })",
					"cancelOnLoss := func() {}",
				},
				{"tenure.go", "t.lose(t.reasonIn(st.Cause), st.Cause)", "_ = t.lose"},
				{"hold.go", "return !h.over.Load() && h.tenure.session.Valid()", "return !h.over.Load()"},
				{"hold.go", "return h.tenure.session.Deadline().Time() }", "return time.Now().Add(h.tenure.queue.client.opts.TTL) }"},
			},
			Cluster: "etcd", Workload: "hot", Faults: "holder-pause",
			CaughtBy: []string{verdict.RuleOverlap},
		},
		{
			Name:   "release-of-anybody",
			Breaks: "only the holder releases: here a client that releases too late removes the holder's entry",
			Edits: []Edit{{
				"store/redisstore/line.lua",
				"if remove(id) then left = left + 1 end",
				"if remove(id) or remove(redis.call('ZRANGE', H, 0, 0)[1] or '') then left = left + 1 end",
			}},
			Cluster: "redis", Workload: "hot", Faults: "holder-pause",
			CaughtBy: []string{verdict.RuleOverlap},
		},
		{
			Name:   "no-own-entry",
			Breaks: "an admitted client has an entry: here all waiters win when all entries vanish",
			Edits: []Edit{
				{
					"store/etcdstore/line.go",
					"return c.id == e.key && c.at > e.order",
					"return false && c.at > e.order",
				},
				{
					"store/etcdstore/line.go",
					"case !there:",
					"case !there && false:",
				},
				{
					"store/etcdstore/line.go",
					"case lease != w.session.lease:",
					"case there && lease != w.session.lease:",
				},
				{
					"store/etcdstore/held.go",
					"case e.state != inLine || uint64(at) < e.order:",
					"case e.state != inLine || uint64(at) < e.order || kv == nil:",
				},
			},
			Cluster: "etcd", Workload: "long", Faults: "evict",
			CaughtBy: []string{verdict.RuleNotTold},
		},
		{
			Name:   "one-by-one",
			Breaks: "all deletions of one revision count as one step: here a waiter gets the lock when the entries ahead are deleted, although its own is deleted with them",
			Edits: []Edit{
				{
					"store/etcdstore/entry.go",
					"for n < len(changes) && changes[n].at == changes[0].at {",
					"for false && n < len(changes) {",
				},
				// Stile grants no hold from a tenure that is known to be lost, whatever the store reports. Here it does.
				{"tenure.go", "if t.over {\n\t\treturn nil,", "if t.over && t.ticket == nil {\n\t\treturn nil,"},
			},
			Cluster: "etcd", Workload: "hot", Faults: "evict",
			CaughtBy: []string{verdict.RuleDeletedEntry},
		},
		{
			Name:   "holder-not-told",
			Breaks: "a holder is notified when its entry is gone: here only waiters are",
			Edits: []Edit{{
				"store/etcdstore/line.go",
				"e.delivery.Deliver(store.Standing{State: store.Gone, Order: e.order, Cause: cause})",
				"if !e.delivery.Admitted() {\n\t\te.delivery.Deliver(store.Standing{State: store.Gone, Order: e.order, Cause: cause})\n\t}",
			}},
			Cluster: "etcd", Workload: "long", Faults: "evict",
			CaughtBy: []string{verdict.RuleNotTold},
		},
		{
			Name:   "abandoned-entries",
			Breaks: "a call that fails leaves nothing behind: here a waiter that gives up leaves its entry",
			Edits: []Edit{{
				"tenure.go",
				"_ = t.ticket.Withdraw(ctx)",
				"_ = ctx",
			}},
			Cluster: "etcd", Workload: "storm", Faults: "none",
			CaughtBy: []string{verdict.RuleStranded, verdict.RuleTooLittle},
		},
		{
			Name:   "last-come",
			Breaks: "first come, first served: here the last is served first",
			Edits: []Edit{
				{
					"store/redisstore/line.lua",
					"redis.call('ZRANGE', Q, at, at, 'WITHSCORES')",
					"redis.call('ZREVRANGE', Q, at, at, 'WITHSCORES')",
				},
				{
					"store/redisstore/line.lua",
					"local passed = tonumber(order) <= past",
					"local passed = true -- so that tokens keep increasing",
				},
			},
			Cluster: "redis", Workload: "hot", Faults: "none",
			CaughtBy: []string{verdict.RuleOvertaken},
		},
		{
			Name:   "command-goes-on",
			Breaks: "a command ends before another client can get its lock: here `stile run` releases the lock and lets the command run on",
			Edits: []Edit{
				{
					"cmd/stile/internal/supervise/supervise.go",
					"import (\n",
					"import (\n\t\"context\"\n",
				},
				{
					"cmd/stile/internal/supervise/supervise.go",
					"s.process.Stop(s.StopSignal, grace, hurry)",
					"_, _ = grace, hurry\n\tgo s.Hold.(interface{ Release(context.Context) error }).Release(context.Background())\n\t<-s.process.Done()",
				},
				{
					"cmd/stile/internal/supervise/supervise.go",
					"s.watchdogDue = time.After(interval)",
					"s.watchdogDue = time.After(stile.MaxTTL)",
				},
			},
			Cluster: "etcd", Workload: "command", Faults: "holder-pause",
			CaughtBy: []string{verdict.RuleOverlap},
		},
	}
}
