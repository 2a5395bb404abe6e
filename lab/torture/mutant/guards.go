package mutant

// Guards returns the mutants of the guards. Package lab/guards catches them: Cluster is the kind of guard
// there, and the other conditions are empty.
func Guards() []Mutant {
	return []Mutant{
		{
			Name:   "sql-forgets",
			Breaks: "the largest token counts: here the last one does",
			Edits: []Edit{
				{"guard/sqlguard/sqlguard.go", "DO UPDATE SET token = greatest(%s.token, excluded.token)", "DO UPDATE SET token = excluded.token /* %s */"},
				{"guard/sqlguard/sqlguard.go", "SET token = max(token, excluded.token)", "SET token = excluded.token"},
				{"guard/sqlguard/sqlguard.go", "token = greatest(token, VALUES(token))", "token = VALUES(token)"},
			},
			Cluster: "sqlguard-",
		},
		{
			Name:   "sql-not-in-tx",
			Breaks: "the row stays locked until the change is committed: here it is compared in a transaction of its own, a moment before",
			Edits: []Edit{
				{"lab/guards/sql.go", "return j.guard.Check(ctx, tx, j.name, hold.Token()) })", "defer time.Sleep(2 * time.Millisecond); return j.guard.Tokens(j.db).Raise(ctx, j.name, hold.Token()) })"},
				{"lab/guards/sql.go", "	\"path/filepath\"\n", "	\"path/filepath\"\n	\"time\"\n"},
			},
			Cluster: "sqlguard-postgres",
		},
		{
			Name:    "file-forgets",
			Breaks:  "a token is remembered: here the fence is not written",
			Edits:   []Edit{{"guard/fileguard/fileguard.go", "err = raise(fence, token)", "err = nil"}},
			Cluster: "fileguard",
		},
		{
			Name:    "file-not-locked",
			Breaks:  "the fence stays locked until the change is made: here until a moment before",
			Edits:   []Edit{{"guard/fileguard/fileguard.go", "	return f()\n", "	fence.Close()\n	time.Sleep(2 * time.Millisecond)\n	return f()\n"}},
			Cluster: "fileguard",
		},
		{
			Name:    "http-forgets",
			Breaks:  "a token is remembered: here it is only looked at",
			Edits:   []Edit{{"guard/httpguard/httpguard.go", "g.Tokens.Raise(r.Context(), lock, token)", "guard.CheckToken(lock, token)"}},
			Cluster: "httpguard",
		},
		{
			Name:    "s3-forgets",
			Breaks:  "the largest token counts: here the last one does",
			Edits:   []Edit{{"guard/s3guard/s3guard.go", "case now.fence.token > token:", "case now.fence.token > token && token == 0:"}},
			Cluster: "s3guard",
		},
		{
			Name:    "s3-unconditional",
			Breaks:  "an object is replaced only if it has not changed since the comparison: here always, a moment later",
			Edits:   []Edit{{"guard/s3guard/s3guard.go", "	in.IfMatch, in.IfNoneMatch = &etag, nil\n", "	etag = \"*\"\n	time.Sleep(2 * time.Millisecond)\n	in.IfMatch, in.IfNoneMatch = nil, nil\n"}},
			Cluster: "s3guard",
		},
		{
			Name:    "redis-forgets",
			Breaks:  "a token is remembered: here the fence is not written",
			Edits:   []Edit{{"store/redisstore/redisguard/guard.lua", "	redis.call('SET', fence, padded)", "	-- "}},
			Cluster: "redisguard",
		},
		{
			Name:    "etcd-absent",
			Breaks:  "the entry must be in the line: here it need not",
			Edits:   []Edit{{"store/etcdstore/etcdguard/etcdguard.go", "If(present...)", "If(present[len(present):]...)"}},
			Cluster: "etcdguard",
		},
		{
			Name:    "zk-absent",
			Breaks:  "the entry must be in the line: here only the lock's directory must exist",
			Edits:   []Edit{{"store/zkstore/zkguard/zkguard.go", "Path: entry, Version", "Path: entry[:strings.LastIndexByte(entry, '/')], Version"}, {"store/zkstore/zkguard/zkguard.go", "	\"strconv\"\n", "	\"strconv\"\n	\"strings\"\n"}},
			Cluster: "zkguard",
		},
	}
}
