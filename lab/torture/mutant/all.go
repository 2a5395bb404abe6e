package mutant

import (
	"time"

	"github.com/stilelock/stile/lab/torture/verdict"
)

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
					"t.session.Subscribe(t)",
					"_ = t.session.Subscribe",
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
		{
			Name:   "reader-beside-writer",
			Breaks: "readers and writers exclude each other: here a reader is admitted beside a writer",
			Edits: []Edit{{
				"line/line.go",
				"return c.all - c.shared\n",
				"return c.slots\n",
			}},
			Cluster: "etcd", Workload: "read-write", Faults: "none",
			CaughtBy: []string{verdict.RuleReaderBesideWriter},
		},
		{
			Name:   "readers-pass-writers",
			Breaks: "readers get the lock after the writers ahead of them: here they pass those that wait",
			Edits: []Edit{{
				"line/tracker.go",
				"	for _, e := range p.ahead {\n\t\tmodes",
				`	first := p.me
	for _, e := range p.ahead {
		if e.Before(first) {
			first = e
		}
	}
	for _, e := range p.ahead {
		if p.me.Mode == Shared && e.Mode == Exclusive && e != first {
			continue
		}
		modes`,
			}},
			Cluster: "etcd", Workload: "read-write", Faults: "none",
			CaughtBy: []string{verdict.RuleGrantedTwice, verdict.RuleValidity},
		},
		{
			Name:   "silent-downgrade",
			Breaks: "a downgrade admits the readers behind: here only the holder knows of it",
			Edits: []Edit{{
				"downgrade.go",
				"err = t.ticket.Extensions().Downgrade(ctx)",
				"err = nil",
			}},
			Cluster: "etcd", Workload: "read-write", Faults: "none",
			CaughtBy: []string{verdict.RuleTooLittle},
		},
		{
			Name:   "one-slot-too-many",
			Breaks: "a semaphore of n slots has at most n holders: here one more is admitted",
			Edits: []Edit{{
				"line/line.go",
				"max(0, c.slots-n+1)",
				"max(0, c.slots-n)",
			}},
			Cluster: "etcd", Workload: "semaphore", Faults: "none",
			CaughtBy: []string{verdict.RuleTooMany},
		},
		{
			Name:   "number-without-condition",
			Breaks: "a slot number is claimed only if none was claimed since the line was read: here without that condition",
			Edits: []Edit{{
				"store/etcdstore/number.go",
				"resp, err = s.commit(ctx, append(e.attachedCmps(), none), []clientv3.Op{put}, reads)",
				"_ = none\n\t\tresp, err = s.commit(ctx, e.attachedCmps(), []clientv3.Op{put}, reads)",
			}},
			Cluster: "etcd", Workload: "semaphore", Faults: "none",
			CaughtBy: []string{verdict.RuleNumberTwice},
		},
		{
			Name:   "resigned-entry-stays",
			Breaks: "a leader that resigns leaves the line: here its entry stays until its session ends",
			Edits: []Edit{{
				"election.go",
				"func (l *Leadership) Resign(ctx context.Context) error { return l.Release(ctx) }",
				"func (l *Leadership) Resign(context.Context) error { return nil }",
			}},
			Cluster: "etcd", Workload: "election", Faults: "none",
			CaughtBy: []string{verdict.RuleStranded},
		},
		{
			Name:   "observer-names-waiter",
			Breaks: "observers are told of the leader: here of the last candidate",
			Edits: []Edit{{
				"election.go",
				"h := l.Holders[0]\n",
				"h := l.Holders[0]\n\tif n := len(l.Waiters); n > 0 {\n\t\th = l.Waiters[n-1]\n\t}\n",
			}},
			Cluster: "etcd", Workload: "election", Faults: "none",
			CaughtBy: []string{verdict.RuleNotLeader},
		},
		{
			Name:   "requeue-keeps-place",
			Breaks: "a hold that is yielded joins the line at its end: here its entry keeps its order",
			Edits: []Edit{{
				"store/redisstore/line.lua",
				"local order = there and next_order()",
				"local order = there and (redis.call('ZSCORE', H, old) or redis.call('ZSCORE', Q, old))",
			}},
			Cluster: "redis", Workload: "election", Faults: "none",
			CaughtBy: []string{verdict.RuleTokenTwice},
		},
		{
			Name:   "sets-unsorted",
			Breaks: "a call for several locks that takes them one after another does so in the order of their names: here in any order",
			Edits: []Edit{
				{"multi.go", "if c.caps.EnqueueAll != nil {", "if c.caps.EnqueueAll != nil && false {"},
				{"multi.go", "names = slices.Sorted(slices.Values(names))", "names = slices.Clone(names)"},
			},
			Cluster: "etcd", Workload: "several-names", Faults: "none",
			CaughtBy: []string{verdict.RuleCycle},
		},
		{
			Name:   "set-queues-one-by-one",
			Breaks: "a call for several locks joins the local queues of all names in one step: here one after another",
			Edits: []Edit{
				{"queue.go", "import (\n", "import (\n\t\"math/rand/v2\"\n\t\"time\"\n"},
				{
					"queue.go",
					"	for _, p := range places { // in the order of their names, so two calls do not lock each other out\n\t\tp.queue.mu.Lock()\n\t}\n",
					"",
				},
				{
					"queue.go",
					"	for _, p := range places {\n\t\tif err == nil {\n\t\t\tp.queue.appendLocked(p)\n\t\t}\n\t}\n\tfor _, p := range places {\n\t\tp.queue.mu.Unlock()\n\t}\n",
					`	for _, i := range rand.Perm(len(places)) {
		if p := places[i]; err == nil {
			p.queue.mu.Lock()
			p.queue.appendLocked(p)
			p.queue.mu.Unlock()
			time.Sleep(10 * time.Millisecond)
		}
	}
`,
				},
			},
			Cluster: "etcd", Workload: "several-names", Faults: "none",
			CaughtBy: []string{verdict.RuleOvertaken, verdict.RuleForgotten}, // others still get these locks
		},
		{
			Name:   "set-entries-one-by-one",
			Breaks: "a call for several locks adds all entries in one step of the store: here one after another, in any order",
			Edits: []Edit{
				{"set.go", "import (\n", "import (\n\t\"math/rand/v2\"\n"},
				{
					"set.go",
					"	tickets, err := s.client.caps.EnqueueAll(s.call.ctx, session.Store(), requests)\n",
					`	tickets := make([]store.Ticket, len(requests))
	for _, i := range rand.Perm(len(requests)) {
		var one []store.Ticket
		if one, err = s.client.caps.EnqueueAll(s.call.ctx, session.Store(), requests[i:i+1]); err != nil {
			for _, t := range tickets {
				if t != nil {
					_ = t.Withdraw(s.call.ctx)
				}
			}
			break
		}
		tickets[i] = one[0]
	}
`,
				},
			},
			Cluster: "etcd", Workload: "several-names", Faults: "none",
			CaughtBy: []string{verdict.RuleCycle},
		},
		{
			Name:   "set-keeps-the-rest",
			Breaks: "a call for several locks that loses an entry while it waits makes all of them fresh: here only that one",
			Edits: []Edit{
				{
					"set.go",
					"		if t := p.entered; t != nil {\n\t\t\tp.entered = nil\n",
					"		if t := p.entered; t != nil && isOver(t.departure()) {\n\t\t\tp.entered = nil\n",
				},
				{
					"set.go",
					"		t := newTenure(p.queue, line.Exclusive, p.owner)\n",
					"		if p.entered != nil {\n\t\t\tp.entered.setLost, p.entered.loseSet = lost, lose\n\t\t\tcontinue\n\t\t}\n\t\tt := newTenure(p.queue, line.Exclusive, p.owner)\n",
				},
				{
					"set.go",
					"	tickets, err := s.client.caps.EnqueueAll(",
					"	if len(requests) == 0 {\n\t\treturn nil, nil\n\t}\n\ttickets, err := s.client.caps.EnqueueAll(",
				},
				{
					"set.go",
					"	for i, p := range s.places {\n\t\ttenures[i].ticket = tickets[i]\n\t\tp.entered = tenures[i]\n\t}\n",
					"	i := 0\n\tfor _, p := range s.places {\n\t\tif p.entered == nil {\n\t\t\ttenures[i].ticket = tickets[i]\n\t\t\tp.entered = tenures[i]\n\t\t\ti++\n\t\t}\n\t}\n",
				},
				{
					"set.go",
					"func (s *set) queueOf(",
					"func isOver(ch <-chan struct{}) bool {\n\tselect {\n\tcase <-ch:\n\t\treturn true\n\tdefault:\n\t\treturn false\n\t}\n}\n\nfunc (s *set) queueOf(",
				},
			},
			Cluster: "etcd", Workload: "several-names", Faults: "evict",
			CaughtBy: []string{verdict.RuleCycle, verdict.RuleStranded},
		},
		{
			Name:   "set-of-the-first",
			Breaks: "a call for several locks returns when all are free: here when the first is",
			Edits: []Edit{
				{
					"set.go",
					"	for i, p := range s.places {\n\t\tif err := s.awaitAdmission(ctx, i); err != nil {",
					"	for i, p := range s.places[:1] {\n\t\tif err := s.awaitAdmission(ctx, i); err != nil {",
				},
			},
			Cluster: "etcd", Workload: "several-names", Faults: "none",
			CaughtBy: []string{verdict.RuleOverlap},
		},
		{
			Name:   "once-runs-again",
			Breaks: "`stile once` looks for a success when it has got the lock: here only before it waits",
			Edits: []Edit{{
				"cmd/stile/internal/cli/once.go",
				"h, err := o.read(ctx, l.client)\n\tif err != nil {\n\t\treturn err\n\t}\n\tif ended := o.skipped(h); ended != nil {",
				"h, err := o.read(ctx, l.client)\n\tif err != nil {\n\t\treturn err\n\t}\n\tif ended := o.skipped(h); ended != nil && false {",
			}},
			Cluster: "etcd", Workload: "once", Faults: "none",
			CaughtBy: []string{verdict.RuleSucceededTwice},
		},
		{
			Name:   "batch-admits-name-twice",
			Breaks: "a batch has no lock name twice: here two entries of one client can join a line in one step",
			Edits: []Edit{{
				"store/etcdstore/batch.go",
				"alone := b.names[name]",
				"alone := false",
			}},
			Cluster: "etcd", Workload: "batches", Faults: "none",
			CaughtBy: []string{verdict.RuleNumberTwice, verdict.RuleTokenTwice},
		},
		{
			Name:   "far-waiter-stays-far",
			Breaks: "a waiter far back in the line watches the line itself when it has moved up: here the departure of the entry that it follows is lost",
			Edits: []Edit{{
				"store/etcdstore/far.go",
				"if left = len(resp.Events) > 0; left {",
				"if left = len(resp.Events) > 0 && false; left {",
			}},
			Cluster: "etcd", Workload: "crowd", Faults: "none",
			CaughtBy: []string{verdict.RuleStranded},
		},
		{
			Name:   "linger-ignores-waiters",
			Breaks: "a lock that is only kept is given up when another client waits: here it is kept for an hour",
			Edits: []Edit{
				{
					"tenure.go",
					"			t.waitersBehind = true\n			t.contendedLocked()\n			if t.queue.kept == t {",
					"			t.contendedLocked()\n			if t.waitersBehind {",
				},
			},
			Cluster: "etcd", Workload: "hot", Faults: "none", Linger: time.Hour,
			CaughtBy: []string{verdict.RuleOvertaken},
		},
		{
			Name:   "turn-after-deadline",
			Breaks: "a kept lock is locked again only before its deadline: here also afterwards, because the loss of its session does not end it",
			Edits: []Edit{
				{"linger.go", "now, healthy := t.session.Healthy()", "now, healthy := bootclock.Now(), true"},
				{"linger.go", "t.waitersBehind || t.over", "t.over"}, // otherwise a contended lock is hardly ever kept
				{"tenure.go", "	t.awaitPendingLoss()\n	t.queue.mu.Lock()\n	defer t.queue.mu.Unlock()\n	if t.over {", "	t.queue.mu.Lock()\n	defer t.queue.mu.Unlock()\n	if t.over {"},
				{"tenure.go", "{ t.lose(lost.Reason, lost.Err) }", "{ _ = lost }"},
			},
			Cluster: "etcd", Workload: "hot", Faults: "holder-cut", Linger: time.Hour,
			CaughtBy: []string{verdict.RuleExpired},
		},
		{
			Name:   "kept-after-loss",
			Breaks: "an entry that is gone is not used again: here the loss ends the hold, and the client keeps the entry",
			Edits: []Edit{
				{"linger.go", "t.waitersBehind || t.over", "t.over"},
				{
					"tenure.go",
					"	t.over, t.loss = true, &keeper.LostError{Reason: reason, Err: cause}\n	kept := q.kept == t\n",
					"	again := t.prepared && reason == keeper.Evicted\n	t.over, t.loss = !again, &keeper.LostError{Reason: reason, Err: cause}\n	kept := q.kept == t && !again\n",
				},
				{
					"tenure.go",
					"	for _, h := range delivered {\n		q.leaveLocked(h.place)\n	}\n",
					"	for _, h := range delivered {\n		q.leaveLocked(h.place)\n	}\n	t.holds = nil\n	if again {\n		q.kept = t\n	}\n",
				},
				{
					"tenure.go",
					"	for _, h := range delivered {\n		q.client.unref(q)\n",
					"	for _, h := range delivered {\n		if !again {\n			q.client.unref(q)\n		}\n",
				},
			},
			Cluster: "etcd", Workload: "hot", Faults: "evict", Linger: time.Hour,
			CaughtBy: []string{verdict.RuleLostEntry},
		},
		// The servers of a run are on nodes of their own, and no session is tethered across machines.
		{
			Name:    "tether-of-the-living",
			Breaks:  "a tethered session ends when its process is dead: here when its connection is closed",
			Edits:   []Edit{{"cmd/stile/internal/tether/tether_linux.go", "!awaitRelease(conn) || !s.awaitDeath(process)", "!awaitRelease(conn)"}},
			Package: "cmd/stile/internal/tether", Tests: "TestServer_connectionClosed",
		},
		{
			Name:    "tether-of-the-fork",
			Breaks:  "a tethered session ends when no process has its connection: here although a fork has",
			Edits:   []Edit{{"cmd/stile/internal/tether/tether_linux.go", "!awaitRelease(conn) || !s.awaitDeath(process)", "!s.awaitDeath(process)"}},
			Package: "cmd/stile/internal/tether", Tests: "TestServer_connectionInherited",
		},
		{
			Name:   "turn-keeps-token",
			Breaks: "each turn has a larger token: here all turns of an entry have the same one",
			Edits: []Edit{
				{"hold.go", "tokenOf(t.order) | uint64(t.turn)", "tokenOf(t.order)"},
			},
			Cluster: "etcd", Workload: "hot", Faults: "none", Linger: time.Second,
			CaughtBy: []string{verdict.RuleTokenTwice, verdict.RuleGrantedTwice},
		},
	}
}
