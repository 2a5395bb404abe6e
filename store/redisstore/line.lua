-- Everything that happens in a line, each as one step that nobody sees the middle of.
--
-- KEYS: the lock's key; those who wait, by arrival; those who hold, by order; the ends of all leases, in milliseconds; what
--       is known of each entry; the last order given out; the entries that must not come (back); and for those who join, if
--       it is on this server, the session.
-- ARGV: the operation; the command that wakes clients, and the beginning of their channels; the channel on which changes are
--       told, or nothing, and what to say there; then what the operation needs.
--
-- An entry's id ends in its mode: ".x" exclusive, ".s" shared, ".3" one of three slots. What is known of it is
-- "client|flag|text"; the flag is l while its client listens, t if it goes at a time of its own, or nothing.
--
-- The lock is Stile's while its key holds the mark that the field "held" of the entries repeats. If it does not, somebody
-- has deleted or replaced it, and those who held it don't any more.

local K, Q, H, X, E, F, V, session = unpack(KEYS)
local op, PUBLISH, wake, changes, name = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local VOID = 600000       -- how long an entry that must not come is remembered
local ABANDONED = 60000   -- how long a line is kept when all its leases have ended
local FENCE = 86400000    -- how long the last order is kept after the time that it tells: by so much the clock may be set back
local FOREIGN = 100       -- after how long the first in line asks again for a key that is somebody else's, who tells nobody
local LAST = 9007199254740992 -- the largest number up to which doubles count

local time = redis.call('TIME') -- once: servers before 7.2 let it run on during a script
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- What is in the key. Anything but a string is as good as a value of somebody else's.
local value = redis.pcall('GET', K)
if type(value) == 'table' then
	if not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
	value = ''
end

if op == 'read' then
	return {
		string.format('%.0f', now), value, redis.call('PTTL', K), redis.call('ZRANGE', H, 0, -1, 'WITHSCORES'),
		redis.call('ZRANGE', Q, 0, -1, 'WITHSCORES'), redis.call('ZRANGE', X, 0, -1, 'WITHSCORES'), redis.call('HGETALL', E),
	}
end

local function mode(id) return string.match(id, '[^.]*$') end

local function split(known) return string.match(known or '', '^([^|]*)|([^|]*)|(.*)$') end

local function parts(id) return split(redis.call('HGET', E, id)) end

local MARK = 'stile:' -- and the id of the first who came to hold the lock when nobody did

-- The first two whose leases end, and when: enough to see whether anybody stands here, and whether anybody is late.
local early = redis.call('ZRANGE', X, 0, 1, 'WITHSCORES')
local empty = not early[1]
local late = not empty and tonumber(early[2]) < now -- a lease includes its last millisecond, as the life of a key does

local held, armed -- see above; the entries that want to hear of those who wait behind them
local past = 0    -- the largest order of those who were let in past somebody, or after
local count       -- of those who hold
local kind        -- the mode of the first of them
local visited     -- what is known of the one who is visited, if it is one
if not empty then
	local known = redis.call('HMGET', E, 'held', 'armed', 'past', op == 'visit' and ARGV[8] or '')
	held, armed, past, visited = known[1], known[2], tonumber(known[3] or 0), known[4]
end
local least -- the smallest number of slots that one of them knows of

local first           -- who holds the lock now, and nobody did before
local changed = false -- the line has
local moved = false   -- those who hold have, or their leases
local grown = false   -- the leases of some have
local queued = false  -- and perhaps of some who wait

-- Orders count microseconds, or go up by one where that would not do. Returns nothing when they have run out. The last one is
-- kept until the clock has passed it, if that was set back: else smaller ones would follow.
local function fence()
	local last = tonumber(redis.call('GET', F) or 0)
	if last == 0 then -- it is the first, or the last one is so long ago; but who got it may be here still
		for _, key in ipairs({ H, Q }) do
			last = math.max(last, tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2] or 0))
		end
	end
	local order = math.max(last + 1, time[1] * 1000000 + time[2])
	if order >= LAST then return nil end
	local text = string.format('%.0f', order)
	redis.call('SET', F, text, 'PXAT', math.floor(order / 1000) + FENCE)
	return text
end

local EXHAUSTED = 'STILE the orders of this line have run out: see the key ' .. F .. ' and the clock of the server'

-- A request may be so late that nobody is behind it any more.
if session and redis.call('EXISTS', session) == 0 then return { 'ended' } end

-- What is left of a line that was abandoned ends by itself, but not all of it at the same moment.
if empty and op == 'join' then redis.call('DEL', Q, H, E) end

-- The order of an entry that holds and stands here alone; of others nothing.
local function alone(id)
	return not late and value and value == held and early[1] == id and not early[3] and redis.call('ZSCORE', H, id)
end

-- The most frequent cases in short: who joins is the first,
if op == 'join' and empty and not value and not redis.call('ZSCORE', V, ARGV[6]) then
	local id, ends, place = ARGV[6], now + ARGV[7], fence()
	if not place then return redis.error_reply(EXHAUSTED) end
	redis.call('SET', K, MARK .. id, 'PXAT', ends)
	redis.call('ZADD', X, ends, id)
	redis.call('ZADD', H, place, id)
	redis.call('HSET', E, id, ARGV[9] .. '|' .. ARGV[10] .. '|' .. ARGV[11], 'held', MARK .. id)
	for _, key in ipairs({ X, H, E }) do redis.call('PEXPIREAT', key, ends + ABANDONED) end
	if changes ~= '' then redis.pcall('PUBLISH', changes, name) end
	return { 'in', place, '0' }
end

-- who leaves was alone,
if op == 'leave' and ARGV[6] == '' and not ARGV[8] and alone(ARGV[7]) then
	redis.call('DEL', K, H, X, E)
	if changes ~= '' then redis.pcall('PUBLISH', changes, name) end
	return 1
end

-- and who is kept is alone.
if op == 'visit' and not ARGV[9] then
	local place, ms, _, flag = alone(ARGV[8]), tonumber(ARGV[6]), split(visited)
	local ends = now + ms
	if place and flag == ARGV[7] and ms > 0 and ends >= tonumber(early[2]) then
		redis.call('PEXPIREAT', K, ends) -- first, because it needs no memory: see below
		redis.call('ZADD', X, ends, ARGV[8])
		-- H is made to last so much longer than the lease, X and E at least half of that: so H is the first to be short.
		if redis.call('PTTL', H) < ms + ABANDONED / 2 then
			for _, key in ipairs({ X, H, E }) do redis.call('PEXPIREAT', key, ends + ABANDONED) end
		end
		return { ARGV[6], 'in', place }
	end
end

-- A server that refuses to write must do so here: before anybody is told of what is not done then. One that is out of memory
-- refuses the first write of a script if that needs some, and this one does not: those who are in can be kept.
redis.call('ZREM', Q, '')

count = empty and 0 or redis.call('ZCARD', H)
if count > 0 and held and mode(held) == 'x' then kind = 'x' end

-- How many have heard the message; nothing if that cannot be known, because the server's rules forbid to tell them. It is not
-- replicated: whoever still listens at a replica, which was the master before, is not counted, and must not hear it.
local function publish(client, message)
	redis.set_repl(redis.REPL_NONE)
	local heard = redis.pcall(PUBLISH, wake .. client, message)
	redis.set_repl(redis.REPL_ALL)
	if type(heard) == 'table' then return nil end
	return heard
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

-- Takes an entry out. Returns whether it was there: whether it held or waited. A lease alone is what is left of
-- an entry whose place was lost.
local function remove(id)
	if redis.call('ZREM', X, id) == 0 then return false end
	redis.call('HDEL', E, id)
	disarm(id)
	changed = true
	if redis.call('ZREM', H, id) == 1 then
		count, kind, least, moved = count - 1, nil, nil, true
		return true
	end
	return redis.call('ZREM', Q, id) == 1
end

local function void(id)
	redis.call('ZADD', V, now + VOID, id)
	redis.call('ZREMRANGEBYSCORE', V, '-inf', now)
	redis.call('PEXPIRE', V, VOID)
end

-- Takes an entry out that did not ask for it.
local function evict(id, why)
	local client = parts(id)
	remove(id)
	void(id) -- a request that is still on its way would put it in again
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
	if value == held and moved then -- else it has been forgotten who they are: the key will end
		redis.call('DEL', K)
		value = false
	end
	redis.call('HDEL', E, 'held')
	held = false
end
moved = moved and count > 0 -- who is left may be alone now: see finish
local foreign = value and value ~= held

-- Whether an entry may stand beside those who hold: the rules of package line.
local function admissible(m)
	if count == 0 then return true end
	kind = kind or mode(redis.call('ZRANGE', H, 0, 0)[1])
	if m == 'x' or kind == 'x' then return false end
	if m == 's' or kind == 's' then return m == kind end
	if not least then
		least = LAST
		for _, id in ipairs(redis.call('ZRANGE', H, 0, -1)) do least = math.min(least, tonumber(mode(id))) end
	end
	return count < math.min(least, tonumber(m))
end

local function admit(id, place)
	redis.call('ZADD', H, place, id)
	local m = mode(id)
	if count == 0 then
		first, kind, least = id, m, tonumber(m)
	elseif least then
		least = math.min(least, tonumber(m))
	end
	count = count + 1
	changed, moved = true, true
end

-- Remembers an order that is larger than those of some who wait: they need a new one as they are let in.
local function pass(place)
	past = tonumber(place)
	redis.call('HSET', E, 'past', place)
end

-- Lets those in whose turn it is. Whoever listens and is not there stands aside for the others, and keeps its place: its
-- process has ended, or its connection is down and it will ask again. Those who ask just now are present, whether they
-- listen or not. Returns whether somebody must wait, and whether somebody stands aside.
local function settle(present)
	if foreign or kind == 'x' then return true end
	if empty then return false, false end
	local at = 0
	while true do
		local id, place = unpack(redis.call('ZRANGE', Q, at, at, 'WITHSCORES'))
		if not id then return false, at > 0 end
		if not admissible(mode(id)) then return true end
		local passed = tonumber(place) <= past
		if passed then
			place = fence()
			if not place then return true end
		end
		local client, flag = parts(id)
		if not client then
			remove(id) -- what was known of it has been lost
		elseif publish(client, 'in ' .. id .. ' ' .. place) == 0 and flag == 'l' and not (present and present[id]) then
			at = at + 1
		else
			redis.call('ZREM', Q, id)
			admit(id, place)
			if passed or at > 0 then pass(place) end
			if kind == 'x' then return true end
		end
	end
end

-- Makes the lock's key, and the lives of all keys, follow from what was done; tells that something was.
local function finish()
	local far -- the end of the last lease; nothing if nobody is left
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
		-- Of several, the last to go: it is never one who does not hold that makes the key end too early.
		local ends = far
		if count == 1 then
			ends = tonumber(redis.call('ZSCORE', X, first or redis.call('ZRANGE', H, 0, 0)[1]) or now + 1)
		end
		-- A lease includes its last millisecond, and a key that is told to end now is deleted.
		ends = math.max(ends, now + 1)
		if first then
			redis.call('SET', K, MARK .. first, 'PXAT', ends)
			redis.call('HSET', E, 'held', MARK .. first)
		else
			redis.call('PEXPIREAT', K, ends)
		end
		redis.call('PEXPIREAT', H, ends + ABANDONED) -- which is made anew for each holder
	end
	if grown and far then
		if queued then redis.call('PEXPIREAT', Q, far + ABANDONED) end
		if redis.call('PTTL', X) < far - now + ABANDONED / 2 then
			redis.call('PEXPIREAT', X, far + ABANDONED)
			redis.call('PEXPIREAT', E, far + ABANDONED)
		end
	end
	if changed and changes ~= '' then redis.pcall('PUBLISH', changes, name) end
end

-- How many must leave before it is the turn of one who waits. Far behind it is enough to know how many can be ahead at most.
local function ahead(id, rank)
	local m = mode(id)
	local others, same, slots = 0, 0, tonumber(m) or LAST
	if foreign then others = 1 end
	if m == 'x' or count + rank > 100 then return math.max(others + count + rank, 1) end
	local function count_in(id)
		local n = mode(id)
		if n == m or tonumber(n) and tonumber(m) then
			same, slots = same + 1, math.min(slots, tonumber(n) or LAST)
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

-- How an entry stands: "in" and its order, "wait" and how many are ahead, or "gone" and nothing.
local function standing(id)
	local place = redis.call('ZSCORE', H, id)
	if place then return 'in', place end
	local rank = redis.call('ZRANK', Q, id)
	if rank then return 'wait', tostring(ahead(id, rank)) end
	return 'gone', '0'
end

-- When the first lease ends.
local function earliest() return tonumber(redis.call('ZRANGE', X, 0, 0, 'WITHSCORES')[2] or now + ABANDONED) end

-- After how many milliseconds those who ask should ask again: when somebody's lease ends, or that of the one who has the key;
-- and if that is somebody else's, the first in line much earlier, because others who want it ask often. One lease ends at a
-- known time; the others are those that were there before.
local function soonest(known, asking)
	local next = math.min(known, tonumber(early[2] or known)) - now
	if next < 0 then next = earliest() - now end
	if foreign then
		local left = redis.call('PTTL', K)
		if left >= 0 then next = math.min(next, left) end
		if asking[redis.call('ZRANGE', Q, 0, 0)[1]] then next = math.min(next, FOREIGN) end
	end
	return string.format('%.0f', next)
end

-- Keeps an entry for so many milliseconds from now, if not longer already. Returns whether it is there.
local function prolong(id, ms)
	local ends = tonumber(redis.call('ZSCORE', X, id))
	if not ends then return false end
	if now + ms > ends then
		redis.call('ZADD', X, now + ms, id)
		moved, grown, queued = true, true, true -- which of them does not matter
	end
	return true
end

-- Counts someone who waits and tells those who wanted to know that somebody does.
local function crowd()
	if not armed then return end
	for id in string.gmatch(armed, '%S+') do
		local client = parts(id)
		if client then publish(client, 'crowd ' .. id) end
	end
	redis.call('HDEL', E, 'armed')
	armed = false
end

-- join id ms try client flag text: puts an entry in, or keeps it if it is in, and says how it stands.
if op == 'join' then
	local id, ms, try, client, flag, text = ARGV[6], tonumber(ARGV[7]), ARGV[8] == '1', ARGV[9], ARGV[10], ARGV[11]
	local barred = redis.call('ZSCORE', V, id)
	local there = not barred and not empty and prolong(id, ms)
	local wait, aside = settle({ [id] = true })
	local reply
	if barred then
		reply = { 'void' }
	elseif not there then
		local may = not wait and not foreign and admissible(mode(id))
		if may or not try then
			local place = fence()
			if not place then
				finish()
				return redis.error_reply(EXHAUSTED)
			end
			redis.call('ZADD', X, now + ms, id)
			redis.call('HSET', E, id, client .. '|' .. flag .. '|' .. text)
			grown, changed = true, true
			if may then
				admit(id, place)
				if aside then pass(place) end
				reply = { 'in', place, '0' }
			else
				redis.call('ZADD', Q, place, id)
				queued = true
				crowd()
				local rank = redis.call('ZCARD', Q) - 1
				reply = { 'wait', tostring(ahead(id, rank)), soonest(now + ms, { [id] = true }) }
			end
		else
			local who = redis.call('ZRANGE', H, 0, 0, 'WITHSCORES')
			if not who[1] then who = redis.call('ZRANGE', Q, 0, 0, 'WITHSCORES') end
			reply = { 'held', foreign and value, who, who[1] and redis.call('HGET', E, who[1]) or '' }
		end
	end
	finish()
	if not reply then
		local st, n = standing(id)
		reply = { st, n, soonest(earliest(), { [id] = true }) }
	end
	return reply
end

-- visit ms flag id…: says how entries stand, and notes whether their client listens; keeps them for so many milliseconds if
-- that is not zero.
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

-- leave how id…: takes entries out. Returns how many of them there were. How: "void" if requests that put them in may come
-- yet, "end" if so and those that have a time of their own are to stay, or nothing.
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

-- linger id ms: gives an entry a time of its own. Returns whether it was there.
if op == 'linger' then
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

-- owner id text: changes what is known of an entry, unless that has a time of its own. Returns whether it was there.
if op == 'owner' then
	local id = ARGV[6]
	local client, flag = parts(id)
	local there = client and flag ~= 't' and (redis.call('ZSCORE', H, id) or redis.call('ZSCORE', Q, id))
	if there then
		redis.call('HSET', E, id, client .. '|' .. flag .. '|' .. ARGV[7])
		changed = true
	end
	settle()
	finish()
	return there and 1 or 0
end

-- arm id: has its client told when somebody waits behind an entry. Returns whether somebody does already.
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

-- break order: takes out whoever has that order. Returns whether there was somebody.
if op == 'break' then
	local place = ARGV[6]
	local id = redis.call('ZRANGEBYSCORE', H, place, place)[1] or redis.call('ZRANGEBYSCORE', Q, place, place)[1]
	if id then evict(id, 'broken') end
	settle()
	finish()
	return id and 1 or 0
end

return redis.error_reply('STILE unknown operation ' .. tostring(op))
