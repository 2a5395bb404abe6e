-- The script's entry point. line.lua is the body of the function operate, which does one operation on one
-- line, and renew.lua that of the function renew. Here they are called for several lines.
--
-- renew ms id…: calls renew for each line. KEYS has, for each, the lock's key, the holders, the leases and
-- the information about the entries. Returns 1 for each entry that was renewed, and 0 for the others, which must
-- be visited: nothing has changed for them.
if ARGV[1] == 'renew' then
	local ms, renewed = tonumber(ARGV[2]), {}
	for i = 1, #ARGV - 2 do
		local K, H, X, E = unpack(KEYS, 4 * i - 3, 4 * i)
		renewed[i] = renew(K, H, X, E, ARGV[2 + i], ms) and 1 or 0
	end
	return renewed
end

-- joinall ms try client flag (name id text)…: makes the operation join for each line, all in one step: either
-- all entries are in afterwards, or none is. KEYS has the keys of the lines, one line after another, then the
-- session. Returns the replies of join. If an entry is refused, the reply of each that is not says "free".
if ARGV[1] ~= 'joinall' then return operate(KEYS, ARGV) end

local LINE_KEYS = 9 -- see KEYS in line.lua

-- Makes one operation for each line. Returns the replies, and their first words as a set.
local function each(op)
	local replies, words = {}, {}
	for at = 10, #ARGV, 3 do
		local first = #replies * LINE_KEYS + 1
		local keys = { unpack(KEYS, first, first + LINE_KEYS - 1) }
		keys[LINE_KEYS + 1] = KEYS[#KEYS]
		local reply = operate(keys, {
			op, ARGV[2], ARGV[3], ARGV[4], ARGV[at], ARGV[at + 1], ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[at + 2],
		})
		if reply.err then return nil, nil, reply end
		replies[#replies + 1] = reply
		words[reply[1]] = true
	end
	return replies, words
end

local replies, words, failure = each('ask')
if failure then return failure end
if words.free and (words['in'] or words.wait or words.gone) then
	-- An earlier request has put all in, and some were lost since. Those must not join again, later than the others.
	for i, reply in ipairs(replies) do
		if reply[1] == 'free' then replies[i] = { 'void' } end
	end
	return replies
end
if words.held or words.kind or words.void or words.ended then return replies end
replies, words, failure = each('join')
return failure or replies
