-- KEYS[1]: the fence key. ARGV[1]: the token, in decimal digits. Neither is seen by what follows.
do
	local fence, token = table.remove(KEYS, 1), table.remove(ARGV, 1) or ''
	local function refuse(why) return redis.error_reply('STILEGUARD token ' .. token .. ' ' .. why) end
	if not fence or #token > 19 or not string.find(token, '^[1-9]%d*$') then
		return refuse('is not a fencing token, or KEYS has no fence key')
	end
	local padded = string.rep('0', 20 - #token) .. token
	local newest = redis.pcall('GET', fence)
	if type(newest) == 'table' then
		if not string.find(newest.err, 'WRONGTYPE', 1, true) then return newest end
		newest = ''
	end
	if newest then
		if #newest ~= 20 or not string.find(newest, '^0%d*$') then
			return refuse('was not compared, the fence key is damaged')
		end
		-- Lua numbers are exact only up to 2^53, and the order of strings depends on the locale: compare the halves.
		local ahead = string.sub(newest, 1, 10) - string.sub(padded, 1, 10)
		if ahead == 0 then ahead = string.sub(newest, 11) - string.sub(padded, 11) end
		if ahead > 0 then return refuse('is stale, a later holder was here with ' .. string.match(newest, '^0*(%d+)$')) end
	end
	redis.call('SET', fence, padded) -- also if it is the same: a replica, or a master without enough replicas, refuses it
end
