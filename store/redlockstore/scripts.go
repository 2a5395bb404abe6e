package redlockstore

import "github.com/redis/rueidis"

// In all scripts KEYS[1] is the lock's key and ARGV[1] is the id with which its value begins if it
// is this client's. Clients send times as durations only. Steps that may fail without harm, such as
// publishing, come last and in a pcall: a script that fails halfway keeps what it has written.

const luaCommon = `
local function mine(key, id) -- if not, what is there instead; it need not be a string
	local v = redis.pcall('GET', key)
	if type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then redis.call('GET', key) end
	return type(v) == 'string' and string.sub(v, 1, #id) == id, v
end
local function now()
	local t = redis.call('TIME')
	return t[1] * 1000000 + t[2]
end
local function last(key)
	local v = redis.call('GET', key)
	return v and tonumber(string.match(v, '^%d+')) or 0
end
local function show(index, name, ms)
	local t = math.floor(now() / 1000)
	redis.pcall('ZADD', index, t + ms, name)
	redis.pcall('ZREMRANGEBYSCORE', index, '-inf', t)
	local left = redis.pcall('PTTL', index)
	if type(left) == 'number' and left < ms then redis.pcall('PEXPIRE', index, ms) end
end
`

// takeScript sets the value if the key does not exist, and returns the smallest order that this
// master allows for the hold. It is larger than all orders recorded here and, in case these were
// lost, not smaller than the time.
//
//	KEYS key, fence, void    ARGV id, value, TTL in ms
//	{1, order} if it was set; {0, value, TTL} of the existing lock; {-1} if the attempt is void
var takeScript = rueidis.NewLuaScript(luaCommon + `
local v = redis.call('GET', KEYS[1])
if v then return {0, v, redis.call('PTTL', KEYS[1])} end
if redis.call('EXISTS', KEYS[3]) == 1 then return {-1} end
local order = math.max(last(KEYS[2]) + 1, now())
if order > 4503599627370495 then return redis.error_reply('ERR no fencing token is left: key ' .. KEYS[2] .. ' has the largest order; set the clock right, and delete the key only when no stale holder can exist') end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return {1, string.format('%.0f', order)}`)

// recordOrderScript records the hold's order, for later holders, and renews the key. A master that has
// recorded a larger order rejects it: it may have put the hold in after another one, and too late
// to take part in the choice of the order.
//
//	KEYS key, fence, index    ARGV id, order, TTL in ms, fence's TTL in ms, name, channel
//	1 if the lock is mine and no hold has a larger order, otherwise 0
var recordOrderScript = rueidis.NewLuaScript(luaCommon + `
if not mine(KEYS[1], ARGV[1]) or tonumber(ARGV[2]) <= last(KEYS[2]) then return 0 end
redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[1], 'PX', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
show(KEYS[3], ARGV[5], tonumber(ARGV[3]))
redis.pcall('PUBLISH', ARGV[6], '+' .. ARGV[1])
return 1`)

// restoreScript puts a hold with its order in at a master that does not have it.
//
//	KEYS key, fence, void, index    ARGV id, value, order, TTL in ms, fence's TTL in ms, name
//	1 if the lock is mine, otherwise 0
var restoreScript = rueidis.NewLuaScript(luaCommon + `
local is, v = mine(KEYS[1], ARGV[1])
if is then return 1 end
if v or redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
if tonumber(ARGV[3]) > last(KEYS[2]) then
	redis.call('SET', KEYS[2], ARGV[3] .. ' ' .. ARGV[1], 'PX', ARGV[5])
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[4])
show(KEYS[4], ARGV[6], tonumber(ARGV[4]))
return 1`)

// renewScript renews many locks, each if it is mine, and never shortens a TTL. It also replies if
// there are no locks.
//
//	KEYS index, then for each lock: key, fence    ARGV TTL in ms, fence's TTL in ms, then for each lock: id, name
//	for each lock: 1 if it is mine, 0 if it is free, -1 if it is another's
var renewScript = rueidis.NewLuaScript(luaCommon + `
local ttl = tonumber(ARGV[1])
local said = {}
for i = 2, #KEYS, 2 do
	local is, v = mine(KEYS[i], ARGV[i + 1])
	if is then
		local left = redis.call('PTTL', KEYS[i])
		if left >= 0 and left < ttl then
			redis.call('PEXPIRE', KEYS[i], ttl)
			redis.call('PEXPIRE', KEYS[i + 1], ARGV[2])
			show(KEYS[1], ARGV[i + 2], ttl)
		end
	end
	said[#said + 1] = is and 1 or (v and -1 or 0)
end
return said`)

// keepScript sets the remaining time of a lock, shorter or longer, if it is mine.
//
//	KEYS key, fence, index    ARGV id, time in ms, fence's TTL in ms, name
//	1 if the lock is mine, otherwise 0
var keepScript = rueidis.NewLuaScript(luaCommon + `
if not mine(KEYS[1], ARGV[1]) then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
show(KEYS[3], ARGV[4], tonumber(ARGV[2]))
return 1`)

// leaveScript deletes a lock if it is mine and publishes that. If asked to, it voids the attempt,
// in case the request to put it in is still in flight. The deletion comes first: a server without
// memory may refuse to set the void key.
//
//	KEYS key, void, index    ARGV id, void's TTL in ms or 0, name, channel or ""
//	1 if it was mine, otherwise 0
var leaveScript = rueidis.NewLuaScript(luaCommon + `
local is = mine(KEYS[1], ARGV[1])
if is then redis.call('DEL', KEYS[1]) end
if ARGV[2] ~= '0' then redis.call('SET', KEYS[2], '', 'PX', ARGV[2]) end
if not is then return 0 end
redis.pcall('ZREM', KEYS[3], ARGV[3])
if ARGV[4] ~= '' then redis.pcall('PUBLISH', ARGV[4], '-' .. ARGV[1]) end
return 1`)

// readScript reads locks.
//
//	KEYS key, fence, key, fence, ...
//	for each pair: {value or false, TTL in ms, fence or false}; TTL is -3 if the key holds no string
var readScript = rueidis.NewLuaScript(`
local seen = {}
for i = 1, #KEYS, 2 do
	local v = redis.pcall('GET', KEYS[i])
	if type(v) == 'table' then
		seen[#seen + 1] = {false, -3, false}
	else
		seen[#seen + 1] = {v, redis.call('PTTL', KEYS[i]), redis.call('GET', KEYS[i + 1])}
	end
end
return seen`)

// namesScript returns the names in the index that begin with a prefix.
//
//	KEYS index    ARGV prefix
var namesScript = rueidis.NewLuaScript(`
local found = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
	if string.sub(name, 1, #ARGV[1]) == ARGV[1] then found[#found + 1] = name end
end
return found`)
