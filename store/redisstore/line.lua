-- All operations on a line. Each call is one atomic step. This is the body of a function: see set.lua.
--
-- KEYS: the lock's key; the queue of waiters, by arrival; the holders, by order; the ends of all
-- leases, in milliseconds; the information about the entries; the last order given out; the void
-- entries, which must not be added (again); the operator's limit of slots; the record of the name; and
-- for join and requeue, if it is on this server, the session.
--
-- time: the server's time. It is read once: before 7.2 the time advances during a script.
--
-- ARGV: the operation; the command that publishes to clients, and the prefix of their channels; the
-- channel on which changes are published, or "", and the name to publish there; then the arguments
-- of the operation.
--
-- An entry's id ends in its mode: ".x" exclusive, ".s" shared, ".3" one of three slots. It has ".set."
-- before the mode if the entry is one of a set, which joined several lines in one step. The
-- information about it is "client|flag|text". The flag is "l" if its client has subscribed, "t" if
-- the entry is detached from its session, or empty.
--
-- An exclusive holder may become shared. The field "downgraded" of the entries is then its id: there is
-- at most one, because the next exclusive entry is admitted when it has left.
--
-- Stile holds the lock while the value of the lock's key equals the field "held" of the entries. If
-- the two differ, another client has deleted or replaced the key, and the former holders have lost
-- the lock.

local K, Q, H, X, E, F, V, L, R, session = unpack(KEYS)
local op, PUBLISH, wake, changes, name = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local VOID_TTL = 600000 -- how long a void entry is remembered
local ORDER_TTL = 86400000 -- how long the last order is kept after the time that it stands for; the clock may be set back by this much
local FOREIGN_POLL = 100 -- poll interval of the first in line while a foreign client, which publishes nothing, has the key
local MAX_ORDER = 4503599627370495 -- a larger order does not fit a fencing token

local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Fast path: the lease of the only entry is renewed.
if op == 'visit' and not ARGV[9] then
	local id = ARGV[8]
	local order = redis.call('ZSCORE', H, id)
	if order and renew(K, H, X, E, id, tonumber(ARGV[6])) then return { ARGV[6], 'in', order } end
end

-- The value of the lock's key. A key that is not a string counts as a foreign value.
local value = redis.pcall('GET', K)
if type(value) == 'table' then
	if not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
	value = ''
end

if op == 'read' then
	return {
		string.format('%.0f', now), value, redis.call('PTTL', K), redis.call('ZRANGE', H, 0, -1, 'WITHSCORES'),
		redis.call('ZRANGE', Q, 0, -1, 'WITHSCORES'), redis.call('ZRANGE', X, 0, -1, 'WITHSCORES'), redis.call('HGETALL', E), redis.call('GET', L),
	}
end

-- record n: returns the beginning of the record's key, n bytes of it. A replica, or a master without its replicas,
-- may lack the last record. It is recognized by its refusal to write.
if op == 'record' then
	local refusal = redis.pcall('ZREM', Q, '')
	if type(refusal) == 'table' and (string.find(refusal.err, '^READONLY') or string.find(refusal.err, '^NOREPLICAS')) then return refusal end
	return string.sub(redis.call('GET', R) or '', 1, tonumber(ARGV[6]))
end

-- Returns how many of the n slots that an entry asks for count, by the operator's limit.
local limit
local function within(n)
	if not limit then
		limit = tonumber(string.match(redis.call('GET', L) or '', '^%d+') or 0)
		if limit == 0 then limit = math.huge end
	end
	return math.min(n, limit)
end

local downgraded -- the id of the holder that was exclusive and is shared

local function mode(id)
	if id == downgraded then return 's' end
	return string.match(id, '[^.]*$')
end

local function of_set(id) return string.find(id, '.set.', 1, true) end

local function split(known) return string.match(known or '', '^([^|]*)|([^|]*)|(.*)$') end

local function parts(id) return split(redis.call('HGET', E, id)) end

local NUMBER = 'number ' -- followed by the id of an entry: the field with its slot number and the order of that claim

-- VALUE_PREFIX is followed by the id of the first entry that held the lock after it was free, or by that of a
-- downgraded entry and ".s".
local VALUE_PREFIX = 'stile:'

local WRITES = 'writes ' -- followed by the id of an entry: the field with the number of its last call of setrecord

-- The two entries whose leases end first: they show whether the line is empty, and whether a lease
-- has ended.
local early = redis.call('ZRANGE', X, 0, 1, 'WITHSCORES')
local empty = not early[1]
local late = not empty and tonumber(early[2]) < now -- a lease includes its last millisecond, as a key's TTL does

local held, armed -- "held": see above. "armed": the entries whose owners wait for a notification of contention
local past = 0    -- the largest order admitted past another entry, or later
local count       -- number of holders
local kind        -- mode of the first holder
if not empty then
	local known = redis.call('HMGET', E, 'held', 'armed', 'past', 'downgraded')
	held, armed, past, downgraded = known[1], known[2], tonumber(known[3] or 0), known[4]
end
local least -- smallest slot count among the holders

local first           -- the entry that has taken the lock while it was free
local changed = false -- the line has changed
local moved = false   -- the holders or their leases have changed
local grown = false   -- leases were extended
local queued = false  -- perhaps including those of waiters

-- Returns a new order, or nothing if they are exhausted. Orders are microseconds of the server's
-- time, or the last order plus one if that is larger. The last order is kept until the clock has
-- passed it: if the clock was set back, smaller orders would follow otherwise.
local function next_order()
	local last = tonumber(redis.call('GET', F) or 0)
	if last == 0 then -- no last order: there was none, or it has expired; but entries with larger orders may still be here
		for _, key in ipairs({ H, Q }) do
			last = math.max(last, tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2] or 0))
		end
	end
	local order = math.max(last + 1, time[1] * 1000000 + time[2])
	if order > MAX_ORDER then return nil end
	local text = string.format('%.0f', order)
	redis.call('SET', F, text, 'PXAT', math.floor(order / 1000) + ORDER_TTL)
	return text
end

local EXHAUSTED = 'STILE no fencing token is left for this lock: key ' .. F .. ' has the largest order; '
	.. 'set the server\'s clock right, and delete the key only when no stale holder can exist'

-- The session of a late request may have ended.
if session and redis.call('EXISTS', session) == 0 then return { 'ended' } end

-- The keys of an abandoned line expire, but not all at the same moment.
if empty and (op == 'join' or op == 'ask') then redis.call('DEL', Q, H, E) end

-- Returns the order of an entry that holds the lock and is alone in the line; otherwise nothing.
local function alone(id)
	return not late and value and value == held and early[1] == id and not early[3] and redis.call('ZSCORE', H, id)
end

-- Fast path: the first entry joins an empty line.
if (op == 'join' or op == 'ask') and empty and not value and not redis.call('ZSCORE', V, ARGV[6]) then
	if op == 'ask' then return { 'free' } end
	local id, ends, order = ARGV[6], now + ARGV[7], next_order()
	if not order then return redis.error_reply(EXHAUSTED) end
	redis.call('SET', K, VALUE_PREFIX .. id, 'PXAT', ends)
	redis.call('ZADD', X, ends, id)
	redis.call('ZADD', H, order, id)
	redis.call('HSET', E, id, ARGV[9] .. '|' .. ARGV[10] .. '|' .. ARGV[11], 'held', VALUE_PREFIX .. id)
	for _, key in ipairs({ X, H, E }) do redis.call('PEXPIREAT', key, ends + KEYS_TTL) end
	if changes ~= '' then redis.pcall('PUBLISH', changes, name) end
	return { 'in', order, '0' }
end

-- Fast path: the only entry leaves.
if op == 'leave' and ARGV[6] == '' and not ARGV[8] and alone(ARGV[7]) then
	redis.call('DEL', K, H, X, E)
	if changes ~= '' then redis.pcall('PUBLISH', changes, name) end
	return 1
end

-- A server that refuses to write must do so here, before anything is published that would then not
-- be done. A server that is out of memory refuses the first write of a script only if that write
-- needs memory; this one does not, so leases can still be renewed.
redis.call('ZREM', Q, '')

count = empty and 0 or redis.call('ZCARD', H)
if count > 0 and held and mode(held) == 'x' then kind = 'x' end

-- Publishes to a client and returns the number of receivers, or nothing if it is unknown because
-- publishing is not permitted. The message is not replicated: a client that is still subscribed at
-- a replica, the former master, is not counted and must not receive it.
local function publish(client, message)
	redis.set_repl(redis.REPL_NONE)
	local receivers = redis.pcall(PUBLISH, wake .. client, message)
	redis.set_repl(redis.REPL_ALL)
	if type(receivers) == 'table' then return nil end
	return receivers
end

local function disarm(id)
	if not armed or not string.find(armed, id, 1, true) then return end
	local left = {}
	for other in string.gmatch(armed, '%S+') do
		if other ~= id then left[#left + 1] = other end
	end
	armed = table.concat(left, ' ')
	if armed == '' then
		redis.call('HDEL', E, 'armed')
		armed = false
	else
		redis.call('HSET', E, 'armed', armed)
	end
end

-- Removes an entry. Returns whether it held or waited. An entry that has only a lease left has lost
-- its place.
local function remove(id)
	if redis.call('ZREM', X, id) == 0 then return false end
	redis.call('HDEL', E, id, NUMBER .. id, WRITES .. id)
	disarm(id)
	if id == downgraded then
		redis.call('HDEL', E, 'downgraded')
		downgraded = false
	end
	changed = true
	if redis.call('ZREM', H, id) == 1 then
		count, kind, least, moved = count - 1, nil, nil, true
		return true
	end
	return redis.call('ZREM', Q, id) == 1
end

local function void(id)
	redis.call('ZADD', V, now + VOID_TTL, id)
	redis.call('ZREMRANGEBYSCORE', V, '-inf', now)
	redis.call('PEXPIRE', V, VOID_TTL)
end

-- Evicts an entry: removes and voids it, and notifies its client.
local function evict(id, why)
	local client = parts(id)
	remove(id)
	void(id) -- a request in flight would put it in again
	if client then publish(client, 'gone ' .. id .. ' ' .. why) end
end

while late do
	local dead = redis.call('ZRANGEBYSCORE', X, '-inf', '(' .. now, 'LIMIT', 0, 100)
	for _, id in ipairs(dead) do evict(id, 'expired') end
	late = #dead == 100
end

if count > 0 and not (held and value == held) then
	for _, id in ipairs(redis.call('ZRANGE', H, 0, -1)) do evict(id, 'taken') end
	redis.call('DEL', H)
	count, kind = 0, nil
end
if held and count == 0 then
	if value == held and moved then -- otherwise the holders have been lost, and the key expires
		redis.call('DEL', K)
		value = false
	end
	redis.call('HDEL', E, 'held')
	held = false
end
moved = moved and count > 0 -- a remaining holder may be alone now: see finish
local foreign = value and value ~= held
local orphaned = foreign and string.sub(value, 1, #VALUE_PREFIX) == VALUE_PREFIX -- the holders were lost

-- Returns whether an entry of mode m may be admitted beside the holders, by the rules of package
-- line.
local function admissible(m)
	if count == 0 then return true end
	kind = kind or mode(redis.call('ZRANGE', H, 0, 0)[1])
	if m == 'x' or kind == 'x' then return false end
	if m == 's' or kind == 's' then return m == kind end
	if not least then
		least = math.huge
		for _, id in ipairs(redis.call('ZRANGE', H, 0, -1)) do least = math.min(least, tonumber(mode(id))) end
	end
	return count < math.min(least, within(tonumber(m)))
end

local function admit(id, order)
	redis.call('ZADD', H, order, id)
	local m = mode(id)
	if count == 0 then
		first, kind, least = id, m, tonumber(m)
	elseif least then
		least = math.min(least, tonumber(m))
	end
	count = count + 1
	changed, moved = true, true
end

-- Records that waiters with smaller orders were passed: they get a new order when they are
-- admitted.
local function pass(order)
	past = tonumber(order)
	redis.call('HSET', E, 'past', order)
end

-- Admits the entries that are admissible. An entry whose client has subscribed, but did not receive
-- the message, is skipped and keeps its place: its process has ended, or its connection is down and
-- it will poll again. An entry in present has sent this request, so it is not skipped. Nor is one of a
-- set: if others passed it in one line but not in another, two sets could wait for each other. Returns
-- whether an entry must wait, and whether one was skipped.
local function settle(present)
	if foreign or kind == 'x' then return true end
	if empty then return false, false end
	local at = 0
	while true do
		local id, order = unpack(redis.call('ZRANGE', Q, at, at, 'WITHSCORES'))
		if not id then return false, at > 0 end
		if not admissible(mode(id)) then return true end
		local passed = tonumber(order) <= past
		if passed then
			order = next_order()
			if not order then return true end
		end
		local client, flag = parts(id)
		if not client then
			remove(id) -- the information about it was lost
		elseif publish(client, 'in ' .. id .. ' ' .. order) == 0 and flag == 'l' and not (present and present[id]) and not of_set(id) then
			at = at + 1
		else
			redis.call('ZREM', Q, id)
			admit(id, order)
			if passed or at > 0 then pass(order) end
			if kind == 'x' then return true end
		end
	end
end

-- Updates the lock's key and the expiry of all keys, and publishes the change.
local function finish()
	local far -- end of the last lease; nothing if the line is empty
	if grown or moved and count ~= 1 then
		far = tonumber(redis.call('ZRANGE', X, -1, -1, 'WITHSCORES')[2])
	end
	if moved and count == 0 then
		if held then
			redis.call('DEL', K)
			redis.call('HDEL', E, 'held')
		end
		if past > 0 and not far then redis.call('HDEL', E, 'past') end
	elseif moved then
		-- With several holders the key gets the end of the last lease in the line. A waiter's lease
		-- may make it too late, never too early.
		local ends = far
		if count == 1 then
			ends = tonumber(redis.call('ZSCORE', X, first or redis.call('ZRANGE', H, 0, 0)[1]) or now + 1)
		end
		-- A lease includes its last millisecond, and a key with an expiry of now is deleted.
		ends = math.max(ends, now + 1)
		if first then
			redis.call('SET', K, VALUE_PREFIX .. first, 'PXAT', ends)
			redis.call('HSET', E, 'held', VALUE_PREFIX .. first)
		else
			redis.call('PEXPIREAT', K, ends)
		end
		redis.call('PEXPIREAT', H, ends + KEYS_TTL) -- H is created again for each holder
	end
	if grown and far then
		if queued then redis.call('PEXPIREAT', Q, far + KEYS_TTL) end
		if redis.call('PTTL', X) < far - now + KEYS_TTL / 2 then
			redis.call('PEXPIREAT', X, far + KEYS_TTL)
			redis.call('PEXPIREAT', E, far + KEYS_TTL)
		end
	end
	if changed and changes ~= '' then redis.pcall('PUBLISH', changes, name) end
end

-- Returns how many entries must leave before a waiting one is admitted. Far behind the head it
-- returns the largest possible number instead of counting.
local function ahead(id, rank)
	local m = mode(id)
	local others, same, slots = 0, 0, tonumber(m) and within(tonumber(m)) or math.huge
	if foreign then others = 1 end
	if m == 'x' or count + rank > 100 then return math.max(others + count + rank, 1) end
	local function count_in(id)
		local n = mode(id)
		if n == m or tonumber(n) and tonumber(m) then
			same, slots = same + 1, math.min(slots, tonumber(n) or math.huge)
		else
			others = others + 1
		end
	end
	for _, id in ipairs(redis.call('ZRANGE', H, 0, -1)) do count_in(id) end
	if rank > 0 then
		for _, id in ipairs(redis.call('ZRANGE', Q, 0, rank - 1)) do count_in(id) end
	end
	if same >= slots then others = others + same - slots + 1 end
	return math.max(others, 1)
end

-- Returns the standing of an entry: "in" and its order, "wait" and the number ahead, or "gone" and
-- "0".
local function standing(id)
	local order = redis.call('ZSCORE', H, id)
	if order then return 'in', order end
	local rank = redis.call('ZRANK', Q, id)
	if rank then return 'wait', tostring(ahead(id, rank)) end
	return 'gone', '0'
end

-- Returns whether an entry of mode m is of another kind than the first entry of the line: the first
-- holder, else another locker, else the first waiter. Slots are of one kind if they agree on the
-- number. "x" and "s", for which tonumber returns nothing, are one kind. Another locker is exclusive.
--
-- A mark whose holders were lost is not an entry, so it gives the line no kind. It only closes the
-- lock until the key expires.
local function of_other_kind(m)
	local front = 'x'
	if count > 0 then
		kind = kind or mode(redis.call('ZRANGE', H, 0, 0)[1])
		front = kind
	elseif not foreign or orphaned then
		local id = redis.call('ZRANGE', Q, 0, 0)[1]
		if not id then return false end
		front = mode(id)
	end
	return tonumber(front) ~= tonumber(m)
end

local function earliest() return tonumber(redis.call('ZRANGE', X, 0, 0, 'WITHSCORES')[2] or now + KEYS_TTL) end

-- Returns the milliseconds until clients should poll again: when a lease, or the lock's key, ends.
-- If another locker has the key, the first in line polls much earlier, because competitors poll
-- often as well. known is the end of one lease; early has those that were there before.
local function soonest(known, asking)
	local next = math.min(known, tonumber(early[2] or known)) - now
	if next < 0 then next = earliest() - now end
	if foreign then
		local left = redis.call('PTTL', K)
		if left >= 0 then next = math.min(next, left) end
		if asking[redis.call('ZRANGE', Q, 0, 0)[1]] then next = math.min(next, FOREIGN_POLL) end
	end
	return string.format('%.0f', next)
end

-- Extends the lease of an entry to ms milliseconds from now; never shortens it. Returns whether the
-- entry has a lease.
local function prolong(id, ms)
	local ends = tonumber(redis.call('ZSCORE', X, id))
	if not ends then return false end
	if now + ms > ends then
		redis.call('ZADD', X, now + ms, id)
		moved, grown, queued = true, true, true -- whether it holds or waits does not matter
	end
	return true
end

-- Notifies the armed clients that an entry has begun to wait.
local function contended()
	if not armed then return end
	for id in string.gmatch(armed, '%S+') do
		local client = parts(id)
		if client then publish(client, 'contended ' .. id) end
	end
	redis.call('HDEL', E, 'armed')
	armed = false
end

-- join id ms try client flag text: puts an entry in, or extends its lease if it is in. Returns its
-- standing. If it is refused, returns "kind" or "held", and the first entry. A refused entry leaves
-- nothing, so a repetition is decided anew. An entry that is in is never refused: a request whose
-- reply was lost may have put it in.
--
-- ask, with the same arguments: returns the same as join, except that an entry which join would put in is
-- not put in, and the reply says "free".
if op == 'join' or op == 'ask' then
	local id, ms, try, client, flag, text = ARGV[6], tonumber(ARGV[7]), ARGV[8] == '1', ARGV[9], ARGV[10], ARGV[11]
	local barred = redis.call('ZSCORE', V, id)
	local there = not barred and not empty and prolong(id, ms)
	local wait, aside = settle({ [id] = true })
	local reply
	if barred then
		reply = { 'void' }
	elseif not there then
		local other = of_other_kind(mode(id))
		local may = not other and not wait and not foreign and admissible(mode(id))
		if op == 'ask' and (may or not try and not other) then
			reply = { 'free' }
		elseif may or not try and not other then
			local order = next_order()
			if not order then
				finish()
				return redis.error_reply(EXHAUSTED)
			end
			redis.call('ZADD', X, now + ms, id)
			redis.call('HSET', E, id, client .. '|' .. flag .. '|' .. text)
			grown, changed = true, true
			if may then
				admit(id, order)
				if aside then pass(order) end
				reply = { 'in', order, '0' }
			else
				redis.call('ZADD', Q, order, id)
				queued = true
				contended()
				local rank = redis.call('ZCARD', Q) - 1
				reply = { 'wait', tostring(ahead(id, rank)), soonest(now + ms, { [id] = true }) }
			end
		else
			local who = redis.call('ZRANGE', H, 0, 0, 'WITHSCORES')
			if not who[1] then who = redis.call('ZRANGE', Q, 0, 0, 'WITHSCORES') end
			reply = {
				other and 'kind' or 'held', foreign and not (other and orphaned) and value,
				who, who[1] and redis.call('HGET', E, who[1]) or '', who[1] == downgraded and who[1] or '',
			}
		end
	end
	finish()
	if not reply then
		local st, n = standing(id)
		reply = { st, n, soonest(earliest(), { [id] = true }) }
	end
	return reply
end

-- requeue old id ms client flag text: removes an entry and puts another one in, at the end of the line.
-- Returns the standing of the new one as join does, "ended" if the session has ended, or "absent" if the old one is not there. If the
-- new one is in, because a request whose reply was lost has put it in, extends its lease.
if op == 'requeue' then
	local old, id, ms, client, flag, text = ARGV[6], ARGV[7], tonumber(ARGV[8]), ARGV[9], ARGV[10], ARGV[11]
	local there, added = not empty and not redis.call('ZSCORE', V, id), false
	if there and not prolong(id, ms) then
		there = redis.call('ZSCORE', X, old) and (redis.call('ZSCORE', H, old) or redis.call('ZSCORE', Q, old))
		local order = there and next_order()
		if there and not order then
			finish()
			return redis.error_reply(EXHAUSTED)
		end
		if there then
			remove(old)
			redis.call('ZADD', X, now + ms, id)
			redis.call('HSET', E, id, client .. '|' .. flag .. '|' .. text)
			redis.call('ZADD', Q, order, id)
			added, grown, queued, changed = true, true, true, true
		end
	end
	settle({ [id] = true })
	if added and not redis.call('ZSCORE', H, id) then contended() end
	finish()
	if not there then return { 'absent' } end
	local st, n = standing(id)
	return { st, n, soonest(earliest(), { [id] = true }) }
end

-- visit ms flag id…: returns the standings of entries and records whether their client has
-- subscribed. Extends their leases to ms if that is not zero.
if op == 'visit' then
	local ms, listening, present = tonumber(ARGV[6]), ARGV[7], {}
	for i = 8, #ARGV do
		local id = ARGV[i]
		local client, flag, text = parts(id)
		if client and prolong(id, flag == 't' and 0 or ms) then
			if flag ~= 't' and flag ~= listening then
				redis.call('HSET', E, id, client .. '|' .. listening .. '|' .. text)
			end
			present[id] = true
		end
	end
	settle(present)
	finish()
	local report = { soonest(earliest(), present) }
	for i = 8, #ARGV do
		local st, n = 'gone', '0'
		if present[ARGV[i]] then st, n = standing(ARGV[i]) end
		report[#report + 1] = st
		report[#report + 1] = n
	end
	return report
end

-- leave how id…: removes entries. Returns how many of them were there. how is "void" if requests
-- that put them in may still arrive, "end" for the same except that entries with a time of their
-- own stay, or "".
if op == 'leave' then
	local how, left = ARGV[6], 0
	for i = 7, #ARGV do
		local id = ARGV[i]
		if how ~= 'end' or select(2, parts(id)) ~= 't' then
			if how ~= '' then void(id) end
			if remove(id) then left = left + 1 end
		end
	end
	settle()
	finish()
	return left
end

-- detach id ms: detaches an entry from its session: it leaves after ms. Returns whether it was there.
if op == 'detach' then
	local id, ms = ARGV[6], tonumber(ARGV[7])
	local client, _, text = parts(id)
	local there = client and redis.call('ZSCORE', X, id) and (redis.call('ZSCORE', H, id) or redis.call('ZSCORE', Q, id))
	if there then
		redis.call('ZADD', X, now + ms, id)
		redis.call('HSET', E, id, client .. '|t|' .. text)
		disarm(id)
		moved, grown, queued, changed = true, true, true, true
	end
	settle()
	finish()
	return there and 1 or 0
end

-- owner id number text: changes the information about an entry, unless the entry is detached, or a
-- change with a larger number was made. Returns whether it was there.
if op == 'owner' then
	local id = ARGV[6]
	local client, flag, text = parts(id)
	local there = client and flag ~= 't' and (redis.call('ZSCORE', H, id) or redis.call('ZSCORE', Q, id))
	if there and tonumber(string.match(text, '^{"change":(%d+)') or 0) < tonumber(ARGV[7]) then
		redis.call('HSET', E, id, client .. '|' .. flag .. '|' .. ARGV[8])
		changed = true
	end
	settle()
	finish()
	return there and 1 or 0
end

-- downgrade id: makes an exclusive holder shared, unless it is detached. Returns whether
-- it was there. A client of an earlier version takes the entry for exclusive, and so admits nobody
-- beside it.
if op == 'downgrade' then
	local id = ARGV[6]
	local _, flag = parts(id)
	local there = flag and flag ~= 't' and redis.call('ZSCORE', H, id)
	if there and mode(id) == 'x' then
		downgraded, kind = id, 's'
		held = VALUE_PREFIX .. id .. '.s' -- the mark shows the kind, also when this entry has left before others
		value = held
		redis.call('SET', K, held, 'KEEPTTL')
		redis.call('HSET', E, 'held', held, 'downgraded', id)
		changed = true
	end
	settle()
	finish()
	return there and 1 or 0
end

-- number id: gives a holder of a slot the smallest number that no other holder has, unless it has one.
-- Returns the number and the order of the claim. If the entry holds no slot, returns "gone"; if all
-- numbers are taken, "none".
if op == 'number' then
	local id = ARGV[6]
	settle()
	finish()
	local slots = tonumber(mode(id))
	if not slots or not redis.call('ZSCORE', H, id) then return { 'gone' } end
	local known = redis.call('HGET', E, NUMBER .. id)
	if not known then
		local taken, n = {}, 0
		for _, holder in ipairs(redis.call('ZRANGE', H, 0, -1)) do
			local other = string.match(redis.call('HGET', E, NUMBER .. holder) or '', '^%d+')
			if other then taken[tonumber(other)] = true end
		end
		while taken[n] do n = n + 1 end
		if n >= within(slots) then return { 'none' } end
		local order = next_order()
		if not order then return redis.error_reply(EXHAUSTED) end
		known = n .. ' ' .. order
	end
	redis.call('HSET', E, NUMBER .. id, known) -- also if it is there: see doReplicated
	local n, order = string.match(known, '^(%d+) (%d+)$')
	return { n, order }
end

-- arm id: has the client notified when an entry waits behind this one. Returns whether one does
-- already.
if op == 'arm' then
	local id = ARGV[6]
	settle()
	finish()
	if not redis.call('ZSCORE', X, id) then return 0 end
	local rank, waiting = redis.call('ZRANK', Q, id), redis.call('ZCARD', Q)
	if rank then waiting = waiting - 1 - rank end
	if waiting > 0 then return 1 end
	disarm(id)
	redis.call('HSET', E, 'armed', (armed and armed .. ' ' or '') .. id)
	return 0
end

-- limit n change expected: sets the operator's limit of slots, or removes it if n is 0, unless the last
-- change is neither the expected one nor this one. Returns the last change. A removed limit is remembered
-- as long as a request in flight might set it again. There are as many holders as before, or more.
if op == 'limit' then
	local n, change, expected = ARGV[6], ARGV[7], ARGV[8]
	local last = string.match(redis.call('GET', L) or '', '%S+$') or ''
	if last == change or last == expected then
		last = change
		redis.call('SET', L, n .. ' ' .. change) -- also if it is there: see doReplicated
		if n == '0' then redis.call('PEXPIRE', L, VOID_TTL) end
		limit, changed = nil, true
	end
	settle()
	finish()
	return last
end

-- setrecord id n value: replaces the record, if the entry holds the lock and is not detached, unless this call
-- for the entry, or a later one, has done so. Returns whether the entry was there, or has written this record. A
-- removed record is remembered for a while, for the repetitions that do not find the entry.
if op == 'setrecord' then
	local id, n, text = ARGV[6], tonumber(ARGV[7]), ARGV[8]
	settle()
	finish()
	local record = id .. ' ' .. ARGV[7] .. ' ' .. text
	local _, flag = parts(id)
	if not flag or flag == 't' or not redis.call('ZSCORE', H, id) then
		return redis.call('GET', R) == record and 1 or 0
	end
	local last = tonumber(redis.call('HGET', E, WRITES .. id) or 0)
	if last < n then
		redis.call('SET', R, record)
		if text == '' then redis.call('PEXPIRE', R, VOID_TTL) end
	end
	redis.call('HSET', E, WRITES .. id, math.max(last, n)) -- also if it is there: see doReplicated
	return 1
end

-- break order: evicts the entry with that order. Returns whether there was one.
if op == 'break' then
	local order = ARGV[6]
	local id = redis.call('ZRANGEBYSCORE', H, order, order)[1] or redis.call('ZRANGEBYSCORE', Q, order, order)[1]
	if id then evict(id, 'broken') end
	settle()
	finish()
	return id and 1 or 0
end

return redis.error_reply('STILE unknown operation ' .. tostring(op))
