-- Renews the lease of the only entry of a line, the common case, with as few commands as possible. This is the
-- body of a function: see set.lua.
--
-- K, H, X, E: keys of the line, as in line.lua. ms: how long the lease is to last from now.
--
-- id is an entry that was admitted. If it still holds the lock, and is alone in the line, extends its lease and
-- returns true. Otherwise returns nothing, and has changed nothing. It does not look at the holders: the lock's mark
-- shows that there are some. Should another client have deleted them, the next operation on the line notices. It does
-- not record whether the client has subscribed: only the flags of waiters are read.
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = now + ms
local early = redis.call('ZRANGE', X, 0, 1, 'WITHSCORES')
if early[1] ~= id or early[3] or ms <= 0 then return nil end
local old = tonumber(early[2])
-- A lease includes its last millisecond, as a key's TTL does.
if old < now or old > ends then return nil end
local known = redis.call('HMGET', E, 'held', id)
if not known[1] or redis.pcall('GET', K) ~= known[1] then return nil end
local flag = string.match(known[2] or '', '^[^|]*|([^|]*)|')
if not flag or flag == 't' then return nil end
redis.call('PEXPIREAT', K, ends) -- first, because it needs no memory: see line.lua
redis.call('ZADD', X, ends, id)
-- The other keys must outlast the lease. They were set to at least half of KEYS_TTL after an earlier end of the
-- lease, and are set again whenever the end passes a multiple of half of KEYS_TTL.
if math.floor(old / (KEYS_TTL / 2)) < math.floor(ends / (KEYS_TTL / 2)) then
	for _, key in ipairs({ X, H, E }) do redis.call('PEXPIREAT', key, ends + KEYS_TTL) end
end
return true
